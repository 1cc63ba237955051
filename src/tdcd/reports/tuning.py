"""A search for good settings as one HTML page."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from tdcd.files import flat, write_atomically
from tdcd.reports.figures import Curve, Picture
from tdcd.reports.page import fill
from tdcd.reports.words import Table, duration, format_setting, label, number
from tdcd.runs.tuning import TrialPoint, TuningRecord

SHOWN = 30
"""Trials that are listed."""


def write_tuning(record: TuningRecord, directory: Path) -> Path:
    """Write ``report.html``; return its path."""
    page = directory / "report.html"
    text = fill(
        "tuning.html",
        title=f"Tuning {record.job}",
        record=record,
        measure=_measure(record),
        cards=_cards(record),
        figure=Markup(_picture(record).svg()),  # noqa: S704
        steps=by_local_steps(record),
        target=common_target(record),
        trials=_trials(record),
        more=max(0, len(record.trials) - SHOWN),
        settings=[(key, format_setting(value)) for key, value in flat(record.settings)],
        costs=[(key, format_setting(value)) for key, value in flat(record.costs)],
    )
    write_atomically(page, text)
    return page


def by_local_steps(record: TuningRecord) -> Table:
    """Return what the best trial of each Q came to, and when it reached what all of them reach."""
    target = common_target(record)
    rows = []
    for steps in sorted({trial.local_steps for trial in record.trials}):
        best = record.best_of(steps)
        if best is None:
            rows.append((f"Q = {steps}", ["every rate diverged", "–", "–", "–"]))
            continue
        reached = None if target is None else record.reached(best, target)
        cells = [
            f"{best.settings['rate']:g}",
            _hub_step(best),
            f"{number(best.loss)} after {best.times[-1]:,.0f}",
            "–" if reached is None else f"{reached:,.0f}",
        ]
        rows.append((f"Q = {steps}", cells))
    return ["best rate", "hub step", f"validation {_measure(record)}", "time to the target"], rows


def common_target(record: TuningRecord) -> float | None:
    """Return the value that the best trials of all Q reach, or the one that was asked for."""
    if record.target is not None:
        return record.target
    bests = [record.best_of(steps) for steps in {trial.local_steps for trial in record.trials}]
    ends = [best.loss for best in bests if best is not None and best.loss is not None]
    if not ends:
        return None
    return max(ends) if record.falling else min(ends)


def _hub_step(trial: TrialPoint) -> str:
    kind = trial.settings["aggregator"]
    return f"{kind['size']:g}" if isinstance(kind, dict) and "size" in kind else "1"


def _measure(record: TuningRecord) -> str:
    return label(record.measure)


def _cards(record: TuningRecord) -> list[tuple[str, str]]:
    if not record.chosen:
        return [("chosen", "nothing: every rate diverged")]
    chosen = record.settings
    aggregator = chosen["aggregator"]
    step = f"{aggregator['size']:g}" if isinstance(aggregator, dict) and "size" in aggregator else "1"
    return [
        ("local steps, Q", str(chosen["local_steps"])),
        ("rate", f"{chosen['rate']:g}"),
        ("schedule", chosen["schedule"]["kind"]),
        ("hub step, β", step),
        ("rounds", f"{chosen['rounds']:,}"),
        ("whole trainings, of a full grid's", f"{record.cost:.1f} of {record.grid:g}"),
        ("time", duration(record.seconds)),
    ]


def _picture(record: TuningRecord) -> Picture:
    shown: list[tuple[str, TrialPoint]] = []
    for steps in sorted({trial.local_steps for trial in record.trials}):
        best = record.best_of(steps)
        if best:
            shown.append((f"Q = {steps}", best))
    chosen = next((trial for trial in record.trials if trial.name == record.chosen), None)
    curves = [Curve(name, trial.times[1:], trial.values[1:]) for name, trial in shown]  # all begin alike
    if chosen and all(chosen is not trial for _, trial in shown):
        curves.append(Curve("chosen", chosen.times[1:], chosen.values[1:], colour="#000000"))
    return Picture("tuning", "", "simulated time", f"validation {_measure(record)}", curves)


def _trials(record: TuningRecord) -> Table:
    sign = 1 if record.falling else -1
    order: Sequence[TrialPoint] = sorted(
        record.trials, key=lambda t: (-t.rung, t.loss is None, sign * (t.loss if t.loss is not None else 0.0))
    )
    rows = [
        (
            trial.name.replace(",", ", ") + (" ✓" if trial.name == record.chosen else ""),
            [
                f"{trial.times[-1]:,.0f}" if trial.times else "–",
                "diverged" if trial.loss is None else number(trial.loss),
                trial.trouble or "",
            ],
        )
        for trial in order[:SHOWN]
    ]
    return ["trained for", f"validation {_measure(record)}", ""], rows
