"""Tune a job: train what the search asks for, and write what it comes to.

    OUT/trials/…       a run directory each, that goes on from rung to rung
    OUT/tuning.json    what was tried, what came of it, what was chosen and why
    OUT/tuned.toml     the job with the settings that were chosen

Started again, a search that was stopped takes the same way: trials that have come far enough are read, not run.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any

import tomli_w

from tdcd.compute import cores
from tdcd.costs import Costs
from tdcd.errors import DivergedError, JobError, ModelError, nearest
from tdcd.experiments.pool import Pool
from tdcd.experiments.sweep_plan import SweepRun
from tdcd.experiments.sweep_run import SweepEngine, SweepObserver, check_failures, open_pool, train_runs
from tdcd.experiments.tuning.search import Chosen, Score, Trials, search
from tdcd.experiments.tuning.space import GRID, Point, Space
from tdcd.files import write_atomically
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.schema import Job
from tdcd.jobs.sources import FunctionData
from tdcd.jobs.tuning import read_budget
from tdcd.runs.layout import check_no_run, holds_run
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.records import Evaluation, write_record
from tdcd.runs.tuning import TUNING, TrialPoint, TuningRecord
from tdcd.training.constants import estimate_constants
from tdcd.training.simulation import Simulation

TUNED = "tuned.toml"
AGAIN = ",again"
"""In the name of a trial with another seed."""
FIRST_RATE = 0.1
"""Where the search begins if the curvature cannot be estimated."""
RISEN = 0.1
"""A training loss that has risen again by this part of its descent is on its way to diverge."""
TIMED = 3
"""Rounds that are timed."""
ROWS = 1_000
"""Rows on which the curvature is estimated."""


class TuneObserver(SweepObserver):
    """Follows a search. Override what you want to see."""

    def searching(self, space: Space, rungs: list[float], start: str, expected: str) -> None:
        """The search begins: what it tries for how long, where its rates come from, and what it will take."""

    def trying(self, trials: Trials) -> None:
        """A batch of trials begins."""


def tune(
    job: Job,
    directory: Path | str,
    *,
    costs: Costs | None = None,
    given: Mapping[str, Any] | None = None,
    budget: float = 0.1,
    minutes: float | None = None,
    measure: str = "loss",
    target: float | None = None,
    jobs: int | None = None,
    engine: SweepEngine = "local",
    address: str | None = None,
    observer: TuneObserver | None = None,
    where: str = "job",
) -> TuningRecord:
    """Find the learning rate, local steps, hub step and schedule of a job, by successive halving.

    What decides is a measure on the validation samples, at the same simulated time; the test samples are not looked at.

    Args:
        job: What to tune.
        directory: Where trials and the result lie; a search that was stopped goes on there.
        costs: What takes time; default: as the job's ``[tuning]`` table says.
        given: What to search: "local_steps", "hub_steps", "batch_sizes", "proximals", and the "horizon", the simulated
            time of a whole training; default: what usually matters, and as long as the job's rounds.
        budget: The part of a full grid's cost that the search may take, about.
        minutes: The time that it may take, about, if that is less; a few rounds are timed for it.
        measure: The measure on the validation samples that decides.
        target: A value of that measure: then what reaches it first is best.
        jobs: How many trials at once; default: one for each core.
        engine: Where trials run: "local" on this machine, "ray" on a cluster.
        address: Of the Ray cluster to join.
        observer: Follows the search.
        where: How to call the job in errors.

    Raises:
        JobError: there are no validation samples, or something else does not fit.
        DivergedError: every rate diverged.
    """
    observer, path, began = observer or TuneObserver(), Path(directory), time.perf_counter()
    costs, given = costs or Costs(t_comm=job.tuning.t_comm, step=job.tuning.t_comp), dict(given or {})
    _check(job, measure, budget, where)
    if not (path / "trials").exists():
        check_no_run(path)
    observer.reading(job.name)
    data = load_data(job, where)
    silos = len(data.federation.with_features)
    space = Space.of(job, silos, costs, given)
    planned = 3 * len(space.groups)
    start, reason = _first_rate(job, data) if space.rate is None else (space.rate, f"the job says rate {space.rate:g}")
    expected = ""
    if minutes is not None:
        whole = mean_minutes(job, data, space) / min(jobs or cores(), planned)
        grid = whole * GRID * len(space.groups)
        budget = min(budget, minutes / grid)
        expected = f"a full grid would take about {grid:,.0f} minutes"
    rungs = space.rungs(budget)
    cost = space.cost(len(rungs) - 1)
    if minutes is not None and cost * whole > 1.5 * minutes:
        raise JobError(
            f"budget: even the shortest search takes about {cost * whole:,.0f} minutes; allow as many, use more "
            "processes (--jobs), or search less (--local-steps, --hub-steps, --time)"
        )
    del data  # the processes that train read it themselves
    expected = f"about {cost:.0f} whole trainings, of {GRID * len(space.groups)} of a full grid; {expected}".rstrip(
        "; "
    )
    observer.searching(space, rungs, reason, expected)
    with open_pool(path, [job], planned, jobs, engine, address, observer, where) as workers:
        tuning = _Tuning(job, space, rungs, measure, target, path, workers, observer)
        chosen = tuning.run(start, budget * GRID * len(space.groups))
    record = tuning.record(chosen, reason, time.perf_counter() - began)
    write_record(path / TUNING, record)
    if chosen.point is None:
        lowest = min(trial.settings["rate"] for trial in record.trials)
        raise DivergedError(
            f"{where}: no settings held to the end, with rates down to {lowest:g} ({'; '.join(chosen.log[-2:])}); "
            "check the scale of the inputs and the first weights, or search fewer local steps"
        )
    write_atomically(path / TUNED, tomli_w.dumps(tuned(job, record).as_table()))
    return record


def tuned(job: Job, record: TuningRecord) -> Job:
    """Return a job with the settings that were chosen."""
    training = job.training.replace(**record.settings)
    return job.model_copy(update={"training": training, "auto": ()})


def mean_minutes(job: Job, data: JobData, space: Space) -> float:
    """Return how long a whole training takes in this process, on average over all Q: a few rounds are timed."""
    models = {silo: job.model_of(silo) for silo in data.federation.with_features}
    total = 0.0
    for steps in space.local_steps:
        settings = job.training.replace(local_steps=steps, rounds=TIMED + 1)
        simulation = Simulation(data.federation, models, settings, labels=job.labels, compute=job.compute, workers=1)
        state = simulation.round(simulation.init())  # the first compiles and allocates
        began = time.perf_counter()
        for _ in range(TIMED):
            state = simulation.round(state)
        total += (time.perf_counter() - began) / TIMED * space.horizon / space.round_time(steps)
    return total / len(space.local_steps) / 60


def found(
    job: Job,
    directory: Path | str,
    *,
    jobs: int | None = None,
    observer: TuneObserver | None = None,
    where: str = "job",
) -> tuple[Job, TuningRecord]:
    """Find the settings of a job that are "auto", and leave all others but the schedule as they are.

    Raises:
        JobError: there are no validation samples, or the budget is none.
        DivergedError: every rate diverged.
    """
    try:
        budget, minutes = read_budget(job.tuning.budget)
    except ValueError as error:
        raise JobError(f"{where}: tuning.budget: {error}") from error
    steps = None if "local_steps" in job.auto else [job.training.local_steps]
    rates = None if "rate" in job.auto else job.training.rate
    given = {"local_steps": steps, "hub_steps": [0.0], "rate": rates}
    record = tune(
        job, directory, given=given, budget=budget, minutes=minutes, measure=job.tuning.metric, jobs=jobs,
        observer=observer, where=where,
    )  # fmt: skip
    return tuned(job, record), record


def _check(job: Job, measure: str, budget: float, where: str) -> None:
    data = job.data
    fraction, split = (getattr(data, key, None) for key in ("validation_fraction", "split_column"))
    if not (fraction or split or isinstance(data, FunctionData)):
        raise JobError(
            f"{where}: settings are chosen on validation samples, and there are none; set "
            "data.validation_fraction = 0.1 in the job, or --set data.validation_fraction=0.1"
        )
    known = job.training.objective.metrics
    if measure not in known:
        raise JobError(f"{where}: '{measure}' is not measured with {job.training.loss_kind}{nearest(measure, known)}")
    if not 0 < budget <= 1:
        raise JobError(f"budget: a part of the full grid's cost is wanted, such as 10%, not {budget:.0%}")
    own = sorted(silo for silo in job.silos if job.settings_of(silo) is not job.training)
    if own:
        raise JobError(
            f"{where}: silos.{own[0]} has local steps or a rate of its own; a search chooses one for all silos, so "
            "leave them out"
        )


def _first_rate(job: Job, data: JobData) -> tuple[float, str]:
    """Return the rate that the search of Q = 1 begins with, and where it is from.

    Theorem 1 admits 1/(8·Q·max(L, L_max)), which is safe and slow; a gradient step still descends up to 1/L.
    """
    try:
        simulation = Simulation(
            data.federation,
            {silo: job.model_of(silo) for silo in data.federation.with_features},
            job.training,
            labels=job.labels,
        )
        made = estimate_constants(simulation, rows=ROWS, clients=1, batches=1, iterations=20, tolerance=0.02)
    except (JobError, ModelError) as error:
        return FIRST_RATE, f"rates begin at {FIRST_RATE:g}, as the curvature could not be estimated: {error}"
    rate, largest = 1 / max(made.smoothness, 1e-12), max(made.smoothness, made.client_smoothness, 1e-12)
    if not isfinite(rate):
        return FIRST_RATE, f"rates begin at {FIRST_RATE:g}"
    return rate, (
        f"L = {made.smoothness:.3g} and L_max = {made.client_smoothness:.3g} at the first weights, on {made.rows:,} "
        f"rows: Theorem 1 admits rates up to {1 / (8 * largest):.3g} / Q; the search begins at {rate:.3g} / √Q"
    )


@dataclass
class _Tuning:
    """A search under way."""

    job: Job
    space: Space
    rungs: list[float]
    measure: str
    target: float | None
    directory: Path
    workers: Pool
    observer: TuneObserver
    taken: dict[str, tuple[Point, int]] = field(default_factory=dict)
    """Every trial by its name, with how far it came."""

    def run(self, start: float, budget: float) -> Chosen:
        """Send the search what comes of the trials that it asks for."""
        steps = search(self.space, self.rungs, start, budget, target=self.target is not None)
        try:
            trials = next(steps)
            while True:
                trials = steps.send(self._train(trials))
        except StopIteration as end:
            chosen: Chosen = end.value
            return chosen

    def _train(self, trials: Trials) -> dict[Point, Score]:
        self.observer.trying(trials)
        runs = {point: self._run(point, trials) for point in trials.points}
        missing = [run for point, run in runs.items() if not self._measured(run)]
        check_failures(train_runs(trials.why, missing, self.directory, self.workers, self.observer))
        for point, run in runs.items():
            self.taken[run.name] = (point, max(trials.rung, self.taken.get(run.name, (point, 0))[1]))
        last = trials.rung == len(self.rungs) - 1
        return {point: self._score(run, last=last) for point, run in runs.items()}

    def _run(self, point: Point, trials: Trials) -> SweepRun:
        """Return the training of a trial: the same for all rungs, but for its rounds."""
        every = max(1, self.space.rounds(point, self.rungs[0]) // 4)  # the same in all rungs
        rounds = self.space.rounds(point, self.rungs[trials.rung] * point.span) // every * every
        own = self.job.training
        settings = own.model_copy(
            update=point.settings(rounds)
            | {"select": "last", "select_by": "loss", "patience": None, "seed": own.seed + trials.seed}
            | {"evaluate_every": every, "checkpoint_every": max(every, 50)}
        )
        job = self.job.model_copy(update={"training": settings, "baselines": [], "auto": ()})
        again = f"{AGAIN} {trials.seed}" if trials.seed else ""
        return SweepRun(f"trials/{point.name}{again}", "federation", job)

    def _measured(self, run: SweepRun) -> bool:
        """Tell whether a trial has come far enough, or will come no farther."""
        path = self.directory / run.name
        if not holds_run(path):
            return False
        outcome = read_outcome(path)
        if outcome is None:
            return False
        return outcome.status == "diverged" or (
            outcome.status == "finished" and outcome.round >= run.job.training.rounds
        )

    def _history(self, name: str, rounds: int) -> list[Evaluation]:
        path = self.directory / name
        return [line for line in read_history(path) if line.round <= rounds] if holds_run(path) else []

    def _score(self, run: SweepRun, *, last: bool) -> Score:
        rounds = run.job.training.rounds
        lines = self._history(run.name, rounds)
        if not lines or lines[-1].round < rounds:
            return Score(inf, trouble=f"it diverged after round {lines[-1].round if lines else 0:,}")
        objective, name = self.job.training.objective, self.measure
        values = [objective.oriented(name, line.validation[name]) if name in line.validation else inf for line in lines]
        time_ = self.space.round_time(run.job.training.local_steps)
        reached = inf
        if self.target is not None:
            wanted = objective.oriented(name, self.target)
            reached = min(
                (line.round * time_ for line, v in zip(lines, values, strict=True) if v <= wanted),
                default=inf,
            )
        trains = [line.train.get("loss", inf) for line in lines]
        risen, descent = trains[-1] - min(trains), trains[0] - min(trains)
        trouble = ""
        if last and (risen > RISEN * descent or descent <= 0):
            trouble = f"its training loss rose again, from {min(trains):.4g} to {trains[-1]:.4g}"
        return Score(min(values), reached, trouble)

    def record(self, chosen: Chosen, reason: str, seconds: float) -> TuningRecord:
        """Return what the search has come to."""
        trials = [self._trial(name, point, rung) for name, (point, rung) in self.taken.items()]
        cost = sum(trial.times[-1] / self.space.horizon for trial in trials if trial.times)
        settings: dict[str, Any] = {}
        if chosen.point:
            run = self._run(chosen.point, Trials("", len(self.rungs) - 1, (chosen.point,), self.rungs[-1]))
            names = ("local_steps", "rate", "batch_size", "proximal", "rounds", "evaluate_every")
            dumped = run.job.training.as_table()
            settings = {name: dumped[name] for name in (*names, "aggregator", "schedule")}
            settings |= {"select": "best"} | ({"select_by": self.measure} if self.measure != "loss" else {})
        return TuningRecord(
            job=self.job.name,
            measure=self.measure,
            falling=self.measure in self.job.training.objective.falling,
            target=self.target,
            costs=self.space.costs.model_dump(exclude_none=True),
            horizon=self.space.horizon,
            rungs=tuple(self.rungs),
            silos=self.space.silos,
            trials=tuple(trials),
            chosen=chosen.point.name if chosen.point else "",
            settings=settings,
            log=chosen.log,
            start=reason,
            cost=cost,
            grid=float(GRID * len(self.space.groups)),
            seconds=round(seconds, 1),
        )

    def _trial(self, name: str, point: Point, rung: int) -> TrialPoint:
        run = self._run(point, Trials("", rung, (point,), 0.0))
        lines = self._history(name, run.job.training.rounds)
        score = self._score(SweepRun(name, "federation", run.job), last=rung == len(self.rungs) - 1)
        table = run.job.training.as_table()
        return TrialPoint(
            name=name.removeprefix("trials/"),
            local_steps=point.local_steps,
            settings={key: table[key] for key in ("rate", "aggregator", "batch_size", "proximal", "schedule")},
            path=name,
            rung=rung,
            loss=self.job.training.objective.oriented(self.measure, score.loss) if score.loss < inf else None,
            times=tuple(line.round * self.space.round_time(point.local_steps) for line in lines),
            values=tuple(line.validation.get(self.measure, inf) for line in lines),
            trouble=score.trouble,
            again=AGAIN in name,
        )
