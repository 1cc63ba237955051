"""Several runs seen together: the lines of a sweep, or runs that somebody lists."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, isfinite, log10
from pathlib import Path
from typing import Any

import polars as pl

from tdcd.costs import T_COMM, Costs
from tdcd.errors import JobError, RunError, join_names
from tdcd.files import flat
from tdcd.reports.frame import Measure
from tdcd.reports.lines import Line, setting
from tdcd.reports.pricing import check_speeds
from tdcd.reports.words import count, format_setting, metric_of, speak
from tdcd.runs.cross_validation import CrossValidationRecord, read_cross_validation
from tdcd.runs.layout import holds_run, holds_sweep
from tdcd.runs.reader import RunRecord, read_run, read_sweep
from tdcd.runs.records import SweepRecord


@dataclass(frozen=True)
class Panel:
    """Lines that belong in one picture: they differ in one setting."""

    title: str
    """What they have in common, such as "K = 20"; empty if there is one panel only."""
    lines: tuple[Line, ...]
    baselines: tuple[Line, ...]


def common_target(lines: Sequence[Line], measure: Measure) -> float | None:
    """Return the worst value that a run ends with, in two digits: every run of every line reaches it and stays there.

    There is none where a run has it from the beginning.
    """
    lasts = [value for line in lines for value in line.lasts(measure)]
    if not lasts or len(lasts) < sum(len(line.visible_runs) for line in lines):
        return None
    worst = max(lasts) if measure.lower else min(lasts)
    result = _two_digits(worst, up=measure.lower)
    begun = any((line.reached(measure, result)["place"] == 0).any() for line in lines)
    return None if begun else result


@dataclass(frozen=True)
class Study:
    """All of it."""

    name: str
    title: str
    varied: str
    """What the lines of a picture differ in, such as "Q"."""
    measure: Measure
    """What the runs are compared by."""
    t_comm: tuple[float, ...]
    wanted: float | None
    """The target that somebody asked for."""
    costs: Costs
    panels: tuple[Panel, ...]
    planned: int
    """Runs that there should be."""
    sweep: Mapping[str, Any]
    """The sweep file; empty for runs that somebody listed."""
    asked: Mapping[str, Any]
    """Settings that all runs have in common."""
    splits: CrossValidationRecord | None = None
    """What a cross-validation came to."""

    @property
    def over(self) -> str:
        """What the runs of a line differ in: "seeds", "folds" or "splits"."""
        ways = self.sweep.get("seeds_of", "")
        return ways if ways in ("folds", "splits") else "seeds"

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line once, the baselines last."""
        parts = [line for panel in self.panels for line in panel.lines]
        parts += [line for panel in self.panels for line in panel.baselines]
        distinct: dict[str, Line] = {}
        for line in parts:
            distinct.setdefault(self.name_of(line), line)
        return tuple(distinct.values())

    def name_of(self, line: Line) -> str:
        """Return what tells a line from all others: what it varies, or where runs that somebody listed lie."""
        return line.full if self.sweep else line.label

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Every evaluation of every run, with what tells its line from others, and its time at every ``t_comm``."""
        frames = []
        for line in self.lines:
            own = {"line", "variant", *line.frame.columns}
            facts = {"line": self.name_of(line), "variant": line.variant}
            for axis, value in line.values.items():
                facts[f"varied {axis}" if axis in own else axis] = format_setting(value)
            facts.pop("rate", None)  # it has a column of its own
            words = [pl.lit(value).alias(name) for name, value in facts.items()]
            rate = pl.lit(line.rate, pl.Float64).alias("rate")
            prices = [line.times(self.costs.at(t)).alias(f"time_at_t_comm_{t:.15g}") for t in self.t_comm]
            frames.append(line.frame.select(*words, "seed", rate, pl.exclude("seed"), *prices))
        return pl.concat(frames, how="diagonal_relaxed")

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """Every run once."""
        return tuple({run.path: run for line in self.lines for run in line.runs}.values())

    @property
    def status(self) -> str:
        """Tell in a word how far it is."""
        ended = sum(run.status in ("finished", "diverged") for run in self.runs)
        return "finished" if ended >= self.planned else f"{ended} of {self.planned} runs"

    @cached_property
    def target(self) -> float | None:
        """The value of the metric that times are about, the same in all panels.

        It is the one that somebody asked for, or one that all lines reach; baselines need not.
        """
        if self.wanted is not None:
            return self.wanted
        return common_target([line for panel in self.panels for line in panel.lines], self.measure)


def read_study(
    paths: Sequence[Path | str],
    *,
    metric: str | None = None,
    t_comm: Sequence[float] | None = None,
    target: float | None = None,
    costs: Costs | None = None,
) -> Study:
    """Read a sweep, or several runs and sweeps to be seen together.

    Raises:
        RunError: something is missing or damaged; names the file.
        JobError: the target is no number.
    """
    if target is not None and not isfinite(target):
        raise JobError(f"target: {target} is no value that a metric could reach; give one such as 0.9")
    try:
        return _read_study([Path(path) for path in paths], metric, t_comm, target, costs)
    except (LookupError, TypeError, AttributeError, ValueError, pl.exceptions.PolarsError) as error:
        text = join_names(paths)
        raise RunError(f"{text}: a file of it is damaged: {type(error).__name__}: {error}") from error


def _read_study(
    paths: Sequence[Path],
    metric: str | None,
    t_comm: Sequence[float] | None,
    target: float | None,
    costs: Costs | None,
) -> Study:
    if len(paths) == 1 and holds_sweep(paths[0]):
        plan = read_sweep(paths[0])
        sweep, picture = plan.sweep, plan.sweep["report"]
        grid, alone = _lines(paths[0], plan)
        panels = _panels(grid, alone, plan.lines)
        planned = len(
            {run.path for combination in plan.combinations if not combination.hopeless for run in combination.runs}
        )
        name, title, varied = sweep["name"], sweep["title"], plan.lines
        stored = Costs.model_validate(sweep["costs"])
    else:
        grid, sweep, picture, varied, stored = [], {}, {}, "run", Costs()
        for path in paths:
            if holds_sweep(path):
                federated, alone = _lines(path, read_sweep(path))
                grid += [
                    replace(line, label=f"{_distinct(path, paths)}: {line.label}") for line in (*federated, *alone)
                ]
            else:
                run = read_run(path)
                rate = run.job["training"]["rate"]
                grid.append(Line(_distinct(path, paths), run.variant, {}, (run,), rate))
        panels, planned = (Panel("", tuple(grid), ()),), sum(len(line.runs) for line in grid)
        name, title = "comparison", f"{count(len(grid), 'run')} compared"
    runs = [run for panel in panels for line in (*panel.lines, *panel.baselines) for run in line.runs]
    if not any(run.history for run in runs):
        tried = [line for panel in panels for line in panel.lines if line.tried]
        why = "; every rate diverged, so try smaller ones" if tried and all(line.rate is None for line in tried) else ""
        raise RunError(f"{join_names(paths)}: no run of it has begun{why}")
    priced = stored.under(costs)
    check_speeds(priced, runs)
    return Study(
        name=name,
        title=title or name,
        varied=varied,
        measure=_measure(metric or picture.get("metric"), runs),
        t_comm=tuple(dict.fromkeys(t_comm or picture.get("t_comm") or T_COMM)),
        wanted=target if target is not None else picture.get("target"),
        costs=priced,
        panels=panels,
        planned=planned,
        sweep=sweep,
        asked=_common(runs),
        splits=read_cross_validation(paths[0]) if len(paths) == 1 and holds_sweep(paths[0]) else None,
    )


def _lines(path: Path, plan: SweepRecord) -> tuple[list[Line], list[Line]]:
    """Return the lines of a sweep's grid and those of its baselines, as far as they have begun."""
    grid: list[Line] = []
    baselines: list[Line] = []
    for record in plan.combinations:
        places = [path / run.path for run in record.runs]
        runs = tuple(read_run(place, record.variant) for place in places if holds_run(place))
        if not runs and not record.hopeless:
            continue
        tried = {trial.rate: trial.loss for trial in record.trials} or None
        line = Line("", record.variant, record.values, runs, record.rate, tried)
        line = replace(line, label=line.full or "federation")
        (grid if record.variant == "federation" else baselines).append(line)
    return grid, baselines


