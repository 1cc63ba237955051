"""The sweep file: a grid of runs of one job, and what becomes of it: a plan.

A grid is spelled with the keys of the job file. Every combination of its values, of the cases and of the seeds is a
run. Runs that differ in Q are compared after the same number of local steps, so a sweep says iterations, not rounds.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from tdcd.costs import Costs, Time
from tdcd.errors import JobError, listed, nearest
from tdcd.experiments.job import EMBEDDED, Baseline, Job, load_job
from tdcd.experiments.run import variant_job
from tdcd.files import flat
from tdcd.strict import Strict, problems
from tdcd.training.settings import Count, Positive

LABELS = {
    "training.local_steps": "Q",
    "data.clients": "K",
    "data.features.silos": "N",
    "training.batch_size": "batch",
}
"""What the paper calls some settings; others go by the last word of their key."""

STEPS, SEED = "training.local_steps", "training.seed"
ROWS = ("data.clients", "data.rows", "training.averaging")
"""Settings that make no difference once all rows of a silo are at one client."""


class Selection(Strict):
    """The paper's rule for learning rates: train each for a while, take the one with the lowest training loss.

    One is chosen for every combination of the grid, with the first seed; the other seeds use it too.
    """

    rates: Annotated[list[Positive], Field(min_length=1)]
    iterations: Count
    """How long to try each of them."""


class Picture(Strict):
    """What the report of a sweep shows."""

    metric: str | None = None
    """The test metric to draw: "accuracy", "f1", "auroc", "top5" …; default: as fits the loss."""
    lines: str | None = None
    """The setting whose values are the lines of a figure; default: Q if it is in the grid, or what comes first."""
    t_comm: Annotated[list[Time], Field(min_length=1)] = [10.0, 100.0]
    """Latencies to draw the metric against time units for."""
    target: float | None = None
    """The value of the metric to reach in the tables of times; default: one that all lines reach."""


class Sweep(Strict):
    """A whole sweep file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names its directory."""
    title: str = ""
    """What it is about, for the report."""
    job: str
    """The job to vary: a job file, told from where the sweep file lies, or the name of an embedded one."""
    iterations: Count
    """T, the local steps of every run; rounds are T / Q."""
    evaluate_every: Count
    """Local steps between two evaluations."""
    seeds: Annotated[list[int], Field(min_length=1)] = [2021]
    """Every combination is run with each: seeds of first weights and mini-batches."""
    baselines: list[Baseline] = []
    """What else to train, once for all values that make no difference to it."""
    settings: dict[str, Any] = {}
    """Settings of every run, over those of the job."""
    grid: dict[str, Any] = {}
    """Lists of values by key; every combination is a run."""
    cases: list[dict[str, Any]] = []
    """Named sets of settings that belong together; every case meets the whole grid."""
    select: Selection | None = None
    """Choose the rate of every combination."""
    report: Picture = Picture()
    costs: Costs = Costs()
    """Times besides t_comm, for the report."""

    @field_validator("grid")
    @classmethod
    def _lists(cls, grid: dict[str, Any]) -> dict[str, Any]:
        for key, values in flat(grid):
            if not isinstance(values, list) or not values:
                raise ValueError(f"{key}: a list of values is wanted, such as [1, 10] (is {values!r})")
            if len({repr(value) for value in values}) < len(values):
                raise ValueError(f"{key}: a value is there twice: {values!r}")
            if key == SEED:
                raise ValueError(f"{key}: write seeds = {values!r} at the top instead, for means over seeds")
            if key in ("training.rounds", "training.evaluate_every"):
                raise ValueError(f"{key}: a sweep says iterations and evaluate_every, in local steps, at the top")
        return grid

    @field_validator("cases")
    @classmethod
    def _named(cls, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        names = [case.get("name") for case in cases]
        for name in names:
            if not isinstance(name, str) or not name:
                raise ValueError('every case needs a name: name = "wide"')
        if len(set(names)) < len(names):
            raise ValueError(f"two cases have the same name: {listed(names)}")
        return cases

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError(f"different whole numbers from 0 up are wanted (is {seeds!r})")
        return seeds

    @model_validator(mode="after")
    def _lines_known(self) -> "Sweep":
        axes = [*dict(flat(self.grid)), *(["cases"] if self.cases else [])]
        if self.report.lines is not None and self.report.lines not in axes:
            raise ValueError(
                f"report.lines: '{self.report.lines}' is not in the grid{nearest(self.report.lines, axes)}"
            )
        if self.select and self.select.iterations > self.iterations:
            raise ValueError(f"select.iterations: more than the {self.iterations} of a whole run")
        return self

    @property
    def lines(self) -> str:
        """The label of the axis whose values are the lines of a figure."""
        axes = [*dict(flat(self.grid)), *(["cases"] if self.cases else [])]
        return label(self.report.lines or (STEPS if STEPS in axes else axes[0] if axes else STEPS))


@dataclass(frozen=True)
class Combination:
    """One combination of a grid for one variant; every seed is a run of it."""

    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    values: Mapping[str, Any]
    """The value of every axis that makes a difference to it, by the axis's label."""
    job: Job
    """The job with the first seed; its rate may yet be chosen."""

    @property
    def name(self) -> str:
        """A name for people and for files."""
        told = [] if self.variant == "federation" else [self.variant.replace(" ", "-")]
        told += [_told(axis, value) for axis, value in self.values.items()]
        return ",".join(told) or "federation"


@dataclass(frozen=True)
class SweepRun:
    """One training of a sweep."""

    name: str
    """Where it lies in the sweep's directory, such as "runs/Q=10,K=20,seed=1"."""
    variant: str
    job: Job

    @property
    def stored(self) -> Job:
        """The job as its run directory keeps it."""
        return variant_job(self.job, self.variant)


