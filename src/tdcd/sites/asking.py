"""Asking across sites: a program at the silo that may ask, its own hub, and a table of predictions."""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tdcd.data.arrays import LONGEST, Array
from tdcd.data.tables.alignment import id_array
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.columns import whole_or_texts
from tdcd.data.tables.reader import Table
from tdcd.errors import AbsentError, DataError, DeploymentError, join_names
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import TableJob
from tdcd.serving.frames import prediction_frame
from tdcd.serving.tables import WITHOUT
from tdcd.sites.event_loop import event_loop
from tdcd.sites.hub.link import SMALL
from tdcd.sites.messages.frames import Message, RefusedError, Stamp, message_in, one_frame
from tdcd.sites.messages.packing import check_numbers, fits, pack, unpack
from tdcd.sites.messages.predictions import ANSWER, MOST_IDS, Describe, Described, Predict, Predicted
from tdcd.sites.participants import allow_imports, check_serves
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import HubSite, read_site
from tdcd.sites.status import hub_of
from tdcd.sites.transport.base import RefusalError, RemoteHub, UnreachableError

PATIENCE = 90.0
"""Seconds that a question may take."""
AT_ONCE = 4
"""Questions of a long list that are under way at a time."""
MOST_DESCRIPTION = 1 << 24


@dataclass(frozen=True)
class Scores:
    """What the silos say of some IDs together."""

    values: Tensor
    """(n, E)."""
    silos: tuple[str, ...]
    without: Tensor
    """Which silos they are without, (n, silos)."""


@dataclass(frozen=True)
class Asker:
    """A program that asks the hub of its own silo, over a line that stays open."""

    hub: RemoteHub
    about: Described
    """What it serves."""
    job: TableJob
    """As all sites share it."""
    silo: str

    @classmethod
    async def open(cls, hub: RemoteHub, silo: str) -> Self:
        """Ask the hub what it serves.

        Raises:
            DeploymentError: it serves nothing, is away, or refuses.
        """
        message = await _asked(hub, silo, pack(Describe()), MOST_DESCRIPTION)
        about = unpack(message, Described)
        return cls(hub, about, check_serves(parse_job(json.loads(about.job), "the job that the hub serves")), silo)

    @property
    def most(self) -> int:
        """IDs of a question, at most."""
        return min(self.about.most, MOST_IDS)

    async def ask(self, ids: Array) -> Scores:
        """Ask for the scores of some IDs, ``most`` of them at most.

        Raises:
            AbsentError: somebody is away whose part is needed.
            DeploymentError: the hub refuses, for instance as a silo does not have an ID.
        """
        about = self.about
        stamp = Stamp(SharedJob(about.job).fingerprint)
        question = pack(Predict(about.run, about.round, ids), stamp)
        reply = unpack(await _asked(self.hub, self.silo, question, ANSWER + SMALL + len(ids) * 1024), Predicted)
        scores = check_numbers(reply.scores, (len(ids), about.width), self.job.training.dtype, "scores")
        without = fits(reply.without, (len(ids), len(reply.silos)), torch.uint8, "silos that are left out")
        return Scores(scores, reply.silos, without.bool())


async def _asked(hub: RemoteHub, silo: str, question: Message, most: int) -> Message:
    try:
        return message_in(await hub.predict(silo, one_frame(question), PATIENCE), most)
    except RefusalError as error:
        raise DeploymentError(str(error)) from error
    except RefusedError as error:
        raise DeploymentError(f"the hub sends {error}") from error
    except UnreachableError as error:
        if await hub.answers(2.0):
            raise AbsentError(str(error)) from error
        raise AbsentError(f"the hub of this silo is away: {await hub.explain()}") from error


@dataclass(frozen=True)
class Answer:
    """Predictions across sites."""

    frame: pl.DataFrame
    partial: int
    """How many of them are without some silo."""


