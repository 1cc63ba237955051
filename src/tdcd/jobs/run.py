"""From a job to a trained federation, and to what it is compared with.

federation   every silo, every client: the job as it stands
one-tier     every silo, all of its rows at one client: the split into clients is gone
central      the same by plain steps, an exchange after each: stochastic gradient descent on the joined data
SILO alone   one silo, all of its rows at one client, by plain steps: what it can do without the others
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.core.aggregators import Average, HubMomentum
from tdcd.core.codecs import Plain
from tdcd.core.optimizers import SGD
from tdcd.data.federation import Federation
from tdcd.data.holdout import Part
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.schema import Baseline, Job
from tdcd.runs.layout import FEDERATED, variant_directory
from tdcd.training.callbacks import Callback
from tdcd.training.labels import Labels
from tdcd.training.result import Result
from tdcd.training.schedules import Constant, Cosine, Step, Theory
from tdcd.training.settings import Settings, SiloSettings
from tdcd.training.setup import device_of, prepare
from tdcd.training.simulation import build_engine
from tdcd.training.train import train


@dataclass(frozen=True)
class JobResult:
    """What a job gave: the federation's result, and those of the baselines by name."""

    federation: Result
    baselines: Mapping[str, Result]
    """What the job asked for to compare with: "central", "one-tier", and "SILO alone" for every silo."""

    @property
    def all(self) -> dict[str, Result]:
        """Every training by its name."""
        return {"federation": self.federation, **self.baselines}


class JobCallback(Callback):
    """Follows a job: what is read, which training begins, and its progress."""

    def reading(self, what: str) -> None:
        """Something is about to be read, which may take a while."""

    def waiting(self, what: str) -> None:
        """Something else is about to happen that takes seconds, such as "starting a Ray cluster on this machine"."""

    def training(self, name: str, federation: Federation) -> None:
        """Training ``name`` ("federation", "central", "one-tier" or "left alone") is about to begin."""


def run_job(
    job: Job,
    directory: Path | str | None = None,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    where: str = "job",
) -> JobResult:
    """Run a job: the federation, then its baselines, each in its own run directory.

    Args:
        job: What to train.
        directory: The run directory; baselines lie under it. Without one, nothing is written.
        resume: Go on with what is in the directory.
        callbacks: Follow every training, and may stop it; a ``JobCallback`` also hears what is read and trained.
        where: How to call the job in errors.
    """

    def reading(what: str) -> None:
        for callback in _of_jobs(callbacks):
            callback.reading(what)

    job.check_found()
    at_nodes = None
    if job.engine == "ray":  # before much is read for nothing
        from tdcd.cluster.ray_fleet import connect
        from tdcd.cluster.ray_session import announce

        for follower in _of_jobs(callbacks):
            follower.waiting(announce(job.address))
        at_nodes = connect(job.address).each
    data = load_data(job, where, reading, at_nodes)
    for note in data.federation.notes:
        for callback in callbacks:
            callback.noted(note)
    record = {}
    for variant in (FEDERATED, *baselines(job.baselines, data.federation.with_features)):
        path = variant_directory(Path(directory), variant) if directory is not None else None
        record[variant] = run_variant(job, data, variant, path, resume=resume, callbacks=callbacks)
    return JobResult(record.pop(FEDERATED), record)


def plan_computation(job: Job, data: JobData) -> tuple[Mapping[str, str], Sequence[str]]:
    """Return how each silo's clients would be computed, and what the user should know of it; nothing is trained."""
    federation = data.federation
    models = {silo: job.model_of(silo) for silo in federation.with_features}
    setup = prepare(federation, models, job.training, None, None, device_of(job.device), job.labels, job.silos)
    training = setup.training(job.training, federation.rosters)
    engine = build_engine("local" if job.engine == "ray" else job.engine, training, job.compute, job.workers)
    return engine.compute_plan, (*setup.notes, *engine.notes)


def baselines(kinds: Sequence[Baseline], silos: Sequence[str]) -> list[str]:
    """Name the variants that a list of baselines stands for: "alone" is one for every silo."""
    return [name for kind in kinds for name in ([f"{silo} alone" for silo in silos] if kind == "alone" else [kind])]


