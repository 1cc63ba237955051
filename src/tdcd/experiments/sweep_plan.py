"""The plan of a sweep: every combination of its grid, and the runs that each stands for."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import product
from typing import Any

from tdcd.core.codecs import Plain
from tdcd.errors import JobError, join_names, nearest
from tdcd.experiments.sweep_file import LABELS, STEPS, Sweep, labels
from tdcd.files import flat, quoted_key
from tdcd.jobs.load import load_job
from tdcd.jobs.run import carried, variant_job
from tdcd.jobs.schema import Baseline, Job
from tdcd.jobs.sources import FunctionData
from tdcd.training.settings import Settings, SiloSettings

RATE, SEED, DATA_SEED = "training.rate", "training.seed", "data.seed"
RESERVED = {
    SEED: "write seeds = [1, 2] at the top of the sweep instead",
    "training.rounds": "write iterations, in local steps, at the top of the sweep instead",
    "training.evaluate_every": "write evaluate_every, in local steps, at the top of the sweep instead",
    "baselines": "write them at the top of the sweep instead",
    "name": "the sweep has a name of its own",
}
"""Settings of a job that a sweep has its own words for."""
ROWS = ("data.clients", "data.rows", "training.averaging")
"""Settings that make no difference once all rows of a silo are at one client."""


@dataclass(frozen=True)
class Combination:
    """One combination of a grid for one variant; every seed is a run of it."""

    variant: str
    """"federation", "central", "one-tier" or "SILO alone"."""
    values: Mapping[str, Any]
    """The value of every axis that makes a difference to it, by the axis's label."""
    job: Job
    """The job with the first seed; its rate may yet be chosen."""
    trained_as: "Combination | None" = None
    """Another combination that is the same training, so that this one need not be trained."""

    @property
    def name(self) -> str:
        """A name for people and for files."""
        parts = [] if self.variant == "federation" else [self.variant.replace(" ", "-")]
        parts += [_describe_value(axis, value) for axis, value in self.values.items()]
        return ",".join(parts) or "federation"


@dataclass(frozen=True)
class SweepRun:
    """One training of a sweep."""

    name: str
    """Its place in the sweep's directory, such as "runs/Q=10,K=20,seed=1"."""
    variant: str
    job: Job

    @property
    def stored(self) -> Job:
        """The job as its run directory keeps it."""
        return variant_job(self.job, self.variant)


def combinations(
    sweep: Sweep, where: str, overrides: Mapping[str, Any], silos: Callable[[Job], Sequence[str]] | None
) -> list[Combination]:
    """Return every combination of a sweep's grid, then those of its baselines.

    Args:
        sweep: What to combine.
        where: How to call the sweep in errors.
        overrides: Settings that replace those of the sweep, such as the data's directory.
        silos: Tells the silos of a job, to train each alone; without it, none is.

    Raises:
        JobError: something of it is no valid job; says what.
    """
    _check(sweep, where, overrides)
    points = [(case, settings, values) for case, settings in _cases(sweep) for values in _values(sweep)]
    parts = [
        Combination("federation", _axes(sweep, case, values), _job(sweep, where, {**settings, **values, **overrides}))
        for case, settings, values in points
    ]
    doubles = [name for name, count in Counter(combination.name for combination in parts).items() if count > 1]
    if doubles:
        raise JobError(f"{where}: two combinations would have the same name: {join_names(doubles)}")
    federated = parts.copy()
    for kind in sweep.baselines:
        for (case, settings, values), own in zip(points, federated, strict=True):
            kept = {key: value for key, value in values.items() if matters(key, kind)}
            plain = {} if kind == "one-tier" else _single_steps(own.job.training)
            job, axes = _job(sweep, where, {**settings, **kept, **overrides, **plain}), _axes(sweep, case, kept)
            if kind == "alone":
                parts += [Combination(f"{silo} alone", axes, job) for silo in (silos(job) if silos else ())]
            else:
                parts.append(Combination(kind, axes, job, _central(sweep, kind, axes, job)))
    distinct = list({combination.name: combination for combination in parts}.values())
    for combination in distinct:
        trials(sweep, combination, where)  # their length must fit, too
    return distinct


def _single_steps(settings: Settings) -> dict[str, Any]:
    """Return the settings of single steps, as a sweep file would have them. See ``plain_steps``."""
    dumped = settings.model_copy(update=carried(settings)).model_dump()
    return {STEPS: 1} | {f"training.{key}": dumped[key] for key in carried(settings)}


def _central(sweep: Sweep, kind: Baseline, axes: Mapping[str, Any], job: Job) -> Combination | None:
    """Return the central training that one tier by single steps is, where that is trained as well."""
    if kind == "central" or job.training.local_steps > 1 or "central" not in sweep.baselines:
        return None
    if job.training.codec != Plain() or any(job.settings_of(silo) is not job.training for silo in job.silos):
        return None
    return Combination("central", {axis: value for axis, value in axes.items() if axis != LABELS[STEPS]}, job)


def _check(sweep: Sweep, where: str, overrides: Mapping[str, Any]) -> None:
    """Refuse settings that would be without effect, or would have another effect than their name in the report says."""
    grid = sweep.axes
    fixed = {"settings": _settings(sweep.settings), "--set": overrides}
    fixed |= {f"case '{case['name']}'": _own(case) for case in sweep.cases}
    for place, keys in (("grid", grid), *fixed.items()):
        for key in keys:
            if key in RESERVED:
                raise JobError(f"{where}: {place}: {key}: {RESERVED[key]}")
            if key == RATE and sweep.select:
                raise JobError(f"{where}: {place}: {key}: [select] chooses it; leave one of the two out")
            if key == DATA_SEED and sweep.seeds_of == "partition":
                raise JobError(f'{where}: {place}: {key}: seeds_of = "partition" sets it; leave one of the two out')
    cased = {key: None for place, keys in fixed.items() if place.startswith("case ") for key in keys}
    for place, keys in fixed.items():
        for key in keys:
            varied = {**grid, **cased} if place == "--set" else grid
            clash = [axis for axis in varied if f"{key}.".startswith(f"{axis}.") or _sets(key, keys[key], axis)]
            if clash:
                raise JobError(f"{where}: {place}: {key}: the sweep varies {clash[0]}; leave one of the two out")


