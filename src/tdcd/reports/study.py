"""Several runs seen together: the lines of a sweep, or runs that somebody lists."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcd.costs import Costs
from tdcd.errors import RunError, listed
from tdcd.files import check_run, flat
from tdcd.reports.files import RunFiles, read_run, variant_of
from tdcd.reports.pricing import times

Array = npt.NDArray[np.float64]
LOWER = {"loss", "mse"}
"""Measures that are better the lower they are."""
PREFERRED = {"cross-entropy": "accuracy", "binary-cross-entropy": "auroc", "squared-error": "r2"}
"""The metric that is drawn where nobody says which."""


@dataclass(frozen=True)
class Band:
    """Several runs as one curve: the mean over them, the lowest and the highest."""

    x: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Reached:
    """When the runs of a line first reached a target; nothing for those that did not."""

    rounds: Sequence[int | None]
    iterations: Sequence[int | None]

    @property
    def all(self) -> bool:
        """Tell whether every run reached it."""
        return bool(self.rounds) and None not in self.rounds


@dataclass(frozen=True)
class Line:
    """Runs that differ in nothing but their seed."""

    label: str
    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    values: Mapping[str, Any]
    """What it varies, by the names that figures use."""
    runs: tuple[RunFiles, ...]
    rate: float | None = None
    tried: Mapping[float, float | None] | None = None
    """The training loss that each rate led to, where one was chosen; nothing for those that diverged."""

    @property
    def full(self) -> str:
        """A label that also tells what all lines of its picture have in common."""
        words = [] if self.variant == "federation" else [self.variant.replace("-", " ")]
        return ", ".join([*words, *(_setting(axis, value) for axis, value in self.values.items())]) or self.label

    @property
    def steps(self) -> int:
        """Q."""
        return int(self.runs[0].job["training"]["local_steps"])

    @property
    def diverged(self) -> int:
        """How many of its runs diverged."""
        return sum(run.result.get("status") == "diverged" for run in self.runs)

    def band(self, part: str, measure: str, costs: Costs | None = None) -> Band:
        """Return a measure on a part of the data over local steps, or over time if costs are given.

        Runs that are under way are shown as far as all have come.
        """
        length = min((len(run.history) for run in self.runs), default=0)
        y = np.array([[line[part].get(measure, np.nan) for line in run.history[:length]] for run in self.runs])
        y = y.reshape(len(self.runs), length)
        if costs is None:
            x = np.array([[line["iteration"] for line in run.history[:length]] for run in self.runs], dtype=np.float64)
        else:
            x = np.array([times(run, costs)[:length] for run in self.runs])
        return Band(x.reshape(len(self.runs), length).mean(0), y.mean(0), y.min(0), y.max(0))

    def finals(self, part: str, measure: str) -> list[float]:
        """Return what each run ended with."""
        return [run.final[part][measure] for run in self.runs if run.history and measure in run.final[part]]

    def bests(self, measure: str) -> list[float]:
        """Return the best test measure of each run at any of its evaluations."""
        best = min if measure in LOWER else max
        found = [[line["test"][measure] for line in run.history if measure in line["test"]] for run in self.runs]
        return [best(values) for values in found if values]

    def reached(self, measure: str, target: float) -> Reached:
        """Return when each run first had a test measure at least as good as the target."""
        first = []
        for run in self.runs:
            lines = [line for line in run.history if measure in line["test"]]
            good = (line for line in lines if _good(line["test"][measure], target, measure))
            first.append(next(good, None))
        return Reached(
            [line["round"] if line else None for line in first], [line["iteration"] if line else None for line in first]
        )

    def times_to(self, measure: str, target: float, costs: Costs) -> list[float | None]:
        """Return the time that each run needs to reach a target; nothing for those that did not."""
        found: list[float | None] = []
        for run, number in zip(self.runs, self.reached(measure, target).rounds, strict=True):
            places = [line["round"] for line in run.history]
            found.append(None if number is None else times(run, costs)[places.index(number)])
        return found

    def traffic(self) -> dict[str, float]:
        """Return the bytes that a run sent by direction, the mean over seeds; nothing is sent in one place."""
        ways = ("hub_to_client", "client_to_hub", "hub_to_hub")
        if any(run.in_one_place or not run.history for run in self.runs):
            return dict.fromkeys(ways, 0.0)
        return {way: float(np.mean([run.history[-1]["traffic"][way] for run in self.runs])) for way in ways}


@dataclass(frozen=True)
class Panel:
    """Lines that belong in one picture: they differ in one setting."""

    title: str
    """What they have in common, such as "K = 20"; empty if there is one panel only."""
    lines: tuple[Line, ...]
    baselines: tuple[Line, ...]

    def target(self, measure: str) -> float | None:
        """Return a value of a measure that every run of every line reaches, in two digits."""
        bests = [value for line in self.lines for value in line.bests(measure)]
        if not bests or len(bests) < sum(len(line.runs) for line in self.lines):
            return None
        if measure in LOWER:
            return float(np.ceil(max(bests) * 100) / 100)
        return float(np.floor(min(bests) * 100) / 100)


@dataclass(frozen=True)
class Study:
    """All of it."""

    name: str
    title: str
    varied: str
    """What the lines of a picture differ in, such as "Q"."""
    metric: str
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

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every line once, the baselines last."""
        found = [line for panel in self.panels for line in panel.lines]
        found += [line for panel in self.panels for line in panel.baselines]
        return tuple({line.runs[0].path: line for line in reversed(found)}.values())[::-1]

    @property
    def runs(self) -> tuple[RunFiles, ...]:
        """Every run once."""
        return tuple(run for line in self.lines for run in line.runs)

    @property
    def status(self) -> str:
        """Tell in a word how far it is."""
        ended = sum(run.result.get("status") in ("finished", "diverged") for run in self.runs)
        return "finished" if ended >= self.planned else f"{ended} of {self.planned} runs"

    def target(self, panel: Panel) -> float | None:
        """Return the value of the metric that a panel's table of times is about."""
        return self.wanted if self.wanted is not None else panel.target(self.metric)

    @property
    def goal(self) -> float | None:
        """The value of the metric to reach: what somebody asked for, or in a sweep one that all lines reach."""
        if self.wanted is not None or not self.sweep:
            return self.wanted
        found = [self.target(panel) for panel in self.panels]
        known = [value for value in found if value is not None]
        easiest = max if self.metric in LOWER else min
        return easiest(known) if known and len(known) == len(found) else None


