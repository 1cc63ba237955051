"""Run a sweep: the grid, then its baselines, each after what chooses its rates; then the other seeds of all.

    SWEEP/sweep.json         the plan: what each run varies, the rates tried and chosen
    SWEEP/trials/…           short runs that choose rates
    SWEEP/runs/…             a run directory each

Starting a sweep again goes on with it: runs that have ended stay as they are, others go on from their checkpoints. So a
sweep can also grow: with more seeds or values in its file, only what is new is run.
"""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from tdcd.errors import ClusterError, JobError, RunError, nearest
from tdcd.experiments.pool import Pool, local_processes
from tdcd.experiments.sweep_file import Sweep
from tdcd.experiments.sweep_plan import Combination, SweepRun, combinations, data_key, runs, trials
from tdcd.jobs.schema import Job, TableJob
from tdcd.runs.layout import (
    BLOCKS,
    IMPORTANCE,
    LOCK,
    MARKER,
    QUALITY,
    RESULT,
    SWEEP,
    check_no_run,
    holds_run,
    holds_sweep,
)
from tdcd.runs.reader import read_history, read_outcome, read_sweep
from tdcd.runs.records import CombinationRecord, Outcome, SeedRecord, SweepRecord, TrialRecord, write_record
from tdcd.runs.stored_job import differences, has_more_rounds, stored_job

SweepEngine = Literal["local", "ray"]
"""Where the runs of a sweep are computed."""
SHOWN = 10
"""Failures that are listed one by one."""
ENDED = ("finished", "diverged")
SETTLING = 60.0
"""Seconds until what another machine has written is seen on a shared file system."""
FREE = ("training.evaluate_every:", "training.checkpoint_every:")
"""Settings of a trial that change nothing of what it ends with."""


class FailedRunsError(RunError):
    """Some runs of a sweep failed; all others were trained."""


class SweepObserver:
    """Follows a sweep. Override what you want to see."""

    def reading(self, job: str) -> None:
        """The data is about to be read for the first time."""

    def planned(self, what: str, names: Sequence[str], done: Sequence[str], iterations: Mapping[str, int]) -> None:
        """Trials or runs are about to be trained; those in ``done`` have ended before."""

    def began(self, name: str) -> None:
        """A run begins, or goes on."""

    def advanced(self, name: str, iteration: int, loss: float | None) -> None:
        """A run goes on."""

    def ended(self, name: str, outcome: Outcome) -> None:
        """A run has ended."""

    def failed(self, name: str) -> None:
        """A run failed; the reason is reported when the others have ended."""

    def noted(self, text: str) -> None:
        """Something of the cluster that computes: what it is, and that a sweep waits for it."""

    def lost(self, name: str, why: str) -> None:
        """The process that trained a run was lost; another goes on from its checkpoint."""

    def stopping(self) -> None:
        """The sweep was asked to stop; runs under way write a checkpoint."""

    def chose(self, combination: str, rate: float | None, losses: Mapping[float, float]) -> None:
        """A rate was chosen; none if all of them diverged."""


@dataclass
class _Sweeping:
    """A sweep under way."""

    sweep: Sweep
    directory: Path
    workers: Pool
    observer: SweepObserver
    failures: dict[str, str] = field(default_factory=dict)
    """Why runs and trials failed, by their names."""

    def train(self, what: str, wanted: Sequence[SweepRun]) -> None:
        """Train what has not ended before."""
        self.failures |= train_runs(what, wanted, self.directory, self.workers, self.observer)

    def adopt(self, combination: Combination, rate: float | None) -> None:
        """Let the trial that won go on as the first run, where it is the same training so far."""
        if rate is None:
            return
        trial, run = trials(self.sweep, combination)[rate], runs(self.sweep, combination, rate)[self.sweep.seeds[0]]
        settings, path = trial.stored.training, self.directory / run.name
        comparable = has_more_rounds(stored_job(self.directory / trial.name), run.stored.as_table())
        if holds_run(path) or not comparable or settings.rounds % settings.evaluate_every:
            return
        copy = path.with_name(f".{path.name}.part")
        shutil.rmtree(copy, ignore_errors=True)
        ends = shutil.ignore_patterns(".*", QUALITY, IMPORTANCE, RESULT, BLOCKS, "report*")
        shutil.copytree(self.directory / trial.name, copy, ignore=ends)
        shutil.rmtree(path, ignore_errors=True)
        copy.rename(path)

    def choose(self, tried: Mapping[str, Mapping[float, SweepRun]]) -> dict[str, float | None]:
        """Choose the rate with the lowest loss for every combination that tried some.

        One of which a trial failed has none: without that trial the choice could be another.
        """
        chosen: dict[str, float | None] = {}
        for name, candidates in tried.items():
            if any(run.name in self.failures for run in candidates.values()):
                continue
            losses = {rate: final_loss(self.directory / run.name, self.sweep) for rate, run in candidates.items()}
            best = min(losses, key=lambda rate: losses[rate])
            chosen[name] = best if losses[best] < inf else None
            self.observer.chose(name, chosen[name], losses)
        return chosen


