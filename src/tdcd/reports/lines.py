"""Lines of a figure: runs that differ in nothing but their seed, and what is measured of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcd.costs import Costs
from tdcd.files import flat
from tdcd.reports.pricing import times
from tdcd.reports.words import WAYS, label, mean, speak
from tdcd.runs.reader import RunRecord
from tdcd.runs.records import Evaluation

Array = npt.NDArray[np.float64]
LOWER = {"loss", "mse"}
"""Measures that are better the lower they are."""


@dataclass(frozen=True)
class Measure:
    """Something that evaluations measure on a part of the data."""

    part: str
    """"train", "validation" or "test"."""
    name: str

    @property
    def lower(self) -> bool:
        """Tell whether it is better the lower it is."""
        return self.name in LOWER

    @property
    def label(self) -> str:
        """What people call it."""
        part = "training" if self.part == "train" else self.part
        return f"{part} {label(self.name)}"

    def of(self, line: Evaluation) -> float | None:
        """Return it as an evaluation has it; nothing if it was undefined there."""
        return line.measures(self.part).get(self.name)

    def good(self, line: Evaluation, target: float) -> bool:
        """Tell whether an evaluation is at least as good as a target."""
        value = self.of(line)
        return value is not None and (value <= target if self.lower else value >= target)

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return min(values) if self.lower else max(values)


LOSS = Measure("train", "loss")


@dataclass(frozen=True)
class Band:
    """Several runs as one curve: the mean over them, the lowest and the highest."""

    x: Array
    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Line:
    """Runs that differ in nothing but their seed."""

    label: str
    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    values: Mapping[str, Any]
    """What it varies, by the names that figures use."""
    runs: tuple[RunRecord, ...]
    """Those that have begun; none where every rate diverged."""
    rate: float | None = None
    tried: Mapping[float, float | None] | None = None
    """The training loss that each rate led to, where one was chosen; nothing for those that diverged."""

    @property
    def full(self) -> str:
        """A label that also tells what all lines of its picture have in common."""
        words = [] if self.variant == "federation" else [speak(self.variant)]
        return ", ".join([*words, *(setting(axis, value) for axis, value in self.values.items())]) or self.label

    @property
    def visible_runs(self) -> tuple[RunRecord, ...]:
        """The runs that have been evaluated and did not diverge: means are over these."""
        return tuple(run for run in self.runs if run.history and run.status != "diverged")

    @property
    def diverged(self) -> int:
        """How many of its runs diverged."""
        return sum(run.status == "diverged" for run in self.runs)

    @property
    def steps(self) -> int:
        """Q."""
        return int(self.runs[0].job["training"]["local_steps"])

    def band(self, measure: Measure, costs: Costs | None = None) -> Band:
        """Return a measure over local steps, or over time if costs are given.

        Runs that are under way are shown as far as all have come; one that stopped early stays where it stopped.
        """
        runs = [run for run in self.visible_runs if all(measure.of(line) is not None for line in run.history)]
        if not runs:
            nothing = np.empty(0)
            return Band(nothing, nothing, nothing, nothing)
        under_way = [len(run.history) for run in runs if not run.outcome]
        length = min(under_way) if under_way else max(len(run.history) for run in runs)
        longest = max(runs, key=lambda run: len(run.history))
        if costs is None:
            x = np.array([line.iteration for line in longest.history[:length]], dtype=np.float64)
        else:
            equal = [run for run in runs if len(run.history) >= length]
            x = np.array([times(run, costs)[:length] for run in equal]).mean(0)
        y = np.array([[measure.of(run.history[min(i, len(run.history) - 1)]) for i in range(length)] for run in runs])
        y = y.astype(np.float64)
        return Band(x, y.mean(0), y.min(0), y.max(0))

    def finals(self, measure: Measure) -> list[float]:
        """Return what each run ended with."""
        return _known(measure.of(run.final) for run in self.visible_runs)

    def by_seed(self, measure: Measure) -> dict[int, float]:
        """Return what each run ended with, by its seed."""
        ends = {int(run.job["training"]["seed"]): measure.of(run.final) for run in self.visible_runs}
        return {seed: end for seed, end in ends.items() if end is not None}

    def bests(self, measure: Measure) -> list[float]:
        """Return the best value of each run at any of its evaluations."""
        parts = [_known(measure.of(line) for line in run.history) for run in self.visible_runs]
        return [measure.best(values) for values in parts if values]

    def reached(self, measure: Measure, target: float) -> list[int | None]:
        """Return the place in each run's history where it first is at least as good as a target."""
        return [
            next((index for index, line in enumerate(run.history) if measure.good(line, target)), None)
            for run in self.visible_runs
        ]

    def times_to(self, measure: Measure, target: float, costs: Costs) -> list[float] | None:
        """Return the time that each run needs to reach a target; nothing if there is one that does not."""
        places = self.reached(measure, target)
        if not places or self.diverged:
            return None
        parts = [
            times(run, costs)[place] for run, place in zip(self.visible_runs, places, strict=True) if place is not None
        ]
        return parts if len(parts) == len(places) else None

    def traffic(self) -> dict[str, float]:
        """Return the bytes that a run sent by direction, the mean over seeds; nothing is sent in one place."""
        if not self.visible_runs or self.visible_runs[0].in_one_place:
            return dict.fromkeys(WAYS, 0.0)
        return {way: mean([getattr(run.history[-1].traffic, way) for run in self.visible_runs]) for way in WAYS}


def setting(axis: str, value: Any) -> str:
    """Write a setting for a label."""
    return str(value) if axis == "case" else f"{axis} = {_short(value)}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(str(part) for _, part in flat(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