def is_sweep(path: Path) -> bool:
    """Tell whether a directory is that of a sweep."""
    return (path / "sweep.json").exists()


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
    """
    try:
        return _read_study([Path(path) for path in paths], metric, t_comm, target, costs)
    except (LookupError, TypeError, AttributeError) as error:
        told = listed(paths)
        raise RunError(f"{told}: a file of it is damaged: {type(error).__name__}: {error}") from error


def _read_study(
    paths: Sequence[Path],
    metric: str | None,
    t_comm: Sequence[float] | None,
    target: float | None,
    costs: Costs | None,
) -> Study:
    if len(paths) == 1 and is_sweep(paths[0]):
        plan = _plan(paths[0])
        sweep, picture = plan["sweep"], plan["sweep"]["report"]
        grid, alone = _lines(paths[0], plan)
        panels, planned = _panels(grid, alone, plan["lines"]), sum(len(c["runs"]) for c in plan["combinations"])
        name, title, varied = sweep["name"], sweep["title"], plan["lines"]
        stored = Costs.model_validate(sweep["costs"])
    else:
        grid, sweep, picture, varied, stored = [], {}, {}, "run", Costs()
        for path in paths:
            if is_sweep(path):
                federated, alone = _lines(path, _plan(path))
                grid += [replace(line, label=f"{path.name}: {line.label}") for line in (*federated, *alone)]
            else:
                check_run(path)
                run = read_run(path, variant_of(path))
                name = path.name if [p.name for p in paths].count(path.name) == 1 else str(path)
                grid.append(Line(name, run.variant, {}, (run,), run.job["training"]["rate"]))
        panels, planned = (Panel("", tuple(grid), ()),), sum(len(line.runs) for line in grid)
        name, title = "comparison", f"{len(grid)} runs compared"
    runs = [run for panel in panels for line in (*panel.lines, *panel.baselines) for run in line.runs]
    if not any(run.history for run in runs):
        raise RunError(f"{listed(paths)}: no run of it has begun")
    chosen = metric or picture.get("metric") or _metric(runs)
    _check_metric(chosen, runs)
    return Study(
        name=name,
        title=title or name,
        varied=varied,
        metric=chosen,
        t_comm=tuple(t_comm or picture.get("t_comm") or (10.0, 100.0)),
        wanted=target if target is not None else picture.get("target"),
        costs=costs or stored,
        panels=panels,
        planned=planned,
        sweep=sweep,
        asked=_common(runs),
    )


def _plan(path: Path) -> Mapping[str, Any]:
    file = path / "sweep.json"
    try:
        plan: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file}: damaged: {error}") from error
    return plan


def _lines(path: Path, plan: Mapping[str, Any]) -> tuple[list[Line], list[Line]]:
    """Return the lines of a sweep's grid and those of its baselines, as far as they have begun."""
    grid: list[Line] = []
    baselines: list[Line] = []
    for told in plan["combinations"]:
        places = [path / run["path"] for run in told["runs"]]
        runs = tuple(read_run(p, told["variant"]) for p in places if (p / "federation.json").exists())
        if not runs:
            continue
        tried = {trial["rate"]: trial["loss"] for trial in told["trials"]} or None
        line = Line("", told["variant"], told["values"], runs, told["rate"], tried)
        line = replace(line, label=line.full or "federation")
        (grid if told["variant"] == "federation" else baselines).append(line)
    return grid, baselines


