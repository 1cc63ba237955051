"""A sweep, or several runs, as one HTML page; its figures and numbers as files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from tdcd.costs import Costs
from tdcd.errors import RunError
from tdcd.files import flat, write_atomically
from tdcd.reports.advice import advice
from tdcd.reports.figures import Bars, Curve, Drawing, Picture
from tdcd.reports.findings import claims, describe_win, time_to, winners
from tdcd.reports.frame import LOSS, Measure, evaluation_frame
from tdcd.reports.lines import Line
from tdcd.reports.page import fill, forget_extras, pictures, who
from tdcd.reports.pricing import has_ledger, times, traffic_by_round
from tdcd.reports.quality import quality_pictures
from tdcd.reports.remarks import remarks
from tdcd.reports.splits import INTERVALS, describe_failure, measure_table
from tdcd.reports.study import Panel, Study
from tdcd.reports.words import PLUS_MINUS, WAYS, Table, about, duration, format_setting, mean, number, size, time
from tdcd.runs.reader import RunRecord

Drawn = tuple[Drawing, str]
"""A figure and its SVG."""
RANGE = np.logspace(-1, 3, 41)
"""Latencies over which times to a target are drawn."""
DRAWN = {
    "training": "Seeds draw first weights and mini-batches; the partition of the data is the same in all runs.",
    "partition": "Seeds draw first weights, mini-batches and the partition of the data: what is held out, who has it.",
    "folds": "Each fold tests what was trained on the others.",
    "splits": "Each split holds out other test samples.",
}
"""What the seeds of a sweep change."""
HIDDEN = ("run", "place", "kept", "seconds")
"""Columns of a frame that are not for CSV files."""


def write_study(study: Study, directory: Path | str) -> Path:
    """Write ``report.html`` and a folder ``report`` with its figures (SVG, PNG) and numbers (CSV); return the page."""
    directory = Path(directory)
    page = directory / "report.html"
    try:
        drawn = [(panel, [(picture, picture.svg()) for picture in _pictures(study, panel)]) for panel in study.panels]
        text = _render(study, drawn)
        tables = {
            "results": study.frame.filter("kept").select(pl.exclude(*HIDDEN, "^time_at_t_comm_.*$")),
            "curves": study.frame.select(pl.exclude(*HIDDEN, "status")),
        }
    except (LookupError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        raise RunError(f"{directory}: a file of it is damaged: {type(error).__name__}: {error}") from error
    write_extras(directory, [picture for _, own in drawn for picture in own], tables)
    write_atomically(page, text)
    return page


def write_run_extras(run: RunRecord, metric: str | None = None) -> None:
    """Write a run's figures, its history and the ledger of its rounds into its folder ``report``."""
    sent = traffic_by_round(run) if has_ledger(run) else []
    ledger = {"round": range(1, len(sent) + 1), **{way: [getattr(one, way) for one in sent] for way in WAYS}}
    history = evaluation_frame({"": run}).select(pl.exclude(*HIDDEN, "status", "seed"))
    figures = [*pictures(run, metric), *(quality_pictures(run.quality) if run.quality else ())]
    drawn = [(picture, picture.svg()) for picture in figures]
    write_extras(run.path, drawn, {"history": history, "traffic": pl.DataFrame(ledger)})


def write_extras(directory: Path, drawn: Sequence[Drawn], tables: Mapping[str, pl.DataFrame]) -> None:
    """Write figures and tables into the folder ``report``."""
    folder = directory / "report"
    try:
        forget_extras(directory)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}") from error
    for picture, svg in drawn:
        write_atomically(folder / f"{picture.name}.svg", svg)
        write_atomically(folder / f"{picture.name}.png", picture.png())
    for name, table in tables.items():
        write_atomically(folder / f"{name}.csv", table.write_csv())


def _render(study: Study, drawn: Sequence[tuple[Panel, Sequence[Drawn]]]) -> str:
    panels = [
        {
            "title": panel.title,
            "figures": [(picture.caption, Markup(svg)) for picture, svg in own],  # noqa: S704
            "results": _results(study, panel),
            "times": _times(study, panel, study.target) if study.target is not None else ([], []),
            "wins": _wins(study, panel, study.target),
            "traffic": _traffic(panel),
        }
        for panel, own in drawn
    ]
    first = max((run for run in study.runs if run.history), key=lambda run: len(run.federation.silos))
    return fill(
        "study.html",
        title=study.title,
        study=study,
        run=first,
        cards=list(_cards(study)),
        measure=study.measure.label,
        every=_every(study),
        drawn=first.path.name,
        panels=panels,
        remarks=remarks(study),
        findings=advice(study) if study.sweep else [],
        target_rule=_target_rule(study),
        claims=claims(study) if study.over == "seeds" else [],
        rates=_rates(study),
        tried=study.sweep.get("select", {}).get("iterations"),
        chosen_by=study.sweep.get("select", {}).get("by", "training"),
        costs=[
            (key, format_setting(value))
            for key, value in flat(study.costs.model_dump(exclude_none=True))
            if key != "t_comm"
        ],
        sweep=[
            (key, format_setting(value)) for key, value in flat(study.sweep) if value and not key.startswith("costs.")
        ],
        settings=[(key, format_setting(value)) for key, value in study.asked.items()],
        splits=measure_table(study.splits) if study.splits else None,
        intervals=INTERVALS,
        failures=list(map(describe_failure, study.splits.failures)) if study.splits else [],
        plus_minus=PLUS_MINUS.format(study.over) if any(len(line.visible_runs) > 1 for line in study.lines) else "",
        drawn_by_seeds=DRAWN.get(study.sweep.get("seeds_of", ""), ""),
        seeds=sorted({int(run.job["training"]["seed"]) for run in study.runs}),
        **who(first),
    )


