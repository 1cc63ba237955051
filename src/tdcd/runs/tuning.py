"""What a search for good settings has come to: tuning.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.runs.records import read_record

TUNING = "tuning.json"


@dataclass(frozen=True)
class TrialPoint:
    """One choice of settings, and what came of it."""

    name: str
    local_steps: int
    settings: Mapping[str, Any]
    path: str
    """Its run, in the directory of the search."""
    rung: int
    """How far it came: the last rung is the whole training."""
    loss: float | None
    """What it ended with there; none if it diverged."""
    times: tuple[float, ...]
    """The simulated times of its evaluations."""
    values: tuple[float, ...]
    """What was measured at each."""
    trouble: str = ""
    again: bool = False
    """Whether it is the choice once more, with another seed."""


@dataclass(frozen=True)
class TuningRecord:
    """A search for good settings."""

    job: str
    """The job that was tuned, by name."""
    measure: str
    """What decides, on the validation samples."""
    falling: bool
    """Whether it is better when lower."""
    target: float | None
    costs: Mapping[str, Any]
    horizon: float
    rungs: tuple[float, ...]
    """The simulated time of the trials of each rung."""
    silos: int
    trials: tuple[TrialPoint, ...]
    chosen: str
    """The name of the choice; nothing if every rate diverged."""
    settings: Mapping[str, Any]
    """What was chosen, as in the ``[training]`` table."""
    log: tuple[str, ...]
    """Why, step by step."""
    start: str
    """Where the rates come from that it began with."""
    cost: float
    """What the search took, in whole trainings."""
    grid: float
    """What a full grid would have taken."""
    seconds: float

    def reached(self, trial: TrialPoint, target: float) -> float | None:
        """Return the simulated time at which a trial reached a target first; nothing if it did not."""
        sign = 1 if self.falling else -1
        times = (time for time, value in zip(trial.times, trial.values, strict=True) if sign * value <= sign * target)
        return next(times, None)

    def best_of(self, local_steps: int) -> TrialPoint | None:
        """Return the trial of a number of local steps that came farthest, and of these the best."""
        sign = 1 if self.falling else -1
        rest = [trial for trial in self.trials if not trial.again and trial.loss is not None]
        own = [trial for trial in rest if trial.local_steps == local_steps]
        return min(own, key=lambda trial: (-trial.rung, (trial.loss or 0.0) * sign), default=None)


def read_tuning(path: Path) -> TuningRecord:
    """Read a search.

    Raises:
        RunError: it is missing or damaged.
    """
    return read_record(path / TUNING, TuningRecord)
