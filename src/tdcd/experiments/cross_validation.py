"""Cross-validation and repeated splits of a job: a run for each split, in parallel, resumable as those of a sweep.

DIR/sweep.json    the plan, as that of a sweep: reports and comparisons read it
DIR/runs/…        a run directory each: fold=1, "central,fold=1", …
DIR/cv.json       the measures of every run, and their mean, deviation and intervals
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from tdcd.errors import RunError, join_names
from tdcd.experiments.intervals import CONFIDENCE, t_interval
from tdcd.experiments.pool import Pool
from tdcd.experiments.splits import Splitting
from tdcd.experiments.sweep_file import Sweep
from tdcd.experiments.sweep_plan import SweepRun
from tdcd.experiments.sweep_run import (
    SweepEngine,
    SweepObserver,
    check_directory,
    check_failures,
    ended,
    open_pool,
    train_runs,
)
from tdcd.jobs.load import load_job
from tdcd.jobs.run import baselines
from tdcd.jobs.schema import Job
from tdcd.runs.cross_validation import CV, CrossValidationRecord, MeasureRecord, SplitRecord
from tdcd.runs.layout import FEDERATED, SWEEP, holds_run
from tdcd.runs.reader import read_run
from tdcd.runs.records import CombinationRecord, SeedRecord, SweepRecord, write_record
from tdcd.summary import Summary

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class CrossValidation:
    """What came out of it."""

    record: CrossValidationRecord

    @property
    def failures(self) -> tuple[SplitRecord, ...]:
        """The runs that diverged or failed: they count in no mean."""
        return self.record.failures

    @property
    def frame(self) -> "pl.DataFrame":
        """A row for each run: ``variant``, ``split``, ``status``, ``samples``, ``test_samples``, ``test_NAME``."""
        import polars as pl

        rows = [
            {
                "variant": run.variant,
                "split": run.split,
                "status": run.status,
                "samples": run.samples,
                "test_samples": run.test_samples,
                **{f"test_{name}": value for name, value in run.measures.items()},
            }
            for run in self.record.runs
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def summary(self) -> "pl.DataFrame":
        """A row for each test measure of each variant: mean, deviation, intervals, minimum, maximum."""
        import polars as pl

        return pl.DataFrame([vars(measure) for measure in self.record.measures], infer_schema_length=None)

    def _summary(self) -> Summary:
        rows = [
            [m.variant, m.metric, f"{m.runs} of {self.record.planned}", f"{m.mean:.4f}"]
            + [f"{value:.4f}" if value is not None else "–" for value in (m.deviation, m.low, m.high)]
            for m in self.record.measures
        ]
        names = [f"{run.variant} {run.split}" for run in self.failures]
        failed = f", failed or diverged: {join_names(names)}" if names else ""
        title = f"Cross-validation of {self.record.job}, {self.record.way}{failed}: test measures"
        return Summary(title, ["", "", "runs", "mean", "deviation", "95% from", "to"], rows)

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()


def cross_validate(
    job: Job | Path | str,
    directory: Path | str,
    *,
    folds: int | None = None,
    repeats: int = 1,
    splits: int | None = None,
    jobs: int | None = None,
    engine: SweepEngine = "local",
    address: str | None = None,
    observer: SweepObserver | None = None,
    where: str = "job",
) -> CrossValidation:
    """Train a job, and its baselines, once for each fold or split; or go on with it.

    Args:
        job: What to train; or its file.
        directory: Where the runs lie.
        folds: Into how many folds the samples fall; default: those of the job, or 5.
        repeats: How often, each time by another data.seed.
        splits: So many random splits instead, each by another data.seed.
        jobs: How many runs at once, each in a process of its own; default: one for each core.
        engine: Where these processes are, "local" or "ray", as for ``run_sweep``.
        address: Of the Ray cluster to join.
        observer: Follows the progress.
        where: How to call the job in errors.

    Returns:
        The test measures of every run, and their mean. A run that diverged is among the ``failures`` and in no mean.

    Raises:
        TdcdError: a run failed, or the directory holds runs of another job; the message names it.
        KeyboardInterrupt: passed on, after all runs under way have written a checkpoint.
    """
    if isinstance(job, Path | str):
        job, where = load_job(job), str(job)
    observer, path = observer or SweepObserver(), Path(directory)
    splitting = Splitting(folds, repeats, splits).of_job(job)
    of_split = splitting.jobs(job, where)
    check_directory(path, "cross-validation")
    planned = len(of_split) * (1 + 2 * len(job.baselines))
    with open_pool(path, [*of_split.values()], planned, jobs, engine, address, observer, where) as workers:
        silos = _silos(next(iter(of_split.values())), workers, observer) if "alone" in job.baselines else ()
        variants = [FEDERATED, *baselines(job.baselines, silos)]
        runs = plan_runs(of_split, variants)
        wanted = [run for own in runs.values() for run in own.values()]
        for run in wanted:
            ended(path / run.name, run)  # refuses runs of another job before the plan is replaced
        (path / CV).unlink(missing_ok=True)  # of fewer splits
        write_record(path / SWEEP, _plan(job, splitting, runs))
        failures = train_runs("runs", wanted, path, workers, observer)
    record = summarise(job.name, splitting, _outcomes(path, runs, failures))
    write_record(path / CV, record)
    check_failures(failures)
    return CrossValidation(record)


def plan_runs(of_split: Mapping[str, Job], variants: Sequence[str]) -> dict[str, dict[str, SweepRun]]:
    """Return the runs of each split, by the split's name and the variant: a process reads its data once for them."""
    prefix = {variant: "" if variant == FEDERATED else f"{variant.replace(' ', '-')}," for variant in variants}
    return {
        name: {variant: SweepRun(f"runs/{prefix[variant]}{name}", variant, job) for variant in variants}
        for name, job in of_split.items()
    }


