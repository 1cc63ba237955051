"""What a cross-validation, or a training on repeated splits, came to: cv.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tdcd.runs.records import read_record


@dataclass(frozen=True)
class SplitRecord:
    """A run on one split of the samples."""

    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    split: str
    """"fold=2", "fold=2,repeat=3" or "split=4"."""
    path: str
    """Its run directory, in that of the cross-validation; nothing for a training from Python."""
    status: str
    """"finished"; "diverged" or "failed" where it counts in no mean."""
    samples: int
    """For training."""
    test_samples: int
    measures: Mapping[str, float] = field(default_factory=dict)
    """Of its kept weights, on the test samples."""
    why: str = ""
    """Why it counts in no mean."""


@dataclass(frozen=True)
class MeasureRecord:
    """A measure of the test samples, over all splits."""

    variant: str
    metric: str
    runs: int
    """Those that have it: their mean is taken."""
    mean: float
    deviation: float | None
    """The standard deviation over runs (n − 1); nothing of a single one."""
    low: float | None
    high: float | None
    """The t-interval over runs, as if they were independent."""
    corrected_low: float | None
    corrected_high: float | None
    """The same for runs that share training samples. See ``t_interval``."""
    minimum: float
    maximum: float


@dataclass(frozen=True)
class CrossValidationRecord:
    """All of it."""

    job: str
    """Its name."""
    way: str
    """"5 folds", "5 folds, 3 repeats" or "20 splits"."""
    planned: int
    """Runs of each variant."""
    confidence: float
    """Of the intervals."""
    runs: tuple[SplitRecord, ...]
    measures: tuple[MeasureRecord, ...]

    @property
    def failures(self) -> tuple[SplitRecord, ...]:
        """The runs that count in no mean."""
        return tuple(run for run in self.runs if run.status != "finished")


CV = "cv.json"
"""Its place in the directory."""


def read_cross_validation(path: Path) -> CrossValidationRecord | None:
    """Read what a cross-validation came to; nothing for a sweep that is none, or has not ended."""
    file = path / CV
    return read_record(file, CrossValidationRecord) if file.exists() else None
