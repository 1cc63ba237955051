"""The sweep file: a grid of runs of one job.

A grid is spelled with the keys of the job file. Every combination of its values, of the cases and of the seeds is a
run. Runs that differ in Q are compared after the same number of local steps, so a sweep says iterations, not rounds.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tdcd.costs import T_COMM, Costs, Time
from tdcd.errors import JobError, join_names, nearest
from tdcd.files import flat, read_settings, split_key
from tdcd.jobs.load import resolve_paths
from tdcd.jobs.schema import EMBEDDED, Baseline, Name
from tdcd.strict import Strict, problems
from tdcd.training.settings import Count, Positive

LABELS = {
    "training.local_steps": "Q",
    "data.clients": "K",
    "data.features.silos": "N",
    "training.batch_size": "batch",
    "data.seed": "data-seed",
}
"""What the paper calls some settings; others go by the last word of their key."""

STEPS = "training.local_steps"


class Selection(Strict):
    """How learning rates are chosen: train each for a while, take the one with the lowest loss.

    One is chosen for every combination of the grid, with the first seed; the other seeds use it too.
    """

    rates: Annotated[list[Positive], Field(min_length=1)]
    iterations: Count
    """How long to try each of them."""
    by: Literal["training", "validation"] = "training"
    """Whose loss decides. Training is the paper's rule; validation needs data.validation_fraction."""


class Picture(Strict):
    """What the report of a sweep shows."""

    metric: str | None = None
    """The test metric to draw: "accuracy", "f1", "auroc", "top5" …; default: as fits the loss."""
    lines: str | None = None
    """The setting whose values are the lines of a figure; default: Q if it is in the grid, or what comes first."""
    t_comm: Annotated[list[Time], Field(min_length=1)] = list(T_COMM)
    """Latencies to draw the metric against time units for."""
    target: float | None = None
    """The value of the metric to reach in the tables of times; default: one that all lines reach."""


class Sweep(Strict):
    """A whole sweep file."""

    name: Name
    """Names its directory."""
    title: str = ""
    """What it is about, for the report."""
    job: str
    """The job to vary: a job file, relative to the sweep file, or the name of an embedded one."""
    iterations: Count
    """T, the local steps of every run; rounds are T / Q."""
    evaluate_every: Count
    """Local steps between two evaluations."""
    seeds: Annotated[list[int], Field(min_length=1)] = [2021]
    """Every combination is run with each."""
    seeds_of: Literal["training", "partition"] = "training"
    """What a seed draws: first weights and mini-batches, or the partition of the data as well: what is held out, and
    how features fall to silos and rows to clients."""
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

    @field_validator("costs")
    @classmethod
    def _latencies_apart(cls, costs: Costs) -> Costs:
        if "t_comm" in costs.model_fields_set:
            raise ValueError("t_comm: write report.t_comm = [10, 100] instead")
        return costs

    @field_validator("grid")
    @classmethod
    def _lists(cls, grid: dict[str, Any]) -> dict[str, Any]:
        for key, values in flat(grid):
            if not isinstance(values, list) or not values:
                raise ValueError(f"{key}: a list of values is wanted, such as [1, 10] (is {values!r})")
            if len({repr(value) for value in values}) < len(values):
                raise ValueError(f"{key}: a value is there twice: {values!r}")
        return grid

    @field_validator("cases")
    @classmethod
    def _named(cls, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
        names = [case.get("name") for case in cases]
        for name in names:
            if not isinstance(name, str) or not name:
                raise ValueError('every case needs a name: name = "wide"')
        if len(set(names)) < len(names):
            raise ValueError(f"two cases have the same name: {join_names(names)}")
        return cases

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds) or min(seeds) < 0:
            raise ValueError(f"different whole numbers from 0 up are wanted (is {seeds!r})")
        return seeds

    @model_validator(mode="after")
    def _lines_known(self) -> "Sweep":
        grid = labels(self.axes)
        axes = [*grid, *grid.values(), *(["cases"] if self.cases else [])]
        if self.report.lines is not None and self.report.lines not in axes:
            raise ValueError(
                f"report.lines: '{self.report.lines}' is not in the grid{nearest(self.report.lines, axes)}"
            )
        if self.select and self.select.iterations > self.iterations:
            raise ValueError(f"select.iterations: more than the {self.iterations} of a whole run")
        return self

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The values of the grid by their dotted keys."""
        return dict(flat(self.grid))

    @property
    def lines(self) -> str:
        """The label of the axis whose values are the lines of a figure."""
        axes = [*self.axes, *(["cases"] if self.cases else [])]
        chosen = self.report.lines or (STEPS if STEPS in axes else axes[0] if axes else STEPS)
        named = labels(self.axes)
        return "case" if chosen == "cases" else named.get(chosen, chosen if chosen in named.values() else LABELS[STEPS])


def load_sweep(path: Path | str) -> Sweep:
    """Read a sweep file.

    Raises:
        JobError: it cannot be read or is not a valid sweep; names every problem by its key.
    """
    file = Path(path)
    try:
        text = read_settings(file, JobError)
    except FileNotFoundError as error:
        raise JobError(f"{file}: no such sweep file; docs/sweeps.md shows one") from error
    sweep = parse_sweep(text, str(file), file.parent)
    if sweep.job in EMBEDDED:
        return sweep
    return sweep.model_copy(update={"job": str((file.parent / sweep.job).resolve())})


def parse_sweep(text: str, where: str, beside: Path | None = None) -> Sweep:
    """Check the text of a sweep file; ``where`` names it in errors, its paths are relative to ``beside``."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{where}: not TOML: {error}") from error
    cases = table.get("cases", [])
    for settings in (table.get("settings"), *(cases if isinstance(cases, list) else ())):
        if isinstance(settings, dict) and beside is not None:
            resolve_paths(settings, beside)
    if {"data", "training"} & table.keys() and "job" not in table:
        raise JobError(f"{where}: this is a job file; train it with: tdcd train {where}")
    try:
        return Sweep.model_validate(table)
    except ValidationError as error:
        raise JobError("\n".join(f"{where}: {problem}" for problem in problems(error))) from error


def labels(keys: Iterable[str]) -> dict[str, str]:
    """Return what settings are called: the paper's letters, or as much of the key as tells them apart."""
    keys, words = list(keys), 1
    while True:
        result = {key: LABELS.get(key, ".".join(split_key(key)[-words:])) for key in keys}
        if len(set(result.values())) == len(result):
            return result
        words += 1
