"""From a job to a trained federation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tdcd.core.topology import Samples
from tdcd.data.arrays import Array
from tdcd.data.federation import Federation, Silo, samples
from tdcd.data.sources import SOURCES, Source
from tdcd.data.splits import held_out
from tdcd.errors import DataError, JobError, listed
from tdcd.experiments.job import Job, known_silos
from tdcd.training.result import Result
from tdcd.training.train import Observer, train


@dataclass(frozen=True)
class JobResult:
    """What a job gave: the federation's result, and those of the baselines by name."""

    federation: Result
    alone: Mapping[str, Result]
    """What each silo reached by itself, when the job asked for it."""


class JobObserver(Observer):
    """Is told how a job goes: which training begins, and how each goes."""

    def training(self, name: str, federation: Federation) -> None:
        """Training ``name`` ("federation", or "left alone") is about to begin."""


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
    federation, test = materialise(job, where)
    models = {silo: job.silos[silo].model or job.model if silo in job.silos else job.model for silo in federation.silos}

    def trained(name: str, part: Federation, test: Samples, job: Job, path: Path | None) -> Result:
        observer.training(name, part)
        return train(
            part,
            {silo: models[silo] for silo in part.silos},
            job.training,
            test=test,
            engine=job.engine,
            compute=job.compute,
            workers=job.workers,
            device=job.device,
            directory=path,
            resume=resume,
            job=job.as_table(),
            observer=observer,
        )

    whole = trained("federation", federation, test, job, directory)
    alone = {}
    if "alone" in job.baselines:
        for silo in federation.silos:
            path = directory / "alone" / silo if directory else None
            part = job.model_copy(update={"name": f"{job.name}-{silo}-alone", "baselines": []})
            alone[silo] = trained(f"{silo} alone", federation.only(silo), test.only(silo), part, path)
    return JobResult(whole, alone)


def materialise(job: Job, where: str = "job") -> tuple[Federation, Samples]:
    """Load a job's data and deal it: the federation to train, the samples to test."""
    source = SOURCES[job.data.source]()
    known_silos(job.silos, source.features, where)
    ids = np.arange(len(source.labels))
    testing = held_out(ids, job.data.test_fraction, job.data.seed)
    for part, mask in (("test", testing), ("training", ~testing)):
        if not mask.any():
            raise DataError(f"{where}: data.test_fraction = {job.data.test_fraction} leaves no {part} samples")
    if source.table:
        source = _standardised(source, ~testing)
    clients = _clients(job, source.features, where)
    silos = [
        Silo(
            name=silo,
            features=rows[~testing],
            ids=ids[~testing],
            clients=job.data.rows.deal(ids[~testing], source.labels[~testing], clients[silo], silo, job.data.seed),
        )
        for silo, rows in source.features.items()
    ]
    return (
        Federation.from_silos(silos, source.labels[~testing], ids[~testing]),
        samples({silo: rows[testing] for silo, rows in source.features.items()}, source.labels[testing]),
    )


def _clients(job: Job, silos: Iterable[str], where: str) -> dict[str, int]:
    """Return each silo's number of clients."""
    found = {silo: (job.silos[silo].clients if silo in job.silos else None) or job.data.clients for silo in silos}
    if job.data.rows.same and len(set(found.values())) > 1:
        raise JobError(
            f"{where}: data.rows.same = true deals the same IDs to client k of every silo, so all need the same "
            f"number of clients; here they are {listed(f'{silo} {count}' for silo, count in found.items())}"
        )
    return found


def _standardised(source: Source, training: Array) -> Source:
    """Give every column mean 0 and deviation 1 over the training rows."""
    scaled = {}
    for silo, rows in source.features.items():
        deviation = rows[training].std(axis=0)
        scaled[silo] = (rows - rows[training].mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return replace(source, features=scaled)
