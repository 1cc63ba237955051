"""Hubs and clients in one event loop that serve what a simulation has trained; all else is as at sites."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tdcd.data.arrays import Array
from tdcd.errors import TdcdError
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import TableJob
from tdcd.runs.layout import RESULT
from tdcd.runs.records import Outcome, read_record
from tdcd.runs.store import RunDirectory
from tdcd.serving.model import Model, load_model
from tdcd.sites.asking import Asker, Scores
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.serving import Server
from tdcd.sites.client.session import Session
from tdcd.sites.hub.peers import Peer
from tdcd.sites.hub.serving import ServingHub, build_serving
from tdcd.sites.messages.frames import Frame, Message, Stamp, frames
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.predictions import LookedUp
from tdcd.sites.participants import silos_of
from tdcd.sites.security.identity import Identity
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite
from tdcd.sites.transport.base import Stream
from tdcd.sites.transport.memory import MemoryHub

RUN = "0123456789abcdef"


def train(job: TableJob, folder: Path) -> Model:
    """Simulate a training; leave the run of each hub in a folder of its own."""
    run_job(job, folder / "central")
    run = load_model(folder / "central")
    outcome = read_record(folder / "central" / RESULT, Outcome)
    every = run.result.description
    for silo in job.silos:
        own = tuple(one for one in every.silos if one.name == silo)
        others = tuple(one.name for one in every.silos if one.name != silo)
        with RunDirectory.open(folder / silo, job.as_table(), resume=False, is_hub=True) as files:
            files.begin_run(RUN)
            files.begin(replace(every, silos=own, peers=others, run=RUN), run.result.history)
            if silo in run.preparations:
                files.save_preparation(silo, run.preparations[silo].to_json())
            files.finish(outcome, {silo: run.result.blocks[silo]})
    return run


class Line(MemoryHub):
    """A line to a hub, which may lose what it carries, and counts it."""

    def __init__(self, caller: Identity) -> None:
        super().__init__(caller=caller)
        self.vanishes = False
        self.asked: list[Frame] = []
        self.alter: Callable[[Frame], Frame] = lambda frame: frame

    async def predict(self, silo: str, frame: Frame, timeout: float) -> Frame:
        self.asked.append(frame)
        await self._pass(timeout)
        return self.alter(await super().predict(silo, frame, timeout))

    async def answers(self, timeout: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._pass(3600)
                return await super().answers(timeout)
        return False

    async def _pass(self, timeout: float) -> None:
        if self.vanishes:
            await asyncio.sleep(timeout)


@dataclass
class Sites:
    """All hubs and clients of a job that was trained in a folder."""

    job: TableJob
    folder: Path
    tables: Mapping[Identity, Path] = field(default_factory=dict)
    """Of those to predict, where they are not what was trained on."""
    hubs: dict[str, ServingHub] = field(default_factory=dict)
    lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    """From one hub to another."""
    servers: dict[Identity, Server] = field(default_factory=dict)
    heard: list[tuple[Identity, str]] = field(default_factory=list)
    """What clients were asked, by kind."""
    log: list[str] = field(default_factory=list)
    alter: tuple[Identity, Callable[[Message], Message]] | None = None
    """Makes a hostile answer of an honest one, where a client looks IDs up."""
    _doors: dict[str, MemoryHub] = field(default_factory=dict)
    _tasks: dict[Identity, "asyncio.Task[None]"] = field(default_factory=dict)

    def add_hub(self, silo: str) -> ServingHub:
        """Start a hub, perhaps again."""
        names = silos_of(self.job, None)
        for other in names:
            self._doors.setdefault(other, MemoryHub())
        peers = {other: Peer(other, "memory:1", self._line(silo, other)) for other in names if other != silo}
        hub = build_serving(
            self.job, silo, names[silo], peers, self.folder / silo, lambda line: self.log.append(f"{silo}: {line}")
        )
        self.hubs[silo] = self._doors[silo].service = hub
        hub.open()
        for (_, other), line in self.lines.items():
            if other == silo:
                line.service = hub
        return hub

    def _line(self, silo: str, other: str) -> Line:
        line = self.lines.setdefault((silo, other), Line(Identity(silo)))
        line.service = self.hubs.get(other)
        return line

    def stop_hub(self, silo: str) -> None:
        """Take a hub away."""
        for link in self.hubs.pop(silo).clients.links.values():
            link.stream.cut()  # type: ignore[attr-defined]
        self._doors[silo].service = None
        for (_, other), line in self.lines.items():
            if other == silo:
                line.service = None

    def add_client(self, who: Identity, *, serves: bool = True) -> None:
        """Start a client."""
        data = self.job.silos[who.silo].files[who.client or ""].file
        serve = self.tables.get(who)
        site = ClientSite(data=data, serve=str(serve) if serve else None, workers=1)

        def log(line: str) -> None:
            self.log.append(f"{who.silo}/{who.client}: {line}")

        server = Server(self.job, who, site, log) if serves else None
        if server:
            self.servers[who] = server
            reply = server.reply

            def listen(request: Message) -> object:
                self.heard.append((who, request.kind))
                return reply(request)

            server.reply = listen  # type: ignore[method-assign]
        session = Session(self.job, who, site, log)
        process = ClientProcess(session, SharedJob.of(self.job), self._doors[who.silo], log, 30.0, server)
        send = process._send

        async def altered(stream: Stream, message: object, stamp: Stamp = Stamp()) -> None:  # noqa: B008
            if self.alter and self.alter[0] == who and isinstance(message, LookedUp):
                for piece in frames(self.alter[1](pack(message, stamp))):
                    await stream.send(piece)
            else:
                await send(stream, message, stamp)

        process._send = altered  # type: ignore[method-assign]
        self._tasks[who] = asyncio.ensure_future(self._run(process))

    async def _run(self, process: ClientProcess) -> None:
        try:
            await process.run()
        except TdcdError as error:
            process.log(str(error))

    def stop_client(self, who: Identity) -> None:
        """Take a client away."""
        self._tasks.pop(who).cancel()

    def everybody(self) -> list[Identity]:
        return [Identity(silo, client) for silo, names in silos_of(self.job, None).items() for client in names]

    async def until_ready(self, but: set[Identity] = frozenset()) -> None:  # type: ignore[assignment]
        """Wait until all clients are ready but some."""
        wanted = {who for who in self.everybody() if who not in but}
        async with asyncio.timeout(30):
            while {Identity(s, name) for s, hub in self.hubs.items() for name in hub.clients.ready} != wanted:
                await asyncio.sleep(0.01)

    async def asker(self, silo: str | None = None, caller: Identity | None = None) -> Asker:
        """Return a program that asks at a silo; by default at the one that may, with its hub's certificate."""
        silo = silo or self.job.predict_at
        return await Asker.open(MemoryHub(self.hubs[silo], caller or Identity(silo)), silo)

    async def ask(self, ids: list[Any]) -> Scores:
        return await (await self.asker()).ask(np.array(ids))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Sites"]:
        """Start everybody, and stop them at the end."""
        for silo in self.job.silos:
            self.add_hub(silo)
        for who in self.everybody():
            self.add_client(who)
        try:
            await self.until_ready()
            yield self
        finally:
            for hub in self.hubs.values():
                await hub.close()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def central(run: Model, job: TableJob, tables: Mapping[Identity, Path] | None = None) -> tuple[Array, Any]:
    """Return what the whole model in one place says: IDs in ascending order, and the frame of predictions."""
    files: dict[str, list[Path | str]] = {}
    for silo, own in job.silos.items():
        for client, one in own.files.items():
            files.setdefault(f"{silo}/{client}", []).append((tables or {}).get(Identity(silo, client), one.file))
    frame = run.predict_tables(files).frame
    return frame["id"].to_numpy(), frame