def train_runs(
    what: str, wanted: Sequence[SweepRun], directory: Path, workers: Pool, observer: SweepObserver
) -> dict[str, str]:
    """Train those of some runs that have not ended before; return why runs failed, by their names."""
    wanted = list({run.name: run for run in wanted}.values())
    if not wanted:
        return {}
    missing = [run for run in wanted if not ended(directory / run.name, run)]
    names = [run.name for run in wanted]
    waiting = {run.name for run in missing}
    done = [name for name in names if name not in waiting]
    steps = {run.name: run.stored.training.rounds * run.stored.training.local_steps for run in wanted}
    observer.planned(what, names, done, steps)

    def on_answer(number: int, answer: Mapping[str, Any]) -> None:
        run = missing[number]
        if answer["event"] == "began":
            observer.began(run.name)
        elif answer["event"] == "progress":
            observer.advanced(run.name, answer["iteration"], answer["loss"])
        elif answer["event"] == "failed":
            observer.failed(run.name)
        elif answer["event"] == "lost":
            observer.lost(run.name, answer["message"])
        else:
            observer.ended(run.name, _outcome(directory / run.name, answer["status"]))

    failed = workers.each([_task(run, directory / run.name) for run in missing], on_answer)
    return {missing[number].name: why for number, why in failed.items()}


def run_sweep(
    sweep: Sweep,
    directory: Path | str,
    *,
    jobs: int | None = None,
    engine: SweepEngine = "local",
    address: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    observer: SweepObserver | None = None,
    where: str = "sweep",
) -> None:
    """Run a sweep, or go on with it.

    Args:
        sweep: What to run.
        directory: Where its runs lie.
        jobs: How many runs at once, each in a process of its own; default: one for each core.
        engine: Where these processes are: "local" on this machine, or "ray" at the nodes of a Ray cluster, which must
            share the file system of the directory.
        address: Of the Ray cluster to join, "HOST:PORT" or "auto"; default: one is started on this machine.
        overrides: Settings that replace the sweep's, by their dotted names: ``{"data.directory": "cifar"}``.
        observer: Follows the progress.
        where: How to call the sweep in errors.

    Raises:
        TdcdError: a run failed, or the directory holds a run of another job; the message names it.
        KeyboardInterrupt: passed on, after all runs under way have written a checkpoint.
    """
    observer, path, overrides = observer or SweepObserver(), Path(directory), overrides or {}
    check_directory(path, "sweep")
    first = combinations(sweep, where, overrides, None)  # checks every job before anything is read
    distinct = [combination.job for combination in first]
    planned = len(first) * max(len(sweep.seeds), len(sweep.select.rates) if sweep.select else 1)
    with open_pool(path, distinct, planned, jobs, engine, address, observer, where) as workers:
        alone = "alone" in sweep.baselines
        silos = _silos(distinct, workers, observer, where) if alone else {}
        wanted = combinations(sweep, where, overrides, lambda job: silos[data_key(job)])
        _run(sweep, wanted, path, workers, observer)