def _target_rule(study: Study) -> str:
    """Say which value is the target, and when a run counts as having reached it."""
    if study.wanted is not None:
        value = "The target was asked for"
    else:
        value = (
            "The target is the worst value, in two digits, that a run of these lines ends with: all of them reach it"
        )
    same = ", the same in all panels" if len(study.panels) > 1 else ""
    return (
        f"{value}{same}. A run reaches it at the first evaluation from which on it stays at least as good to the end; "
        "evaluations while clients were away do not count."
    )


def _every(study: Study) -> int:
    """Return the most local steps between two evaluations."""
    return max(study.frame.filter(place=1)["iteration"], default=0)


def _cards(study: Study) -> Iterator[tuple[str, str]]:
    yield "runs", f"{len(study.runs):,}"
    ends = {line.full: line.finals(study.measure) for line in study.lines if line.variant == "federation"}
    means = {name: mean(values) for name, values in ends.items() if values}
    if means:
        best = study.measure.best(means.values())
        yield f"{study.measure.label}, {next(name for name in means if means[name] == best)}", number(best)
    yield "computing time", duration(sum(study.frame.group_by("run").last()["seconds"]))
    yield "training samples", f"{study.runs[0].federation.samples:,}"
    yield "test samples", f"{study.runs[0].federation.test_samples:,}"


def _pictures(study: Study, panel: Panel) -> Iterator[Drawing]:
    """Yield the figures of a panel: the metric over time units, loss and metric over local steps, who is first."""
    stem = "".join(c if c.isalnum() else "-" for c in panel.title).strip("-").replace("---", "-")
    stem = f"{stem}-" if stem else ""
    measure, target = study.measure, study.target
    for t in study.t_comm:
        ends = sorted(times(line.visible_runs[0], study.costs.at(t))[-1] for line in panel.lines if line.visible_runs)
        limit = ends[-2] if len(ends) > 2 and ends[-1] > 1.5 * ends[-2] else None
        caption = f"{measure.label} over time, t_comm = {t:g}{' (the slowest line goes on)' if limit else ''}"
        curves = list(_curves(study, panel, measure, t))
        yield Picture(f"{stem}time-{t:g}", caption, "time units", measure.label, curves, limit=limit)
    losses = list(_curves(study, panel, LOSS))
    positive = all(value > 0 for curve in losses for value in curve.y)
    caption = "training loss over local steps"
    yield Picture(f"{stem}loss", caption, "local steps", "training loss", losses, "y" if positive else "")
    if measure != LOSS:
        scores = list(_curves(study, panel, measure))
        yield Picture(f"{stem}metric", f"{measure.label} over local steps", "local steps", measure.label, scores)
    if target is not None and winners(panel, measure, target, study.costs):
        first = [_to_target(study, line, target, index) for index, line in enumerate(panel.lines)]
        caption = f"time to {measure.label} {target:g}, by t_comm"
        yield Picture(f"{stem}first", caption, "t_comm", "time units", [curve for curve in first if curve], "xy")
    sending = [line for line in (*panel.lines, *panel.baselines) if sum(line.traffic().values())]
    if sending:
        most = max(sum(line.traffic().values()) for line in sending)
        unit, scale = ("GB", 1e9) if most >= 1e9 else ("MB", 1e6)
        parts = {name: [line.traffic()[way] / scale for line in sending] for way, name in WAYS.items()}
        yield Bars(f"{stem}traffic", "sent in a whole run", unit, [line.label for line in sending], parts)


def _curves(study: Study, panel: Panel, measure: Measure, t_comm: float | None = None) -> Iterator[Curve]:
    """Yield the curves of a panel; over time, what is all in one place is a level: it has no rounds to wait for."""
    costs = None if t_comm is None else study.costs.at(t_comm)
    places = {repr(line.values.get(study.varied)): index for index, line in enumerate(panel.lines)}
    for index, line in enumerate(panel.lines):
        yield from _curve(line, measure, costs, index, "main")
    for line in _shown(panel.baselines, study.measure):
        if line.variant == "one-tier":
            yield from _curve(line, measure, costs, places.get(repr(line.values.get(study.varied)), 6), "thin")
        else:
            colour = "#000000" if line.variant == "central" else "#777777"
            yield from _curve(line, measure, costs, colour, "main" if costs is None else "level")