def _panels(grid: Sequence[Line], baselines: Sequence[Line], varied: str) -> tuple[Panel, ...]:
    """Put lines that differ in ``varied`` only into one panel, with the baselines that go with it."""
    groups: dict[str, list[Line]] = {}
    for line in grid:
        title = ", ".join(setting(axis, value) for axis, value in line.values.items() if axis != varied)
        label = setting(varied, line.values[varied]) if varied in line.values else "federation"
        groups.setdefault(title, []).append(replace(line, label=label))
    panels = []
    for title, lines in groups.items():
        own = lines[0].values
        fitting = [b for b in baselines if all(b.values[a] == own.get(a) for a in b.values if a != varied)]
        panels.append(Panel(title, tuple(lines), tuple(_baselines(fitting, varied))))
    return tuple(panels)


def _baselines(lines: Iterable[Line], varied: str) -> list[Line]:
    """Name baselines within a panel."""
    result = []
    for line in lines:
        word = speak(line.variant)
        text = f"{word}, {setting(varied, line.values[varied])}" if varied in line.values else word
        result.append(replace(line, label=text))
    return result


def _measure(metric: str | None, runs: Sequence[RunRecord]) -> Measure:
    """Return what to compare runs by: a metric on the test samples, or else on what there is."""
    ended = [run.history[-1] for run in runs if run.history]
    part = next((part for part in ("test", "validation") if all(line.measures(part) for line in ended)), "train")
    known = {name for line in ended for name in line.measures(part)}
    if metric is None:
        preferred = metric_of(runs[0].federation.loss, known)
        return Measure(part, preferred)
    if metric not in known:
        raise RunError(f"metric: '{metric}' was not measured; there is {join_names(sorted(known), 10)}")
    return Measure(part, metric)


def _distinct(path: Path, paths: Sequence[Path]) -> str:
    """Return a directory's name, or its whole path where another has the same name."""
    return path.name if [other.name for other in paths].count(path.name) == 1 else str(path)


def _two_digits(value: float, *, up: bool) -> float:
    """Round to two digits, up or down."""
    if value == 0:
        return 0.0
    scale = 10.0 ** (min(0, floor(log10(abs(value)))) - 1)
    if abs(value) >= 0.1:
        scale = 0.01
    return float(round((ceil if up else floor)(value / scale) * scale, 12))


def _common(runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Return the settings that all runs have in common."""
    settings = [dict(flat(run.job)) for run in runs]
    return {
        key: value for key, value in settings[0].items() if all(other.get(key, ...) == value for other in settings[1:])
    }
