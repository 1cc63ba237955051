"""Lines of a figure: runs that differ in nothing but their seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tdcd.costs import Costs
from tdcd.files import flat
from tdcd.reports.frame import Measure, evaluation_frame
from tdcd.reports.pricing import times
from tdcd.reports.words import WAYS, mean, speak
from tdcd.runs.reader import RunRecord

Array = npt.NDArray[np.float64]


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

    @property
    def rounds(self) -> int:
        """The most rounds of any run that did not diverge."""
        return max((run.history[-1].round for run in self.visible_runs), default=0)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """Every evaluation of its runs."""
        return evaluation_frame({str(run.path): run for run in self.runs})

    def visible(self, costs: Costs | None = None) -> pl.DataFrame:
        """Return every evaluation of the runs that did not diverge; with costs, the ``time`` at which it is reached."""
        frame = self.frame.filter(pl.col("status") != "diverged")
        return frame if costs is None else frame.with_columns(time=_times(self.visible_runs, costs))

    def times(self, costs: Costs) -> pl.Series:
        """Return the time at which every evaluation is reached."""
        return _times(self.runs, costs)

    def ends(self, costs: Costs | None = None) -> pl.DataFrame:
        """Return the last evaluation of each run that did not diverge."""
        return self.visible(costs).group_by("run", maintain_order=True).last()

    def band(self, measure: Measure, costs: Costs | None = None) -> Band:
        """Return a measure over local steps, or over time if costs are given.

        Runs that are under way are shown as far as all have come; one that stopped early stays where it stopped.
        """
        seen = measure.of(self.visible(costs)).filter(pl.col("value").is_not_null().all().over("run"))
        runs = seen.partition_by("run", maintain_order=True)
        if not runs:
            nothing = np.empty(0)
            return Band(nothing, nothing, nothing, nothing)
        under_way = [len(run) for run in runs if run["status"][0] == "under way"]
        length = min(under_way) if under_way else max(len(run) for run in runs)
        x = [run["iteration" if costs is None else "time"].to_numpy()[:length] for run in runs if len(run) >= length]
        y = [np.pad(run["value"].to_numpy()[:length], (0, max(0, length - len(run))), mode="edge") for run in runs]
        return Band(x[0] if costs is None else np.mean(x, 0), np.mean(y, 0), np.min(y, 0), np.max(y, 0))

    def finals(self, measure: Measure) -> list[float]:
        """Return what each run ended with."""
        return measure.of(self.visible()).filter("kept")["value"].drop_nulls().to_list()

    def by_seed(self, measure: Measure) -> dict[str, float]:
        """Return what each run ended with, by its seed."""
        ends = measure.of(self.visible()).filter("kept").drop_nulls("value")
        return dict(ends.select("seed", "value").iter_rows())

    def measured(self, measure: Measure, costs: Costs | None = None) -> pl.DataFrame:
        """Return the evaluations that measured all rows, of the runs that did not diverge."""
        return measure.of(self.visible(costs)).filter(pl.col("whole") & pl.col("value").is_not_null())

    def bests(self, measure: Measure) -> list[float]:
        """Return the best value of each run at any of its evaluations."""
        runs = self.measured(measure).partition_by("run", maintain_order=True)
        return [measure.best(run["value"]) for run in runs]

    def lasts(self, measure: Measure) -> list[float]:
        """Return the value of each run at its last evaluation, whichever weights it keeps."""
        return self.measured(measure).group_by("run", maintain_order=True).last()["value"].to_list()

    def reached(self, measure: Measure, target: float, costs: Costs | None = None) -> pl.DataFrame:
        """Return where each run that reaches a target does so.

        That is the first evaluation from which on it, and all later ones, are at least as good: a run that falls
        behind the target again has not reached it.
        """
        stays = measure.reaches(target).cast(pl.Int8).cum_min(reverse=True).over("run") == 1
        return self.measured(measure, costs).filter(stays).group_by("run", maintain_order=True).first()

    def times_to(self, measure: Measure, target: float, costs: Costs) -> list[float] | None:
        """Return the time that each run needs to reach a target; nothing if there is one that does not."""
        if self.diverged or not self.visible_runs:
            return None
        spent = self.reached(measure, target, costs)["time"].to_list()
        return spent if len(spent) == len(self.visible_runs) else None

    def traffic(self) -> dict[str, float]:
        """Return the bytes that a run sent by direction, the mean over seeds; nothing is sent in one place."""
        ends = self.ends()
        return {way: mean(ends[way].to_list()) if len(ends) else 0.0 for way in WAYS}


def _times(runs: Sequence[RunRecord], costs: Costs) -> pl.Series:
    return pl.Series([time for run in runs if run.history for time in times(run, costs)], dtype=pl.Float64)


def setting(axis: str, value: Any) -> str:
    """Write a setting for a label."""
    return str(value) if axis == "case" else f"{axis} = {_short(value)}"


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(str(part) for _, part in flat(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