def check_directory(path: Path, kind: Literal["sweep", "cross-validation"]) -> None:
    """Check that a directory is free, or holds a sweep or a cross-validation to go on with.

    Raises:
        RunError: it holds something else.
    """
    if not holds_sweep(path):
        check_no_run(path)
        return
    there = "cross-validation" if read_sweep(path).sweep.get("seeds_of") in ("folds", "splits") else "sweep"
    if there != kind:
        raise RunError(f"{path} already holds a {there}; choose another directory for this {kind}")


@contextmanager
def open_pool(
    path: Path,
    distinct: Sequence[Job],
    planned: int,
    jobs: int | None,
    engine: SweepEngine,
    address: str | None,
    observer: SweepObserver,
    where: str,
) -> Iterator[Pool]:
    """Open the processes that train runs in a directory, which belongs to this sweep until it ends.

    Args:
        path: The directory.
        distinct: The jobs of which the runs are variants.
        planned: How many runs there are at most.
        jobs: As for ``run_sweep``, with ``engine`` and ``address``.
        engine: Where the processes are.
        address: Of a Ray cluster.
        observer: Hears of the cluster, and that the runs stop.
        where: How to call the jobs in errors.
    """
    _check_engine(engine, address, distinct, where)
    if engine == "ray":
        from tdcd.cluster.ray_fleet import connect
        from tdcd.experiments.nodes import node_processes

        processes = node_processes(connect(address), path, jobs, planned, {j.device for j in distinct}, observer.noted)
    else:
        processes = local_processes(jobs, planned)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with FileLock(path / LOCK, timeout=0):
            (path / MARKER).unlink(missing_ok=True)  # of a sweep that was killed
            with processes as workers:
                try:
                    yield workers
                except (KeyboardInterrupt, ClusterError):
                    observer.stopping()
                    raise
    except Timeout as error:
        raise RunError(f"{path} is in use by another command; wait until that ends, or stop it") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def check_failures(failures: Mapping[str, str]) -> None:
    """Report runs that failed.

    Raises:
        FailedRunsError: there are some; names the first ones.
    """
    if failures:
        whys = list(failures.values())
        more = [f"and {len(whys) - SHOWN} more"] if len(whys) > SHOWN else []
        raise FailedRunsError("\n".join([*whys[:SHOWN], *more]))


def _check_engine(engine: SweepEngine, address: str | None, jobs: Sequence[Job], where: str) -> None:
    if engine not in get_args(SweepEngine):
        raise JobError(f"engine: '{engine}' is not known for a sweep{nearest(str(engine), get_args(SweepEngine))}")
    if address is not None and engine != "ray":
        raise JobError(f'address: a cluster is joined by engine = "ray" only, not by "{engine}"')
    if engine == "ray" and any(job.engine == "ray" for job in jobs):
        raise JobError(
            f'{where}: engine: with --engine ray each run is computed at one node; leave engine = "ray" out of the job'
        )


def _run(sweep: Sweep, wanted: Sequence[Combination], path: Path, workers: Pool, observer: SweepObserver) -> None:
    under_way = _Sweeping(sweep, path, workers, observer)
    grid = [combination for combination in wanted if combination.variant == "federation"]
    others = [combination for combination in wanted if combination.variant != "federation"]
    rates: dict[str, float | None] = {}
    write_record(path / SWEEP, _plan(sweep, path, wanted, rates))
    for part, what in ((grid, ""), (others, " of baselines")):
        if sweep.select and part:
            tried = {combination.name: trials(sweep, combination) for combination in part}
            under_way.train(f"trials{what}", [run for candidates in tried.values() for run in candidates.values()])
            rates |= under_way.choose(tried)
            write_record(path / SWEEP, _plan(sweep, path, wanted, rates))
            for combination in part:
                under_way.adopt(combination, rates.get(combination.name))
        under_way.train(f"runs{what}", _runs(sweep, part, rates, sweep.seeds[:1]))
    under_way.train("runs of other seeds", _runs(sweep, wanted, rates, sweep.seeds[1:]))
    check_failures(under_way.failures)


