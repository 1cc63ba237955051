"""From scores and labels to a record of how good a model is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.core.objectives.binary_cross_entropy import BinaryCrossEntropy
from tdcd.core.parts import calling, name_of
from tdcd.core.topology import Roster
from tdcd.data.arrays import Array
from tdcd.errors import DataError, ModelError
from tdcd.runs.quality import CalibrationBin, ClassQuality, Confusion, Cut, QualityRecord
from tdcd.training.metrics import measure
from tdcd.training.quality.calibration import brier, brier_of_classes, calibrate, calibration_error
from tdcd.training.quality.clients import assess_clients
from tdcd.training.quality.curves import Ranking
from tdcd.training.quality.regression import assess_target
from tdcd.training.quality.thresholds import HALF, operate

MOST_CURVES = 12
"""Classes whose curves a record has: those with the most rows."""
MOST_CLASSES = 30
"""Of a confusion matrix."""
ONE_CLASS = "all rows are of one class"


@dataclass(frozen=True)
class Assessment:
    """What the numbers are of, beside scores and labels."""

    samples: str
    """Which samples, in words."""
    round: int = 0
    classes: Sequence[str] = ()
    """What the classes 0, 1, 2, … stand for, where that is known."""
    cuts: Sequence[Cut] = (HALF,)
    """Thresholds for the binary loss, that which was chosen first."""
    holders: Mapping[str, Roster] = field(default_factory=dict)
    """Who holds each row, for every silo where that is known."""
    notes: Sequence[str] = ()


def check_scores(scores: Tensor) -> None:
    """Refuse scores that are not finite.

    Raises:
        DataError: some are not.
    """
    broken = int((~scores.isfinite()).any(-1).sum())
    if broken:
        raise DataError(
            f"the scores of {broken:,} of {len(scores):,} rows are not finite (NaN or infinite): nothing can be "
            "measured; check the features of these rows, and the weights"
        )


def assess(objective: Objective, scores: Tensor, labels: Tensor, what: Assessment) -> QualityRecord:
    """Measure all that a record holds.

    Args:
        objective: The loss that the model was trained with.
        scores: Its scores, (M, E).
        labels: As the loss wants them, see ``Objective.prepare``.
        what: What they are of.

    Raises:
        DataError: there are no rows, or scores that are not finite.
        ModelError: a loss of the user's own does not say what its scores mean.
    """
    scores, labels = scores.detach().cpu(), labels.cpu()
    if not len(scores):
        raise DataError(f"{what.samples}: there are none, so nothing can be measured")
    check_scores(scores)
    with calling("objective", objective):
        if objective.meaning == "numbers":
            return _assess_numbers(objective, scores, labels, what)
        probabilities = objective.probabilities(scores.double()).numpy()
        if objective.meaning == "binary":
            return _assess_binary(objective, scores, labels, probabilities, what)
        return _assess_classes(objective, scores, labels, probabilities, what)


def _record(objective: Objective, scores: Tensor, labels: Tensor, what: Assessment, **more: Any) -> QualityRecord:
    measures = measure(objective, scores, labels) | more.pop("measures")
    return QualityRecord(
        what.samples, what.round, objective.meaning, len(scores), measures, notes=(*what.notes,), **more
    )


def _assess_binary(
    objective: Objective, scores: Tensor, labels: Tensor, probabilities: Array, what: Assessment
) -> QualityRecord:
    positive = labels.numpy() == 1
    _check_shape(objective, probabilities, positive.shape)
    name = what.classes[1] if len(what.classes) == 2 else "1"
    ranked = objective.ranked(scores).numpy()[:, 0]
    quality = assess_class(name, ranked, probabilities, positive)

    def of_rows(rows: Tensor) -> Mapping[str, float]:
        own, truth = probabilities[rows.numpy()], positive[rows.numpy()]
        measures = measure(objective, scores[rows], labels[rows])
        at_half = {"accuracy", "f1"}  # these would be read as of the threshold that was chosen
        (point,) = operate(own, truth, what.cuts[:1])
        kept = {name: value for name, value in measures.items() if name not in at_half}
        at_cut = {name: point.measures[name] for name in ("precision", "recall") if name in point.measures}
        return {**kept, "brier": brier(own, truth), "mean_probability": float(own.mean()), **at_cut}

    if isinstance(objective, BinaryCrossEntropy) and objective.positive_weight != 1:
        weighted = (
            f"trained with positive_weight = {objective.positive_weight:g}: probabilities are meant to be "
            f"{'higher' if objective.positive_weight > 1 else 'lower'} than frequencies; calibrate them before they "
            "are read as such"
        )
        what = replace(what, notes=(*what.notes, weighted))
    return _record(
        objective,
        scores,
        labels,
        what,
        measures=quality.measures,
        classes=(quality,),
        points=operate(probabilities, positive, what.cuts),
        silos=assess_clients(what.holders, positive, of_rows),
    )


def _assess_classes(
    objective: Objective, scores: Tensor, labels: Tensor, probabilities: Array, what: Assessment
) -> QualityRecord:
    truth, said = labels.numpy(), objective.predictions(scores).numpy()
    count = scores.shape[1]
    _check_shape(objective, probabilities, (len(truth), count))
    names = what.classes if len(what.classes) == count else [str(number) for number in range(count)]
    sizes = np.bincount(truth, minlength=count)
    largest = sorted(range(count), key=lambda k: (-sizes[k], k))
    drawn = set(largest[:MOST_CURVES])
    ranked = objective.ranked(scores).numpy()
    each = [
        assess_class(names[k], ranked[:, k], probabilities[:, k], truth == k, said == k, curves=k in drawn)
        for k in range(count)
    ]
    confidence = calibrate(probabilities.max(1), said == truth)

    def of_rows(rows: Tensor) -> Mapping[str, float]:
        places = rows.numpy()
        own = {"brier": brier_of_classes(probabilities[places], truth[places])}
        return {**measure(objective, scores[rows], labels[rows]), **own}

    return _record(
        objective,
        scores,
        labels,
        what,
        measures={"brier": brier_of_classes(probabilities, truth), "confidence_error": calibration_error(confidence)},
        classes=tuple(each),
        confusion=confuse(truth, said, names, largest),
        confidence=_short_bins(confidence),
        silos=assess_clients(what.holders, None, of_rows),
    )


def _assess_numbers(objective: Objective, scores: Tensor, labels: Tensor, what: Assessment) -> QualityRecord:
    predicted, actual = objective.predictions(scores.double()).numpy(), labels.double().numpy()
    _check_shape(objective, predicted, actual.shape)
    if actual.ndim == 1:
        predicted, actual = predicted[:, None], actual[:, None]
    width = actual.shape[1]

    def of_rows(rows: Tensor) -> Mapping[str, float]:
        wrong = predicted[rows.numpy()] - actual[rows.numpy()]
        own = {"mae": float(np.abs(wrong).mean()), "rmse": float(np.sqrt(np.square(wrong).mean()))}
        return {**measure(objective, scores[rows], labels[rows]), **own}

    targets = tuple(
        assess_target(f"target {k}" if width > 1 else "target", predicted[:, k], actual[:, k]) for k in range(width)
    )
    wrong = predicted - actual
    measures = {"mae": float(np.abs(wrong).mean()), "rmse": float(np.sqrt(np.square(wrong).mean()))}
    silos = assess_clients(what.holders, None, of_rows)
    return _record(objective, scores, labels, what, measures=measures, targets=targets, silos=silos)


def assess_class(
    name: str, scores: Array, probabilities: Array, positive: Array, said: Array | None = None, *, curves: bool = True
) -> ClassQuality:
    """Measure how well scores (n,) tell one class from all others.

    Args:
        name: The class.
        scores: What rows are ranked by.
        probabilities: Of this class.
        positive: Which rows are of it.
        said: Which are predicted to be, where that does not hang on a threshold.
        curves: Whether to return curves, too.
    """
    ranking, bins = Ranking.of(scores, positive), calibrate(probabilities, positive)
    measures: dict[str, float] = {}
    if said is not None:
        both, either = int((said & positive).sum()), int(said.sum()) + ranking.positive
        measures |= {"precision": both / int(said.sum())} if said.any() else {}
        measures |= {"recall": both / ranking.positive} if ranking.positive else {}
        measures |= {"f1": 2 * both / either} if either else {}
    both_there = ranking.positive > 0 and ranking.negative > 0
    if both_there:
        area = ranking.auroc()
        measures |= {"auroc": area, "gini": 2 * area - 1, "ks": ranking.ks(), "auprc": ranking.auprc()}
    share = ranking.positive / ranking.count
    measures |= {"brier": brier(probabilities, positive), "brier_of_share": share * (1 - share)}
    measures["calibration_error"] = calibration_error(bins)
    return ClassQuality(
        name,
        ranking.count,
        ranking.positive,
        measures,
        "" if both_there else ONE_CLASS,
        ranking.roc() if curves and both_there else None,
        ranking.precision_recall() if curves and both_there else None,
        _short_bins(bins) if curves else (),
        ranking.lift() if curves and both_there else (),
    )


def confuse(truth: Array, said: Array, names: Sequence[str], largest: Sequence[int]) -> Confusion:
    """Count which classes are taken for which; all but those with the most rows count as one."""
    shown = sorted(largest[:MOST_CLASSES])
    place = np.full(len(names), len(shown))
    place[shown] = np.arange(len(shown))
    size = len(shown) + (len(names) > len(shown))
    counts = np.bincount(place[truth] * size + place[said], minlength=size * size).reshape(size, size)
    labels = [names[k] for k in shown] + ["all others"] * (size - len(shown))
    return Confusion(tuple(labels), tuple(tuple(row) for row in counts.tolist()))


def _short_bins(bins: Sequence[CalibrationBin]) -> tuple[CalibrationBin, ...]:
    return tuple(CalibrationBin(b.rows, float(f"{b.predicted:.5g}"), float(f"{b.observed:.5g}")) for b in bins)


def _check_shape(objective: Objective, values: Array, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ModelError(
            f"objective {name_of(objective)}: for labels of shape {shape} its predictions or probabilities have shape "
            f"{values.shape}, so that they cannot be compared"
        )