def load_sweep(path: Path | str) -> Sweep:
    """Read a sweep file.

    Raises:
        JobError: it cannot be read or is not a valid sweep; names every problem by its key.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise JobError(f"{file}: no such sweep file; docs/sweeps.md shows one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{file}: cannot be read: {error}") from error
    sweep = parse_sweep(text, str(file))
    if sweep.job in EMBEDDED:
        return sweep
    return sweep.model_copy(update={"job": str((file.parent / sweep.job).resolve())})


def parse_sweep(text: str, where: str) -> Sweep:
    """Check the text of a sweep file; ``where`` names it in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{where}: not TOML: {error}") from error
    try:
        return Sweep.model_validate(table)
    except ValidationError as error:
        raise JobError("\n".join(f"{where}: {problem}" for problem in problems(error))) from error


def combinations(
    sweep: Sweep, where: str, overrides: Mapping[str, Any], silos: Mapping[str, Sequence[str]]
) -> Iterator[Combination]:
    """Yield every combination of a sweep's grid, then those of its baselines.

    Args:
        sweep: What to combine.
        where: How to call the sweep in errors.
        overrides: Settings that replace those of the sweep, such as the data's directory.
        silos: The silos of each case by its name ("" without cases), to train each alone.
    """
    found = [
        (case, values, _job(sweep, where, _settings(sweep.settings) | set_by_case | values | dict(overrides)))
        for case, set_by_case in _cases(sweep)
        for values in _values(sweep)
    ]

    def axes(case: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return ({"case": case} if case else {}) | {label(key): value for key, value in values.items()}

    for case, values, job in found:
        yield Combination("federation", axes(case, values), job)
    seen = set()
    for kind in sweep.baselines:
        for case, values, job in found:
            kept = {key: value for key, value in values.items() if matters(key, kind)}
            variants = [f"{silo} alone" for silo in silos.get(case, ())] if kind == "alone" else [kind]
            for combination in (Combination(variant, axes(case, kept), job) for variant in variants):
                if combination.name not in seen:
                    seen.add(combination.name)
                    yield combination


def matters(key: str, baseline: Baseline) -> bool:
    """Tell whether a setting makes a difference to a baseline."""
    if any(key == rows or key.startswith(f"{rows}.") for rows in ROWS):
        return False
    return key != STEPS or baseline == "one-tier"


def trials(sweep: Sweep, combination: Combination) -> dict[float, SweepRun]:
    """Return the short runs that choose a combination's rate, by their rates."""
    if not sweep.select:
        return {}
    rounds = _rounds(sweep.select.iterations, combination.job, "select.iterations")
    return {
        rate: SweepRun(
            f"trials/{combination.name},rate={rate:g}",
            combination.variant,
            _changed(combination.job, rate=rate, rounds=rounds, evaluate_every=rounds),
        )
        for rate in sweep.select.rates
    }


def runs(sweep: Sweep, combination: Combination, rate: float | None) -> dict[int, SweepRun]:
    """Return the runs of a combination by their seeds."""
    job = combination.job if rate is None else _changed(combination.job, rate=rate)
    return {
        seed: SweepRun(f"runs/{combination.name},seed={seed}", combination.variant, _changed(job, seed=seed))
        for seed in sweep.seeds
    }


def label(key: str) -> str:
    """Return what a setting is called in figures and names."""
    return LABELS.get(key, "case" if key == "cases" else key.rsplit(".", 1)[-1])


def _cases(sweep: Sweep) -> list[tuple[str, dict[str, Any]]]:
    if not sweep.cases:
        return [("", {})]
    return [(case["name"], _settings({k: v for k, v in case.items() if k != "name"})) for case in sweep.cases]


def _settings(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return settings by their dotted keys; a table with a kind replaces the job's as a whole."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and "kind" not in value
        found |= _settings(value, f"{above}{key}.") if inner else {f"{above}{key}": value}
    return found


def _values(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield every combination of the grid's values."""
    grid = dict(flat(sweep.grid))
    labels = [label(key) for key in grid]
    if len(set(labels)) < len(labels):
        raise JobError(f"{sweep.name}: grid: two settings go by the same name: {listed(labels)}")
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _job(sweep: Sweep, where: str, settings: dict[str, Any]) -> Job:
    """Return the job of a combination with the first seed."""
    for key in ("training.rounds", "training.evaluate_every"):
        if key in settings:
            raise JobError(f"{where}: {key}: a sweep says iterations and evaluate_every, in local steps, at the top")
    clients = settings.pop("data.clients", None)  # K is meant for every silo, also for one with a number of its own
    job = load_job(sweep.job, settings | {"baselines": [], "training.rounds": 1, SEED: sweep.seeds[0]}, clients)
    return _changed(
        job,
        rounds=_rounds(sweep.iterations, job, f"{where}: iterations"),
        evaluate_every=_rounds(sweep.evaluate_every, job, f"{where}: evaluate_every"),
    )


def _rounds(iterations: int, job: Job, what: str) -> int:
    """Return the rounds that make so many local steps."""
    steps = job.training.local_steps
    if iterations % steps:
        below = iterations - iterations % steps
        near = f"{below} or {below + steps}" if below else f"{steps}"
        raise JobError(f"{what}: {iterations} local steps are no whole number of rounds of Q = {steps}; {near} are")
    return iterations // steps


def _changed(job: Job, **training: Any) -> Job:
    return job.model_copy(update={"training": job.training.model_copy(update=training)})


def _told(axis: str, value: Any) -> str:
    """Write a value for the name of a file."""
    if isinstance(value, Mapping):
        value = "-".join(str(part) for _, part in flat(value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", text if axis == "case" else f"{axis}={text}")