def run_variant(
    job: Job,
    data: JobData,
    variant: str,
    directory: Path | None,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    workers: int | None = None,
) -> Result:
    """Train one variant of a job on data that is already read.

    Raises:
        JobError: a setting is yet to be found.
    """
    job.check_found()
    federation, chosen = variant_data(data.federation, variant), variant_job(job, variant)
    for callback in _of_jobs(callbacks):
        callback.training(variant, federation)
    return train(
        federation,
        {silo: job.model_of(silo) for silo in federation.with_features},
        chosen.training,
        silos={silo: own for silo, own in chosen.silos.items() if silo in federation.silos},
        labels=None if variant.endswith(" alone") else chosen.labels,
        validation=data.held_out.get(Part.VALIDATION),
        test=data.held_out.get(Part.TEST),
        engine=job.engine,
        compute=job.compute,
        workers=job.workers or workers,
        device=job.device,
        address=job.address,
        directory=directory,
        resume=resume,
        job=chosen.as_table(),
        variant=variant,
        callbacks=callbacks,
    )


def _of_jobs(callbacks: Sequence[Callback]) -> list[JobCallback]:
    return [callback for callback in callbacks if isinstance(callback, JobCallback)]


def variant_data(federation: Federation, variant: str) -> Federation:
    """Return the data as a variant has it."""
    if variant == FEDERATED:
        return federation
    if variant.endswith(" alone"):
        federation = federation.only(variant.removesuffix(" alone"))
    return federation.pooled()


def variant_job(job: Job, variant: str) -> Job:
    """Return the job of a variant: for all but the federation and one tier, plain steps."""
    if variant == FEDERATED:
        return job
    name = f"{job.name}-{variant.replace(' ', '-')}"
    if variant == "one-tier":
        return job.model_copy(update={"name": name, "baselines": []})
    labels = job.labels
    if labels.private:  # all is in one place, so nothing is private
        labels = Labels(silo=labels.silo, sharing="shared", positive=labels.positive, classes=labels.classes)
    common = dict.fromkeys(SiloSettings.model_fields)  # what silos do in their own way, baselines do together
    silos = {silo: own.model_copy(update=common) for silo, own in job.silos.items()}
    return job.model_copy(
        update={"name": name, "baselines": [], "labels": labels, "training": plain_steps(job.training), "silos": silos}
    )


def carried(settings: Settings) -> dict[str, Any]:
    """Return the settings of an optimizer that remembers from step to step, where each step is a round.

    A hub can carry SGD's momentum itself; what other optimizers remember travels with the weights.
    """
    common: dict[str, Any] = {"proximal": 0.0, "aggregator": Average(), "carry_optimizer": False}
    if not isinstance(settings.optimizer, SGD):
        return common | {"carry_optimizer": True}
    momentum = settings.optimizer.momentum
    return common | ({"optimizer": SGD(), "aggregator": HubMomentum(momentum)} if momentum else {})


def plain_steps(settings: Settings) -> Settings:
    """Return the settings of as many gradient steps with an exchange after each of them.

    With all rows at one client a silo and one local step a round, a round is one step of plain stochastic gradient
    descent on the whole model. Momentum is carried from step to step, as it is where all data is in one place. Nothing
    travels there, so there is nothing to encode, nobody takes turns, and no silo can be missing.
    """
    steps = settings.local_steps
    rate, schedule = settings.rate, settings.schedule
    if isinstance(schedule, Step):
        schedule = Step(every=schedule.every * steps, factor=schedule.factor)
    elif isinstance(schedule, Cosine) and schedule.over:
        schedule = Cosine(final=schedule.final, over=schedule.over * steps)
    elif isinstance(schedule, Theory):
        rate, schedule = settings.rate_of(1), Constant()
    return settings.model_copy(
        update={
            "local_steps": 1,
            "codec": Plain(),
            "codec_for": "all",
            "participation": 1.0,
            "silo_dropout": 0.0,
            **carried(settings),
            "rounds": settings.rounds * steps,
            "rate": rate,
            "schedule": schedule,
            "evaluate_every": settings.evaluate_every * steps,
            "checkpoint_every": settings.checkpoint_every * steps,
        }
    )