def summarise(job: str, splitting: Splitting, runs: Sequence[SplitRecord]) -> CrossValidationRecord:
    """Return the mean, deviation and intervals of every test measure of each variant."""
    measures = []
    for variant in dict.fromkeys(run.variant for run in runs):
        own = [run for run in runs if run.variant == variant and run.status == "finished"]
        for metric in dict.fromkeys(name for run in own for name in run.measures):
            measured = [run for run in own if metric in run.measures]
            measures.append(_measure(variant, metric, measured))
    return CrossValidationRecord(job, splitting.describe(), splitting.count, CONFIDENCE, tuple(runs), tuple(measures))


def _measure(variant: str, metric: str, runs: Sequence[SplitRecord]) -> MeasureRecord:
    values = [run.measures[metric] for run in runs]
    shared = fmean(run.test_samples / run.samples for run in runs)
    low, high = t_interval(values) or (None, None)
    corrected_low, corrected_high = t_interval(values, shared) or (None, None)
    return MeasureRecord(
        variant=variant,
        metric=metric,
        runs=len(values),
        mean=fmean(values),
        deviation=stdev(values) if len(values) > 1 else None,
        low=low,
        high=high,
        corrected_low=corrected_low,
        corrected_high=corrected_high,
        minimum=min(values),
        maximum=max(values),
    )


def _outcomes(path: Path, runs: Mapping[str, Mapping[str, SweepRun]], failures: Mapping[str, str]) -> list[SplitRecord]:
    """Return how each run ended."""
    result = []
    for split, own in runs.items():
        for variant, run in own.items():
            if run.name in failures or not holds_run(path / run.name):
                why = failures.get(run.name, "not begun")
                result.append(SplitRecord(variant, split, run.name, "failed", 0, 0, why=why))
                continue
            record = read_run(path / run.name)
            facts = record.federation.samples, record.federation.test_samples
            if record.status == "finished":
                result.append(SplitRecord(variant, split, run.name, record.status, *facts, dict(record.kept.test)))
            else:
                last = record.outcome.round if record.outcome else 0
                why = f"its last good round is {last:,}"
                result.append(SplitRecord(variant, split, run.name, record.status, *facts, why=why))
    return result


def _silos(job: Job, workers: Pool, observer: SweepObserver) -> list[str]:
    """Return the silos that can train alone: the data is read for it."""
    silos: list[str] = []

    def on_answer(number: int, answer: Mapping[str, Any]) -> None:  # noqa: ARG001
        if answer["event"] == "done":
            silos.extend(answer["silos"])

    observer.reading(job.name)
    if failed := workers.each([{"do": "silos", "where": job.name, "job": job.as_table()}], on_answer):
        raise RunError("\n".join(failed.values()))
    return silos


def _plan(job: Job, splitting: Splitting, runs: Mapping[str, Mapping[str, SweepRun]]) -> SweepRecord:
    """Return the plan as that of a sweep, each variant with a run for every split in place of seeds."""
    settings = job.training
    sweep = Sweep(
        name=job.name,
        title=f"{job.name}: {splitting.describe()}",
        job=job.name,
        iterations=settings.rounds * settings.local_steps,
        evaluate_every=settings.evaluate_every * settings.local_steps,
        seeds=[settings.seed],
        baselines=job.baselines,
    )
    variants = next(iter(runs.values()))
    return SweepRecord(
        sweep=sweep.model_dump(exclude_none=True) | {"seeds_of": "splits" if splitting.splits else "folds"},
        lines=sweep.lines,
        combinations=tuple(
            CombinationRecord(
                name=variant,
                variant=variant,
                values={},
                trials=(),
                rate=run.stored.training.rate,
                runs=tuple(SeedRecord(settings.seed, own[variant].name) for own in runs.values()),
            )
            for variant, run in variants.items()
        ),
    )
