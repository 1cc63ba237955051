"""A run's training once more: its job, its data and a simulation that computes the same rounds."""

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from tdcd.data.holdout import Part
from tdcd.errors import RunError, join_names
from tdcd.jobs.data import load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.run import variant_data
from tdcd.jobs.schema import FunctionJob, Job
from tdcd.models import Imported
from tdcd.runs.layout import JOB
from tdcd.runs.reader import RunRecord, read_run
from tdcd.runs.theory import TheoryRecord
from tdcd.training.result import check_allowed
from tdcd.training.simulation import Simulation
from tdcd.training.train import fingerprints

SAME = 1e-3
"""Up to which relative difference two losses count as those of the same training."""


@dataclass(frozen=True)
class Repeat:
    """A run and a simulation of its training."""

    run: RunRecord
    simulation: Simulation

    @property
    def rounds(self) -> int:
        """The rounds that the run has computed."""
        return self.run.history[-1].round

    def seconds(self, rounds: int) -> float:
        """Return how long so many rounds took in the run, evaluations included."""
        last = next((line for line in self.run.history if line.round >= rounds), self.run.history[-1])
        return last.seconds * min(1.0, rounds / max(1, last.round))

    def check(self, record: TheoryRecord) -> TheoryRecord:
        """Compare the losses with those of the run; note it if they differ."""
        losses = {line.round: line.train["loss"] for line in self.run.history if line.train and not line.partial}
        both = [(losses[point.round], point.loss) for point in record.points if point.round in losses]
        apart = max((abs(new - old) / max(abs(old), 1e-12) for old, new in both), default=0.0)
        if apart < SAME:
            return record
        note = f"the losses differ from the run's by up to {apart:.1%}: another machine or version computed it"
        return replace(record, notes=(*record.notes, note))


def repeat_run(
    path: Path | str,
    imports: Container[str] = (),
    log: Callable[[str], None] = lambda what: None,  # noqa: ARG005
) -> Repeat:
    """Read a run's data again, and make a simulation of its training.

    Args:
        path: The run directory.
        imports: The modules that code of one's own may be imported from; other code does not run.
        log: Is called with the name of whatever is being read.

    Raises:
        RunError: the run cannot be repeated here, names code that is not allowed, or its data has changed since.
    """
    run = read_run(path)
    job = _repeatable(run)
    check_allowed(run.path, _named(job), imports)
    data = load_data(job, str(run.path / JOB), log)
    federation = variant_data(data.federation, run.variant)
    simulation = Simulation(
        federation,
        {silo: job.model_of(silo) for silo in federation.with_features},
        job.training,
        silos={silo: own for silo, own in job.silos.items() if silo in federation.silos},
        labels=None if run.variant.endswith(" alone") else job.labels,
        validation=data.held_out.get(Part.VALIDATION),
        test=data.held_out.get(Part.TEST),
        engine=job.engine,
        compute=job.compute,
        workers=job.workers,
        device=job.device,
    )
    recorded = run.sessions[0].inputs
    present = fingerprints(federation, simulation.setup, simulation.first, [])
    if changed := [name for name, digest in present.items() if recorded.get(name) != digest]:
        raise RunError(
            f"{run.path}: its training cannot be repeated: {join_names(changed)} changed since; train anew: "
            f"tdcd train {quote(str(run.path / JOB))}"
        )
    return Repeat(run, simulation)


def _repeatable(run: RunRecord) -> Job:
    """Return the job of a run that can be repeated in this process.

    Raises:
        RunError: it cannot; says what to do.
    """
    path, again = run.path, f"tdcd train {quote(str(run.path / JOB))}"
    if run.is_hub:
        raise RunError(
            f"{path} is the run of one hub, and the gradient of the whole loss needs the rows of all silos. Theory is "
            "for simulations: where the tables may be in one place, train the job there with tdcd train"
        )
    if run.status == "diverged":
        raise RunError(f"{path} diverged; train it with a smaller rate first: {again} --rate {_tenth(run):g}")
    if run.job.get("engine") == "ray":
        raise RunError(
            f"{path} was computed on a cluster, whose nodes read the rows; gradients are computed where the rows are. "
            f"Train it in one process: {again} --engine local"
        )
    if "data" not in run.job:
        raise RunError(
            f"{path} was trained from Python, so that its data is not recorded; from Python, call "
            "tdcd.measure_theory(tdcd.Simulation(federation, models, settings))"
        )
    if not run.history or not run.history[-1].round:
        raise RunError(f"{path} has no round yet; wait for its first evaluation")
    return parse_job(run.job, str(path / JOB))


def _tenth(run: RunRecord) -> float:
    return float(run.job["training"]["rate"]) / 10


def _named(job: Job) -> dict[str, str]:
    """Return the code that a job names by import paths, each under what it is."""
    models = {silo: job.model_of(silo) for silo in job.silos} if job.silos else {}
    named = {f"model of silo '{silo}'": model.kind for silo, model in models.items() if isinstance(model, Imported)}
    if isinstance(job.model, Imported):
        named["model"] = job.model.kind
    if isinstance(job, FunctionJob):
        named["data source"] = job.data.source
    return named | job.training.imports
