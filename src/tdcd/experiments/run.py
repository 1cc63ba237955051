"""From a job to a trained federation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tdcd.data.federation import Federation
from tdcd.data.splits import Part
from tdcd.experiments.data import load_data
from tdcd.experiments.job import Job
from tdcd.training.result import Result
from tdcd.training.schedules import Constant, Step, Theory
from tdcd.training.settings import Settings
from tdcd.training.train import Observer, train


@dataclass(frozen=True)
class JobResult:
    """What a job gave: the federation's result, and those of the baselines by name."""

    federation: Result
    baselines: Mapping[str, Result]
    """What the job asked for to compare with: "central", and "SILO alone" for every silo."""

    @property
    def all(self) -> dict[str, Result]:
        """Every training by its name."""
        return {"federation": self.federation, **self.baselines}


class JobObserver(Observer):
    """Is told how a job goes: what is read, which training begins, and how each goes."""

    def reading(self, what: str) -> None:
        """Something is about to be read, which may take a while."""

    def noted(self, note: str) -> None:
        """Something that the user should know of the data."""

    def training(self, name: str, federation: Federation) -> None:
        """Training ``name`` ("federation", "central" or "left alone") is about to begin."""


def run_job(
    job: Job,
    directory: Path | str | None = None,
    *,
    resume: bool = False,
    observer: JobObserver | None = None,
    where: str = "job",
) -> JobResult:
    """Run a job: the federation, then its baselines, each in its own run directory.

    Args:
        job: What to train.
        directory: The run directory; baselines lie under it. Without one, nothing is written.
        resume: Go on with what is in the directory.
        observer: Is told how it goes.
        where: How to call the job in errors.
    """
    observer = observer or JobObserver()
    directory = Path(directory) if directory is not None else None
    data = load_data(job, where, observer.reading)
    for note in data.federation.notes:
        observer.noted(note)
    silos = data.federation.silos

    def trained(name: str, federation: Federation, job: Job, path: Path | None) -> Result:
        observer.training(name, federation)
        return train(
            federation,
            {silo: job.model_of(silo) for silo in federation.silos},
            job.training,
            validation=data.held_out.get(Part.VALIDATION),
            test=data.held_out.get(Part.TEST),
            engine=job.engine,
            compute=job.compute,
            workers=job.workers,
            device=job.device,
            directory=path,
            resume=resume,
            job=job.as_table(),
            observer=observer,
        )

    def baseline(name: str, training: Settings) -> Job:
        return job.model_copy(update={"name": f"{job.name}-{name}", "baselines": [], "training": training})

    whole = trained("federation", data.federation, job, directory)
    found = {}
    if "central" in job.baselines:
        path = directory / "central" if directory else None
        found["central"] = trained(
            "central", data.federation.pooled(), baseline("central", central(job.training)), path
        )
    for silo in silos if "alone" in job.baselines else ():
        path = directory / "alone" / silo if directory else None
        part = baseline(f"{silo}-alone", job.training)
        found[f"{silo} alone"] = trained(f"{silo} alone", data.federation.only(silo), part, path)
    return JobResult(whole, found)


def central(settings: Settings) -> Settings:
    """Return the settings of central training by as many gradient steps: an exchange after each of them.

    With all rows at one client a silo and one local step a round, a round is one step of plain stochastic gradient
    descent on the whole model.
    """
    steps = settings.local_steps
    rate, schedule = settings.rate, settings.schedule
    if isinstance(schedule, Step):
        schedule = Step(every=schedule.every * steps, factor=schedule.factor)
    elif isinstance(schedule, Theory):
        rate, schedule = settings.rate_of(1), Constant()
    return settings.model_copy(
        update={
            "local_steps": 1,
            "rounds": settings.rounds * steps,
            "rate": rate,
            "schedule": schedule,
            "evaluate_every": settings.evaluate_every * steps,
            "checkpoint_every": settings.checkpoint_every * steps,
        }
    )