def _shown(baselines: Sequence[Line], measure: Measure) -> list[Line]:
    """Return baselines to draw: of the silos alone only the one that is best in the end."""
    alone = {id(line): line.finals(measure) for line in baselines if line.variant.endswith(" alone")}
    ends = {key: mean(values) for key, values in alone.items() if values}
    best = next((key for key in ends if ends[key] == measure.best(ends.values())), None)
    return [line for line in baselines if not line.variant.endswith(" alone") or id(line) == best]


def _curve(line: Line, measure: Measure, costs: Costs | None, colour: int | str, kind: Any) -> Iterator[Curve]:
    band = line.band(measure, costs)
    if not len(band.x):
        return
    several = len(line.visible_runs) > 1
    low, high = (band.low.tolist(), band.high.tolist()) if several else (None, None)
    yield Curve(line.label, band.x.tolist(), band.mean.tolist(), low, high, colour, kind)


def _to_target(study: Study, line: Line, target: float, index: int) -> Curve | None:
    result = time_to(line, study.measure, target, study.costs)
    return Curve(line.label, RANGE.tolist(), [result(t) for t in RANGE.tolist()], colour=index) if result else None


def _results(study: Study, panel: Panel) -> Table:
    score = study.measure.label
    header = ["rate", "training loss", score, f"best {score}", "rounds", "wall time"]
    rows = []
    for line in (*panel.lines, *panel.baselines):
        name = line.label + (f" ({line.diverged} diverged)" if line.diverged else "")
        if not line.runs:
            rows.append((name, ["every rate diverged", *[""] * (len(header) - 1)]))
            continue
        cells = [
            "–" if line.rate is None else f"{line.rate:g}",
            about(line.finals(LOSS)),
            about(line.finals(study.measure)),
            about(line.bests(study.measure)),
            f"{line.rounds:,}",
            duration(mean(line.ends()["seconds"].to_list())) if line.visible_runs else "–",
        ]
        rows.append((name, cells))
    return header, rows


def _times(study: Study, panel: Panel, target: float) -> Table:
    """Return the table of what it takes to reach the target."""
    header = ["local steps", "rounds", *(f"time at t_comm {t:g}" for t in study.t_comm), "bytes sent"]
    rows = []
    for line in (*panel.lines, *panel.baselines):
        there = line.reached(study.measure, target)
        spent = [line.times_to(study.measure, target, study.costs.at(t)) for t in study.t_comm]
        if None in spent:
            text = f"reached by {len(there)} of {len(line.runs)} runs" if len(there) else "not reached"
            rows.append((line.label, [text, *[""] * (len(header) - 1)]))
            continue
        cells = [_range(values or []) for values in (there["iteration"].to_list(), there["round"].to_list(), *spent)]
        sent = mean(there.select(pl.sum_horizontal(*WAYS)).to_series().to_list())
        rows.append((line.label, [*cells, "–" if line.visible_runs[0].in_one_place else size(sent)]))
    return header, rows


def _wins(study: Study, panel: Panel, target: float | None) -> list[str]:
    parts = [] if target is None else winners(panel, study.measure, target, study.costs)
    return [describe_win(win) for win in parts]


def _range(values: Sequence[float]) -> str:
    """Write a mean, and from where to where it reaches."""
    text = time(mean(values))
    return text if min(values) == max(values) else f"{text} ({time(min(values))} … {time(max(values))})"


def _traffic(panel: Panel) -> Table:
    header = [f"{name}, a round" for name in WAYS.values()] + ["a whole run"]
    rows = []
    for line in (*panel.lines, *panel.baselines):
        sent = line.traffic()
        if line.rounds and any(sent.values()):
            rows.append((line.label, [*(size(sent[way] / line.rounds) for way in WAYS), size(sum(sent.values()))]))
    return header, rows


def _rates(study: Study) -> Table:
    """Return the table of rates tried: the loss that each led to, the chosen one marked."""
    lines = [line for line in study.lines if line.tried]
    rates = sorted({rate for line in lines for rate in line.tried or {}}, reverse=True)
    rows = []
    for line in lines:
        tried = line.tried or {}
        losses = ["diverged" if tried.get(rate, 0.0) is None else number(tried.get(rate)) for rate in rates]
        marked = [f"{loss} ✓" if rate == line.rate else loss for rate, loss in zip(rates, losses, strict=True)]
        rows.append((line.full, marked))
    return [f"{rate:g}" for rate in rates], rows