def predict_across_sites(
    path: Path, ids: Path, *, insecure: bool = False, on_progress: Callable[[int, int], None]
) -> Answer:
    """Ask the silo's hub for predictions, and all silos by way of it.

    Args:
        path: The site file of the hub.
        ids: A table with the column of IDs, or a text file with an ID a line.
        insecure: Do without TLS, on this machine only.
        on_progress: Takes how many IDs are predicted, and of how many.

    Raises:
        TdcdError: the IDs cannot be read, a silo does not have one, or somebody is away.
    """
    site = read_site(path, HubSite)
    hub = hub_of(path, site, insecure=insecure)
    with event_loop() as run:
        asker = run(Asker.open(hub, hub.silo))
        job = asker.job
        silo = hub.silo or job.predict_at
        allow_imports(job, silo, site)
        wanted = read_ids(ids, job, silo)
        scores = run(ask_all(asker, wanted, lambda done: on_progress(done, len(wanted))))
    frame = prediction_frame(job.training.objective, asker.about.classes, wanted, scores.values)
    partial = scores.without.any(1)
    if job.deployment.partial_predictions:
        names = np.array(scores.silos)
        texts = [", ".join(names[mask]) for mask in scores.without.numpy()]
        frame = frame.with_columns(pl.Series(WITHOUT, texts, dtype=pl.String))
    return Answer(frame, int(partial.sum()))


async def ask_all(asker: Asker, ids: Array, on_progress: Callable[[int], None]) -> Scores:
    """Ask for many IDs, some questions at a time."""
    done, room = 0, asyncio.Semaphore(AT_ONCE)

    async def ask(part: Array) -> Scores:
        nonlocal done
        async with room:
            result = await asker.ask(part)
        done += len(part)
        on_progress(done)
        return result

    tasks = [asyncio.ensure_future(ask(part)) for part in _parts(ids, asker.most)]
    try:
        parts = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    silos = tuple(sorted({silo for part in parts for silo in part.silos}))
    without = torch.cat([_without(part, silos) for part in parts])
    return Scores(torch.cat([part.values for part in parts]), silos, without)


def _parts(ids: Array, most: int) -> Iterator[Array]:
    for start in range(0, len(ids), most):
        yield ids[start : start + most]


def _without(part: Scores, silos: tuple[str, ...]) -> Tensor:
    """Return which silos a part is without, in the order of all silos."""
    columns = dict(zip(part.silos, part.without.unbind(1), strict=True))
    nobody = torch.zeros(len(part.values), dtype=torch.bool)
    return torch.stack([columns.get(silo, nobody) for silo in silos], 1) if silos else part.without


@dataclass(frozen=True)
class _IdTable(Table):
    """A table of IDs to ask about: no client's."""

    def __str__(self) -> str:
        return f"--ids {self.path}"

    def advise(self, key: str) -> str:
        """Say where to say how it is written."""
        return f"Set silos.{self.silo}.{key}"


def read_ids(path: Path, job: TableJob, silo: str) -> Array:
    """Read IDs: whole numbers or texts.

    Raises:
        DataError: there are none, or the file cannot be read.
    """
    if path.suffix.lower() == ".txt":
        return id_array(_read_lines(path))
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(
            f"--ids {path}: name a .csv or .parquet file with the column of IDs, or a .txt with an ID a line"
        )
    settings = job.silos[silo].with_formats()
    return id_array(ClientTable(_IdTable(silo, "", path, settings)).read_keys().ids)


def _read_lines(path: Path) -> pl.Series:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except FileNotFoundError as error:
        raise DataError(f"--ids {path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--ids {path}: cannot be read: {error}") from error
    texts = [line for line in lines if line]
    if not texts:
        raise DataError(f"--ids {path}: it holds no ID")
    if long := [text for text in texts if len(text) > LONGEST or "\0" in text]:
        raise DataError(
            f"--ids {path}: these are no IDs, of {LONGEST} letters at most: {join_names(t[:40] for t in long)}"
        )
    return whole_or_texts(pl.Series("id", texts))
