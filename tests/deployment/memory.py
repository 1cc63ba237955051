"""A deployment without a network: hubs and clients in one event loop, with everything else as it is at real sites."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from tdcd.core.network import Block
from tdcd.core.state import SiloState
from tdcd.deployment.clients import Clients, Link
from tdcd.deployment.hub import Hub
from tdcd.deployment.identity import Identity
from tdcd.deployment.messages import Assembler, Message, frames
from tdcd.deployment.party import Party
from tdcd.deployment.peers import LARGEST, EarlyError, Peer, Peers
from tdcd.deployment.run import read_set, silos_of
from tdcd.deployment.shared import SharedJob
from tdcd.deployment.site import ClientSite
from tdcd.deployment.wire.tdcd_pb2 import Frame, Hello, Opening, Receipt
from tdcd.errors import TdcdError
from tdcd.experiments.job import Job, TableData

Fault = Callable[[Identity, Message], str]
"""What a client does when it is asked something: "" answer, "die", "hang" until much later."""


def _no_fault(who: Identity, message: Message) -> str:
    return ""


class Line:
    """One client's stream, in memory."""

    def __init__(self) -> None:
        self.down: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.up: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.cut = False

    async def read(self) -> Any:
        frame = await self.up.get()
        return grpc.aio.EOF if frame is None else frame

    async def write(self, frame: Frame) -> None:
        if self.cut:
            raise asyncio.InvalidStateError
        await self.down.put(frame)

    def close(self) -> None:
        self.cut = True
        self.up.put_nowait(None)
        self.down.put_nowait(None)


@dataclass
class MemoryStub:
    """Another hub, called without a network."""

    peers: "Peers | None" = None
    deaf: bool = False

    async def Meet(self, hello: Hello, timeout: float = 0) -> Opening:  # noqa: N802
        return await self._there().met(hello)

    async def Deliver(  # noqa: N802
        self, stream: AsyncIterator[Frame], timeout: float = 0, metadata: Any = ()
    ) -> Receipt:
        try:
            return await self._there().delivered(dict(metadata)["silo"], stream)
        except EarlyError as error:
            raise _unavailable() from error

    async def Hand(self, frame: Frame, timeout: float = 0, metadata: Any = ()) -> Receipt:  # noqa: N802
        async def alone() -> AsyncIterator[Frame]:
            yield frame

        return await self.Deliver(alone(), timeout, metadata)

    def _there(self) -> Peers:
        if self.peers is None or self.deaf:
            raise _unavailable()
        return self.peers


def _unavailable() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())


@dataclass
class Federation:
    """All hubs and clients of a job."""

    job: Job
    folder: Path
    fault: Fault = _no_fault
    hub_deadline: float = 60.0
    hubs: dict[str, Hub] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    parties: dict[Identity, Party] = field(default_factory=dict)
    _tasks: dict[Identity, "asyncio.Task[None]"] = field(default_factory=dict)
    _stubs: dict[str, MemoryStub] = field(default_factory=dict)

    def names(self) -> dict[str, tuple[str, ...]]:
        return silos_of(self.job, read_set(self.job))

    def add_hub(self, silo: str) -> Hub:
        """Start a hub, perhaps again."""
        names, shared = self.names(), SharedJob.of(self.job)

        async def explain() -> str:
            return "nobody knows"

        for name in names:
            self._stubs.setdefault(name, MemoryStub())
        peers = Peers(
            silo,
            shared,
            {name: Peer(name, "memory:1", self._stubs[name], explain) for name in names if name != silo},
            self.hub_deadline,
            lambda line: self.log.append(f"{silo}: {line}"),
        )

        async def welcome(link: Link) -> None:
            await hub.welcome(link)

        clients = Clients(
            silo,
            names[silo],
            shared.fingerprint,
            self.job.deployment.client_deadline,
            lambda line: self.log.append(f"{silo}: {line}"),
            welcome,
        )
        hub = Hub(self.job, silo, self.folder / silo, clients, peers, lambda line: self.log.append(f"{silo}: {line}"))
        self.hubs[silo] = hub
        self._stubs[silo].peers = peers
        return hub

    def add_client(self, who: Identity) -> None:
        """Start a client, perhaps again."""
        files = self.job.silos[who.silo].clients if isinstance(self.job.data, TableData) else None
        data = files[who.client or ""] if isinstance(files, dict) else None
        self.parties[who] = Party(self.job, who, ClientSite(data=data, workers=1), lambda line: None)
        self._tasks[who] = asyncio.ensure_future(self._client(who))

    async def _client(self, who: Identity) -> None:
        line = Line()
        attending = asyncio.ensure_future(self.hubs[who.silo].clients.attend(who.client or "", line))
        attending.add_done_callback(lambda task: task.cancelled() or task.exception())
        assembler = Assembler(LARGEST)
        try:
            while (frame := await line.down.get()) is not None:
                question = assembler.feed(frame)
                if question is None:
                    continue
                fault = self.fault(who, question)
                if fault == "die":
                    return
                if fault == "hang":
                    await asyncio.sleep(2.5 * self.job.deployment.client_deadline)
                try:
                    answer = self.parties[who].answer(question)
                except TdcdError as error:
                    answer = Message("failed", {"why": str(error)})
                for reply in frames(answer.stamped(question.stamp)):
                    await line.up.put(reply)
        finally:
            line.close()

    def add_everybody(self, but: Identity | None = None) -> None:
        """Start all hubs and all clients, but one."""
        names = self.names()
        for silo in names:
            self.add_hub(silo)
        for who in (Identity(silo, client) for silo, clients in names.items() for client in clients):
            if who != but:
                self.add_client(who)

    async def start(self) -> None:
        """Start everybody, and bring them to the first round."""
        self.add_everybody()

        async def bring(hub: Hub) -> None:
            await hub.prepare(read_set(self.job))
            await hub.agree([])

        await asyncio.gather(*(bring(hub) for hub in self.hubs.values()))

    async def rounds(self, count: int) -> dict[str, Block]:
        """Train from the first weights."""
        blocks = {silo: hub.first_block() for silo, hub in self.hubs.items()}
        for number in range(1, count + 1):
            result = await asyncio.gather(
                *(hub.one_round(SiloState(blocks[silo]), number) for silo, hub in self.hubs.items())
            )
            blocks = {silo: state.weights for silo, (state, _) in zip(self.hubs, result, strict=True)}
        return blocks

    async def lose(self, who: Identity) -> None:
        """Take a client away, before anybody asks it anything more."""
        self._tasks[who].cancel()
        await self.until(lambda: who.client not in self.hubs[who.silo].clients.present())

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end, "it takes too long"
            await asyncio.sleep(0.01)