def _runs(
    sweep: Sweep, part: Sequence[Combination], rates: Mapping[str, float | None], seeds: Sequence[int]
) -> list[SweepRun]:
    """Return the runs of some combinations, seed by seed; those for which no rate could be chosen have none."""
    known = [runs(sweep, c, rates.get(c.name)) for c in part if not sweep.select or rates.get(c.name) is not None]
    return [own[seed] for seed in seeds for own in known]


def _silos(jobs: Sequence[Job], workers: Pool, observer: SweepObserver, where: str) -> dict[str, tuple[str, ...]]:
    """Return the silos of every way to read the data: of tables they are known, others must be read."""
    result = {data_key(job): tuple(job.silos) for job in jobs if isinstance(job, TableJob)}
    unknown = {data_key(job): job for job in jobs if data_key(job) not in result}
    keys = list(unknown)

    def on_answer(number: int, answer: Mapping[str, Any]) -> None:
        if answer["event"] == "done":
            result[keys[number]] = tuple(answer["silos"])

    if unknown:
        observer.reading(jobs[0].name)
        tasks = [{"do": "silos", "where": where, "job": job.as_table()} for job in unknown.values()]
        if failed := workers.each(tasks, on_answer):
            raise RunError("\n".join(failed.values()))
    return result


def _task(run: SweepRun, path: Path) -> dict[str, Any]:
    return {
        "do": "train",
        "where": run.name,
        "job": run.job.as_table(),
        "variant": run.variant,
        "steps": run.stored.training.local_steps,
        "run": str(path.absolute()),
    }


def _plan(sweep: Sweep, path: Path, wanted: Iterable[Combination], rates: Mapping[str, float | None]) -> SweepRecord:
    """Return the plan of a sweep: of rates that are not chosen yet nothing."""
    return SweepRecord(
        sweep=sweep.model_dump(exclude_none=True),
        lines=sweep.lines,
        combinations=tuple(
            CombinationRecord(
                name=combination.name,
                variant=combination.variant,
                values=dict(combination.values),
                trials=tuple(
                    TrialRecord(rate, run.name, _finite(final_loss(path / run.name, sweep)))
                    for rate, run in trials(sweep, combination).items()
                    if combination.name in rates
                ),
                rate=rates.get(combination.name) if sweep.select else combination.job.training.rate,
                runs=tuple(SeedRecord(seed, run.name) for seed, run in runs(sweep, combination, None).items()),
            )
            for combination in wanted
        ),
    )


def ended(path: Path, run: SweepRun) -> bool:
    """Tell whether a run has ended; one of another job is refused.

    Raises:
        RunError: the directory holds a run of another job.
    """
    if not holds_run(path):
        return False
    before, now = stored_job(path), run.stored.as_table()
    if has_more_rounds(before, now):  # a trial that goes on as a run
        return False
    free = FREE if path.parent.name == "trials" else ()
    changed = [line for line in differences(before, now) if not line.startswith(free)]
    if changed:
        raise RunError(
            f"{path} was run with other settings; choose another directory for this sweep, or remove that run. "
            "It differs in:\n  " + "\n  ".join(changed)
        )
    outcome = read_outcome(path)
    return outcome is not None and outcome.status in ENDED


def final_loss(path: Path, sweep: Sweep) -> float:
    """Return the loss a run ended with that decides on rates; infinite if it diverged."""
    outcome = read_outcome(path)
    history = read_history(path) if outcome and outcome.status == "finished" else []
    if not history:
        return inf
    last = history[-1]
    return (last.validation if sweep.select and sweep.select.by == "validation" else last.train).get("loss", inf)


def _finite(value: float) -> float | None:
    return value if value < inf else None


def _outcome(path: Path, status: str) -> Outcome:
    """Return how a run has ended, as soon as this machine sees it: it may have ended elsewhere."""
    until = time.monotonic() + SETTLING
    while (outcome := read_outcome(path)) is None or outcome.status != status:
        if time.monotonic() > until:
            raise RunError(f"{path}: has ended, but its {RESULT} is not there")
        time.sleep(0.2)
        for folder in (path.parent, path):  # which a network file system reads anew, unlike single names
            os.listdir(folder)
    return outcome