def _panels(grid: Sequence[Line], baselines: Sequence[Line], varied: str) -> tuple[Panel, ...]:
    """Put lines that differ in ``varied`` only into one panel, with the baselines that go with it."""
    groups: dict[str, list[Line]] = {}
    for line in grid:
        title = ", ".join(_setting(axis, value) for axis, value in line.values.items() if axis != varied)
        label = _setting(varied, line.values[varied]) if varied in line.values else "federation"
        groups.setdefault(title, []).append(replace(line, label=label))
    panels = []
    for title, lines in groups.items():
        own = lines[0].values
        fitting = [b for b in baselines if all(b.values[a] == own.get(a) for a in b.values if a != varied)]
        panels.append(Panel(title, tuple(lines), tuple(_baselines(fitting, varied))))
    return tuple(panels)


def _baselines(lines: Iterable[Line], varied: str) -> list[Line]:
    """Name baselines within a panel."""
    found = []
    for line in lines:
        word = line.variant.replace("-", " ")
        told = f"{word}, {_setting(varied, line.values[varied])}" if varied in line.values else word
        found.append(replace(line, label=told))
    return found


def _setting(axis: str, value: Any) -> str:
    return str(value) if axis == "case" else f"{axis} = {_short(value)}"


def _metric(runs: Sequence[RunFiles]) -> str:
    """Return the metric to draw: as fits the loss, or the test loss."""
    tested: Mapping[str, Any] = next((run.history[-1]["test"] for run in runs if run.history), {})
    preferred = PREFERRED.get(runs[0].federation["loss"], "")
    return preferred if preferred in tested else "loss"


def _check_metric(metric: str, runs: Sequence[RunFiles]) -> None:
    known = {name for run in runs if run.history for name in run.history[-1]["test"]}
    if known and metric not in known:
        raise RunError(f"metric: '{metric}' was not measured on the test samples; there is {listed(sorted(known), 10)}")


def _common(runs: Sequence[RunFiles]) -> dict[str, Any]:
    """Return the settings that all runs have in common."""
    settings = [dict(flat(run.job)) for run in runs]
    return {
        key: value for key, value in settings[0].items() if all(other.get(key, ...) == value for other in settings[1:])
    }


def _good(value: float, target: float, measure: str) -> bool:
    return value <= target if measure in LOWER else value >= target


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(str(part) for _, part in flat(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
