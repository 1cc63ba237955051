"""The splits of a cross-validation: which samples each of its runs is tested on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tdcd.errors import JobError
from tdcd.jobs.data import TEST_FRACTION
from tdcd.jobs.schema import FunctionJob, Job

FOLDS = 5
"""Folds where neither the command nor the job says."""


@dataclass(frozen=True)
class Splitting:
    """How samples are split again and again: into folds, perhaps several times; or at random."""

    folds: int | None = None
    repeats: int = 1
    """How often they fall into folds, each time by another seed."""
    splits: int | None = None
    """So many random splits instead."""

    def __post_init__(self) -> None:
        if self.splits is not None and (self.folds is not None or self.repeats != 1):
            raise JobError("splits are drawn at random, each by itself; leave out folds and repeats, or splits")
        for what, value, least in (("folds", self.folds, 2), ("repeats", self.repeats, 1), ("splits", self.splits, 2)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise JobError(f"{what}: a whole number from {least} up is wanted, not {value!r}")

    def of_job(self, job: Job) -> "Splitting":
        """Return the splitting with the folds that a job names, where nobody named others."""
        named = getattr(job.data, "folds", None) or FOLDS
        return self if self.splits or self.folds else Splitting(named, self.repeats)

    @property
    def count(self) -> int:
        """How many runs each variant has."""
        return self.splits or (self.folds or FOLDS) * self.repeats

    def describe(self) -> str:
        """Write it: "5 folds, 3 repeats"."""
        if self.splits:
            return f"{self.splits} random splits"
        return f"{self.folds} folds" + (f", {self.repeats} repeats" if self.repeats > 1 else "")

    def names(self) -> dict[str, tuple[int, int | None]]:
        """Return for each split, by its name, which seed after the first draws it, and its fold."""
        if self.splits:
            return {f"split={number}": (number - 1, None) for number in range(1, self.splits + 1)}
        return {
            f"fold={fold}" + (f",repeat={repeat}" if repeat > 1 else ""): (repeat - 1, fold)
            for repeat in range(1, self.repeats + 1)
            for fold in range(1, (self.folds or FOLDS) + 1)
        }

    def jobs(self, job: Job, where: str) -> dict[str, Job]:
        """Return a job for each split, by the split's name.

        Raises:
            JobError: something else says what the job holds out.
        """
        if isinstance(job, FunctionJob):
            raise JobError(
                f"{where}: the function {job.data.source} says what is held out; cross-validate in Python, with "
                "tdcd.cross_validate_function"
            )
        if column := getattr(job.data, "split_column", None):
            raise JobError(
                f"{where}: data.split_column: the column '{column}' says what is held out, so that there are no other "
                "splits; leave it out of the job, and exclude the column from the features (silos.NAME.exclude)"
            )
        return {name: self._job(job, *place) for name, place in self.names().items()}

    def _job(self, job: Job, seeds: int, fold: int | None) -> Job:
        data: Any = job.data
        fraction = None if fold else data.test_fraction or TEST_FRACTION
        held: Mapping[str, Any] = {"folds": self.folds if fold else None, "fold": fold, "test_fraction": fraction}
        split = data.model_copy(update={**held, "seed": data.seed + seeds})
        return job.model_copy(update={"baselines": [], "data": split})
