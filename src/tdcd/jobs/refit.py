"""A finished run trained again on training and validation samples, at the settings that were chosen with the latter.

The test samples are those of the run. It is trained for as many rounds as the weights that the run kept, with the rates
that these rounds had. What comes out is an ordinary job: it can be stored, resumed, simulated and deployed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.data.federation import Federation
from tdcd.errors import DataError, RunError
from tdcd.jobs.load import parse_job
from tdcd.jobs.run import JobCallback, JobResult, run_job
from tdcd.jobs.schema import FunctionJob, Job
from tdcd.runs.layout import FEDERATED, JOB, check_no_run
from tdcd.runs.reader import RunRecord, read_run
from tdcd.training.callbacks import Callback
from tdcd.training.schedules import cut
from tdcd.training.settings import Settings


@dataclass(frozen=True)
class Refit:
    """A refit that is about to be trained."""

    run: RunRecord
    """What it is a refit of."""
    before: Job
    job: Job

    @property
    def samples(self) -> int:
        """The training samples that there must be: those of the run, and its validation samples."""
        return self.run.federation.samples + self.run.federation.validation_samples

    def describe(self) -> list[str]:
        """Say which samples, rounds and rates it uses, a sentence each."""
        data, before, after = self.run.federation, self.before.training, self.job.training
        last, first = after.rate_of(after.rounds), after.rate_of(1)
        rates = f"rate {first:g}" if first == last else f"rates {first:g} to {last:g}"
        kept = "the best weights" if before.select == "best" else "the weights"
        samples = f"{data.samples:,} training and {data.validation_samples:,} validation samples"
        tested = f"the {data.test_samples:,} test samples stay the same"
        rounds = f"{after.rounds:,} of {before.rounds:,} rounds, those of {kept} that it kept"
        return [
            f"Refit of {self.run.path}: {samples} are trained on together; {tested}",
            f"{rounds}, with the {after.schedule.kind} {rates} of these rounds",
            "No validation samples are left: the weights of the last round are kept, and nothing is chosen any more",
        ]

    @property
    def check(self) -> "JobCallback":
        """What refuses to train on other data."""
        return _CheckSamples(self)


class _CheckSamples(JobCallback):
    """Refuses to train where the data is not what the run was trained on."""

    def __init__(self, refit: Refit) -> None:
        self.refit = refit

    def training(self, name: str, federation: Federation) -> None:
        """See JobCallback."""
        if name == FEDERATED and len(federation) != self.refit.samples:
            raise DataError(
                f"the data is not what {self.refit.run.path} was trained on: there are {len(federation):,} samples to "
                f"train on, and there were {self.refit.samples:,} for training and validation"
            )


def plan_refit(path: Path | str) -> Refit:
    """Return how a finished run is trained again on its training and validation samples.

    Raises:
        RunError: it is not the run of a federation that has finished, or had no validation samples.
    """
    run = read_run(path)
    _check(run)
    before = parse_job(run.job, str(run.path / JOB))
    if isinstance(before, FunctionJob):
        raise RunError(
            f"{run.path}: its data is what the function {before.data.source} returns; have the function return the "
            "validation samples as training samples, and train the job again without select and patience"
        )
    assert run.outcome is not None  # noqa: S101 - checked above
    rounds = run.outcome.selected
    if not rounds:
        raise RunError(
            f"{run.path} kept the weights of round 0, with which it began: no round made its validation loss lower, so "
            "there is nothing to train again; choose other settings first"
        )
    table = {key: value for key, value in run.job.items() if key != "baselines"}
    table["name"] = f"{before.name}-refit"
    table["data"] = {**run.job["data"], "refit": True}
    table["training"] = _training(run.job["training"], before.training, rounds)
    return Refit(run, before, parse_job(table, f"the refit of {run.path}"))


def refit(path: Path | str, directory: Path | str | None = None, *, callbacks: Sequence[Callback] = ()) -> JobResult:
    """Train a finished run again on its training and validation samples, at its settings and for its best rounds.

    Args:
        path: The run.
        directory: The run directory of the refit; without one, nothing is written.
        callbacks: Follow the training.

    Raises:
        RunError: the run has not finished, had no validation samples, or is what one hub knows.
        DataError: its data has changed since.
    """
    planned = plan_refit(path)
    if directory is not None:
        check_no_run(Path(directory))
    for callback in callbacks:
        for sentence in planned.describe():
            callback.noted(sentence)
    return run_job(planned.job, directory, callbacks=[planned.check, *callbacks], where=f"the refit of {path}")


def _training(table: dict[str, Any], settings: Settings, rounds: int) -> dict[str, Any]:
    """Return the settings of a training of so many rounds, with the rates that they had and nothing to choose by."""
    kept = {key: value for key, value in table.items() if key not in ("patience", "select_by")}
    schedule = cut(settings.schedule, settings.rounds).model_dump(exclude_none=True)
    return {**kept, "rounds": rounds, "schedule": schedule, "select": "last"}


def _check(run: RunRecord) -> None:
    """Refuse what cannot be trained again."""
    data, selected = run.job.get("data", {}), run.outcome.selected if run.outcome else 0
    if run.is_hub:
        raise RunError(
            f"{run.path} is what one hub knows, and a refit needs all sites: in the job file that they share, set "
            f'data.refit = true, training.rounds = {selected or "those of the weights kept"}, training.select = "last" '
            f"and, of a cosine or theory schedule, over = {run.job['training']['rounds']}; leave out training.patience"
        )
    if run.variant != FEDERATED:
        raise RunError(f"{run.path} is the baseline '{run.variant}' of a run; name the run itself")
    if not data:
        raise RunError(
            f"{run.path} was trained on arrays, which it does not hold: train again from Python, with the validation "
            f"samples in the federation, rounds={selected} and no validation set"
        )
    if data.get("refit"):
        raise RunError(f"{run.path} is a refit already: it was trained on its validation samples")
    if run.outcome is None or run.status == "interrupted":
        raise RunError(f"{run.path} has not ended; go on with it first: tdcd train --resume {run.path}")
    if run.status != "finished":
        raise RunError(f"{run.path} {run.status}; there is nothing to train again")
    if not run.federation.validation_samples:
        raise RunError(
            f"{run.path} had no validation samples: it was trained on all samples that are not for testing, so that "
            "there is nothing to add"
        )
