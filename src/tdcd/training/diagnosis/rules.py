"""The rules: each looks at the evidence and yields what it finds."""

from collections.abc import Callable, Iterator

from tdcd.core.objectives.base import NULL_LOSS
from tdcd.runs.records import Evaluation, Finding
from tdcd.training.diagnosis.evidence import Evidence
from tdcd.training.diagnosis.participants import idle_clients, overshooting, superfluous_silos, unequal_clients

Rule = Callable[[Evidence], Iterator[Finding]]

CHANCE = 0.52
"""An area under the ROC curve up to which a model does not rank."""
EARLY = 0.05
"""Best weights are suspicious within the first evaluations, up to this part of them."""
FEW = 5
"""Evaluations below which a curve says nothing."""
LATE = 0.1
"""The last part of the rounds, in which a training should have settled."""
SETTLED = 0.01
"""The part of the whole descent that the last rounds may still bring."""
RISEN = 0.05
"""The part of the whole descent by which a validation loss may rise again."""
USELESS = "Check that features tell of the labels and that IDs match; try other rates, more rounds or another model"
FEWER_STEPS = "Use a smaller rate or fewer local steps, and look at the scale of the inputs"


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what a training shows about itself, failures first."""
    rules: tuple[Rule, ...] = (diverged, worse_than_start, trivial, early_best, overfitting, unfinished)
    rules += (overshooting, superfluous_silos, idle_clients, unequal_clients)
    findings = [finding for rule in rules for finding in rule(evidence)]
    return tuple(sorted(findings, key=lambda finding: ("failure", "warning", "note").index(finding.level)))


def diverged(evidence: Evidence) -> Iterator[Finding]:
    """Losses or weights were no longer finite."""
    if evidence.status != "diverged":
        return
    rate = evidence.settings.rate
    yield Finding(
        "diverged",
        "failure",
        f"The training diverged at rate {rate:g}; the weights of round {evidence.selected:,} are kept",
        f"Use a smaller rate, such as {rate / 10:g}",
        {"rate": rate, "round": evidence.selected},
    )


def worse_than_start(evidence: Evidence) -> Iterator[Finding]:
    """The weights that are kept are no better than those it started with."""
    lines = evidence.whole
    if len(lines) < 2 or lines[0].round != 0 or evidence.status == "diverged":
        return
    first, last, kept = lines[0], lines[-1], evidence.kept
    word = _word(evidence.part)
    if kept.round == 0:
        lowest, end = _loss(first, evidence.part), _loss(last, evidence.part)
        yield Finding(
            "worse-than-start",
            "failure",
            f"No weights were better than the first: the {word} loss was {lowest:.4g} before training and {end:.4g} "
            "after it, so the weights of round 0 are kept",
            FEWER_STEPS,
            {"first": lowest, "last": end},
        )
        return
    for part in dict.fromkeys((evidence.part, "train")):
        if "loss" not in first.measures(part) or "loss" not in kept.measures(part):
            continue
        before, after = _loss(first, part), _loss(kept, part)
        if after < before:
            continue
        ranks = _ranks_better(first, kept, part)
        yield Finding(
            "worse-than-start",
            "warning" if ranks else "failure",
            f"The {_word(part)} loss rose from {before:.4g} to {after:.4g}{ranks}",
            FEWER_STEPS if part == "train" else 'Keep the best weights: select = "best"; or use a smaller rate',
            {"first": before, "last": after},
        )
        return


def trivial(evidence: Evidence) -> Iterator[Finding]:
    """The model is no better than one that predicts the class frequencies, or the mean, whatever it is given."""
    part = evidence.held_out
    if not part or evidence.status == "diverged":
        return
    lines = [line for line in evidence.history if line.round == evidence.selected and line.measures(part)]
    measures = lines[0].measures(part) if lines else {}
    if NULL_LOSS in measures and measures["loss"] >= measures[NULL_LOSS]:
        numbers = {"loss": measures["loss"], NULL_LOSS: measures[NULL_LOSS]}
        text = f"the {_word(part)} loss is {measures['loss']:.4g}, with them {measures[NULL_LOSS]:.4g}"
        if (auroc := measures.get("auroc", 0.0)) > CHANCE:
            yield Finding(
                "overconfident",
                "warning",
                f"The model ranks samples (AUROC {auroc:.3f}), but its probabilities are worse than the class "
                f"frequencies: {text}",
                'Keep the best weights by validation loss (select = "best"), use a smaller rate, or weight decay',
                numbers | {"auroc": auroc},
            )
            return
        yield Finding(
            "trivial",
            "failure",
            f"The model is no better than always predicting the class frequencies: {text}",
            USELESS,
            numbers,
        )
    elif NULL_LOSS not in measures and measures.get("r2", 1.0) <= 0:
        yield Finding(
            "trivial",
            "failure",
            f"The model is no better than always predicting the mean: R² on the {_word(part)} samples is "
            f"{measures['r2']:.4g}",
            USELESS,
            {"r2": measures["r2"]},
        )


def early_best(evidence: Evidence) -> Iterator[Finding]:
    """The lowest validation loss is among the first evaluations."""
    if evidence.part != "validation" or len(evidence.whole) < FEW:
        return
    losses, lines = evidence.losses(), evidence.whole
    best = losses.index(min(losses))
    if not 0 < best <= max(1, EARLY * (len(lines) - 1)):
        return
    yield Finding(
        "early-best",
        "warning",
        f"The lowest validation loss, {losses[best]:.4g}, was at evaluation {best} of {len(lines) - 1} (round "
        f"{lines[best].round:,}); it ended at {losses[-1]:.4g}",
        "Use a smaller rate, and evaluate more often: best weights from so early may be luck",
        {"evaluation": best, "evaluations": len(lines) - 1, "loss": losses[best], "last": losses[-1]},
    )


def overfitting(evidence: Evidence) -> Iterator[Finding]:
    """The validation loss has risen while that of the training went on falling."""
    if evidence.part != "validation" or len(evidence.whole) < FEW:
        return
    losses, lines = evidence.losses(), evidence.whole
    best = losses.index(min(losses))
    trained = [line.train.get("loss") for line in (lines[best], lines[-1])]
    fallen, risen = losses[0] - losses[best], losses[-1] - losses[best]
    if best == 0 or None in trained or risen <= RISEN * fallen or not (trained[1] or 0) < (trained[0] or 0):
        return
    kept = evidence.selected == lines[best].round
    yield Finding(
        "overfitting",
        "note" if kept else "warning",
        f"The validation loss rose from {losses[best]:.4g} at round {lines[best].round:,} to {losses[-1]:.4g}, while "
        f"that of the training fell from {trained[0]:.4g} to {trained[1]:.4g}",
        f"The weights of round {lines[best].round:,} are kept; patience would save the other rounds"
        if kept
        else 'Keep the best weights (select = "best"), stop early (patience), or use weight decay or a smaller model',
        {"round": lines[best].round, "lowest": losses[best], "last": losses[-1]},
    )


def unfinished(evidence: Evidence) -> Iterator[Finding]:
    """The loss was still falling at the end."""
    lines, losses = evidence.whole, evidence.losses() if evidence.part else []
    if evidence.stopped or evidence.status != "finished" or len(lines) < 3 or losses[-1] > min(losses):
        return
    last = lines[-1].round
    before = max(place for place, line in enumerate(lines) if line.round <= (1 - LATE) * last)
    gained, descent = losses[before] - losses[-1], losses[0] - losses[-1]
    rounds = last - lines[before].round  # more than the last tenth, where evaluations are few
    if descent <= 0 or gained <= SETTLED * descent * rounds / (LATE * last):
        return
    yield Finding(
        "unfinished",
        "warning",
        f"The {_word(evidence.part)} loss was still falling: the last {rounds:,} of {last:,} rounds brought "
        f"{gained / descent:.1%} of its descent, from {losses[before]:.4g} to {losses[-1]:.4g}",
        f"Train longer, such as rounds = {2 * last}, or at a larger rate",
        {"gained": gained, "descent": descent, "rounds": rounds},
    )


def _ranks_better(first: Evaluation, kept: Evaluation, part: str) -> str:
    """Tell of a metric that has improved although the loss has not."""
    for name, word, least in (("auroc", "AUROC", CHANCE), ("accuracy", "accuracy", 0.0)):
        before, after = first.measures(part).get(name), kept.measures(part).get(name)
        if before is not None and after is not None:
            return f", though {word} rose from {before:.3f} to {after:.3f}" if after > max(before, least) else ""
    return ""


def _loss(line: Evaluation, part: str) -> float:
    return line.measures(part)["loss"]


def _word(part: str) -> str:
    return "training" if part == "train" else part