def _sets(key: str, value: Any, axis: str) -> bool:
    """Tell whether a setting that is a table sets what an axis below it varies."""
    below = axis.removeprefix(f"{key}.")
    return below != axis and (not isinstance(value, Mapping) or below in dict(flat(value)))


def matters(key: str, baseline: Baseline) -> bool:
    """Tell whether a setting makes a difference to a baseline."""
    if any(key == rows or key.startswith(f"{rows}.") for rows in ROWS):
        return False
    plain = ("codec", "codec_for", "participation", "silo_dropout")
    of_rounds = key in (STEPS, *(f"training.{name}" for name in plain))
    of_silos = key.startswith("silos.") and key.rpartition(".")[2] in SiloSettings.model_fields
    return baseline == "one-tier" or not (of_rounds or of_silos)


def trials(sweep: Sweep, combination: Combination, where: str = "sweep") -> dict[float, SweepRun]:
    """Return the short runs that choose a combination's rate, by their rates."""
    if not sweep.select:
        return {}
    combination = combination.trained_as or combination
    data = combination.job.data
    holds_out = any(getattr(data, key, None) for key in ("validation_fraction", "split_column"))
    if sweep.select.by == "validation" and not (holds_out or isinstance(data, FunctionData)):
        raise JobError(
            f'{where}: select.by = "validation" needs held-out samples: set data.validation_fraction, such as 0.1'
        )
    rounds = _rounds(sweep.select.iterations, combination.job, f"{where}: select.iterations")
    return {
        rate: SweepRun(
            f"trials/{combination.name},rate={rate}",
            combination.variant,
            _changed(combination.job, rate=rate, rounds=rounds),
        )
        for rate in sweep.select.rates
    }


def runs(sweep: Sweep, combination: Combination, rate: float | None) -> dict[int, SweepRun]:
    """Return the runs of a combination by their seeds."""
    combination = combination.trained_as or combination
    job = combination.job if rate is None else _changed(combination.job, rate=rate)
    return {
        seed: SweepRun(f"runs/{combination.name},seed={seed}", combination.variant, _seeded(sweep, job, seed))
        for seed in sweep.seeds
    }


def _seeded(sweep: Sweep, job: Job, seed: int) -> Job:
    """Return a job with another seed of all that the sweep's seeds draw."""
    job = _changed(job, seed=seed)
    if sweep.seeds_of == "training":
        return job
    if isinstance(job.data, FunctionData):
        raise JobError(f'seeds_of = "partition": the function {job.data.source} draws no partition from data.seed')
    return job.model_copy(update={"data": job.data.model_copy(update={"seed": seed})})


def data_key(job: Job) -> str:
    """Return what decides which silos a job's data has."""
    table = job.as_table()
    data = {key: value for key, value in table["data"].items() if key not in ("clients", "rows")}
    return json.dumps([data, sorted(job.silos)])


def _axes(sweep: Sweep, case: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a combination varies, by the names that figures use."""
    named = labels(sweep.axes)
    return ({"case": case} if case else {}) | {named[key]: value for key, value in values.items()}


def _cases(sweep: Sweep) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings of every case, over those of all runs, by its name."""
    common = _settings(sweep.settings)
    if not sweep.cases:
        return [("", common)]
    return [(case["name"], common | _own(case)) for case in sweep.cases]


def _own(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a case by their dotted keys."""
    return _settings({key: value for key, value in case.items() if key != "name"})


def _settings(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return settings by their dotted keys; a table with a kind, or an empty one, replaces the job's as a whole."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        inner = isinstance(value, Mapping) and value and "kind" not in value
        name = f"{above}{quoted_key(key)}"
        result |= _settings(value, f"{name}.") if inner else {name: value}
    return result


def _values(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Yield every combination of the grid's values."""
    for values in product(*sweep.axes.values()):
        yield dict(zip(sweep.axes, values, strict=True))


def _job(sweep: Sweep, where: str, settings: dict[str, Any]) -> Job:
    """Return the job of a combination with the first seed."""
    clients = settings.pop("data.clients", None)  # K is meant for every silo, also for one with a number of its own
    settings |= {"baselines": [], "training.rounds": 1, SEED: sweep.seeds[0]}
    try:
        job = load_job(sweep.job, deepcopy(settings), clients)
    except JobError as error:
        raise JobError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from error
    job.check_found()
    known, metric = job.training.objective.metrics, sweep.report.metric
    if metric is not None and metric not in known:
        loss = job.training.loss_kind
        raise JobError(f"{where}: report.metric: '{metric}' is not measured with {loss}{nearest(metric, known)}")
    return _changed(
        _seeded(sweep, job, sweep.seeds[0]),
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


def _describe_value(axis: str, value: Any) -> str:
    """Write a value for the name of a file."""
    text = _plain(value) if axis == "case" else f"{axis}={_plain(value)}"
    return re.sub(r"[^A-Za-z0-9._+=-]+", "-", text)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(_plain(part) for _, part in flat(value))
    if isinstance(value, list):
        return "x".join(map(_plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
