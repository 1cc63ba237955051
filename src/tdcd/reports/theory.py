"""What Theorem 1 says of a run: figures and tables for pages and terminals."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tdcd.reports.figures import Bars, Curve, Picture
from tdcd.reports.words import Table, count, duration
from tdcd.runs.theory import Assumption, TheoryRecord

TERMS = {
    "descent": ("what is left of the loss", "4·(L(θ⁰) − L(θᴿ)) / (η·Q·R)"),
    "noise": ("mini-batches and unlike clients", "4·η·Q·L·Σσ²"),
    "staleness": ("local steps that do not see the others'", "16·η²·Q²·L_max²·Σσ²"),
    "coupling": ("both together", "32·η³·Q³·L·L_max²·Σσ²"),
}


def theory_pictures(record: TheoryRecord) -> list[Picture | Bars]:
    """Return the figures: both sides of the theorem over the rounds, and the shares of the bound."""
    later = [point for point in record.points if point.mean is not None and point.bound is not None]
    x = [float(point.round) for point in later]
    measured = Curve("measured mean", x, [point.mean or 0.0 for point in later])
    said = Curve("bound" if record.holds else "bound (does not hold)", x, [point.bound or 0.0 for point in later])
    single = Curve("at one round", [float(p.round) for p in record.points], [p.squared_norm for p in record.points],
                   kind="thin", colour="#8a93a1")  # fmt: skip
    curves = [measured, said, single]
    positive = all(value > 0 for curve in curves for value in curve.y)
    bars = {f"η = {record.rate:.3g}": record.shares()}
    if record.rate != record.largest_rate:
        bars[f"η = {record.largest_rate:.3g}, admissible"] = record.shares(record.largest_rate)
    return [
        Picture("theory", "Both sides of the theorem", "rounds", "squared gradient norm", curves,
                "y" if positive else ""),
        Bars("theory-terms", "What the bound is made of", "share of the bound, %", [*bars],
             {name: [100 * shares[name] for shares in bars.values()] for name in TERMS}),
    ]  # fmt: skip


def sides(record: TheoryRecord) -> Table:
    """Return the table of both sides of the theorem, and of the terms of the bound."""
    rows = [
        ("measured mean ‖∇L‖²", [_number(record.measured), "", f"over {count(record.rounds, 'round')}"]),
        ("bound", [_number(record.bound), "", "" if record.holds else "does not hold here, for orientation only"]),
    ]
    shares = record.shares()
    for name, (meaning, formula) in TERMS.items():
        rows.append((f"  {name}", [_number(record.terms[name]), f"{shares[name]:.1%}", f"{meaning}: {formula}"]))
    return ["value", "share", ""], rows


def constants(record: TheoryRecord) -> Table:
    """Return the table of what the bound is made of."""
    places = ", ".join(f"{place:,}" for place in record.constants_at)
    rows = [
        ("L", [_number(record.smoothness), f"curvature of the loss, on {count(record.rows, 'row')}"]),
        (
            "L_max",
            [_number(record.client_smoothness), f"of clients' mini-batches, of {count(record.clients, 'client')}"],
        ),
        *(
            (
                f"σ² of {silo}",
                [_number(value), f"over {record.batches:,} mini-batch" + "es" * (record.batches > 1)],
            )
            for silo, value in record.variances.items()
        ),
        ("L(θ⁰) − L(θᴿ)", [_number(record.decrease), "by which the training loss fell"]),
        ("η", [_number(record.rate), _rate(record)]),
        ("Q", [str(record.local_steps), "local steps"]),
        ("largest admissible η", [_number(record.largest_rate), "1 / (8·Q·max(L, L_max))"]),
    ]
    if record.balanced_rate is not None and record.balanced_bound is not None:
        capped = record.balanced_rate >= record.largest_rate
        text = "the largest admissible one" if capped else "∝ 1/(Q·√R): descent and noise weigh the same"
        text += f"; the bound would be {_number(record.balanced_bound)}"
        rows.append(("balanced η", [_number(record.balanced_rate), text]))
    return ["value", f"largest estimates after {places} rounds"], rows


def assumptions(record: TheoryRecord) -> list[tuple[str, str, str]]:
    """Return each assumption: its name, "yes", "no" or "unclear", and why."""
    return [
        ("rate condition", *_condition(record)),
        *((one.name, _verdict(one), one.detail) for one in record.assumptions),
    ]


def verdict(record: TheoryRecord) -> str:
    """Say in a sentence or two what comes of it."""
    if record.holds and record.measured <= record.bound:
        ratio = record.bound / record.measured if record.measured else float("inf")
        return (
            f"The rate is admissible and no assumption is seen to fail. The bound is {_times(ratio)} what was measured."
        )
    if record.holds:
        return (
            "The rate is admissible and no assumption is seen to fail, but more was measured than the bound: "
            "L, L_max or σ² are larger elsewhere than where they were estimated."
        )
    why = []
    if not record.admissible:
        most = f"{record.largest_rate:.3g}"
        why.append(f"η = {record.highest_rate:.3g} is {_times(record.excess)} the largest admissible rate, {most}")
    if record.broken:
        why.append(f"not met: {', '.join(one.name for one in record.broken)}")
    return f"The bound does not hold for this training and is shown as orientation ({'; '.join(why)})."


def effort(record: TheoryRecord) -> str:
    """Say what was computed for it."""
    return (
        f"{record.evaluations:,} gradients and Hessian products, as much as {record.passes:,.0f} passes over the rows; "
        f"{duration(record.seconds)} with {count(record.rounds, 'round')} of training"
    )


def theory_view(record: TheoryRecord) -> Mapping[str, Any]:
    """Return what the template of the section needs."""
    return {
        "record": record,
        "verdict": verdict(record),
        "figures": [(picture.caption, Markup(picture.svg())) for picture in theory_pictures(record)],  # noqa: S704
        "sides": sides(record),
        "constants": constants(record),
        "assumptions": assumptions(record),
        "effort": effort(record),
    }


def _condition(record: TheoryRecord) -> tuple[str, str]:
    share = f"η is {record.excess:.3g} times the largest admissible rate"
    return ("yes" if record.admissible else "no"), share


def _verdict(one: Assumption) -> str:
    return "unclear" if one.met is None else "yes" if one.met else "no"


def _rate(record: TheoryRecord) -> str:
    if record.highest_rate > record.rate:
        return f"learning rate, the mean; the highest is {_number(record.highest_rate)}"
    return "learning rate"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _times(ratio: float) -> str:
    return f"{ratio:,.3g} times" if ratio < 1000 else f"{ratio:,.0f} times"
