"""A deployment without a network: hubs and clients in one event loop, with everything else as it is at real sites."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tdcd.compute import ComputeName
from tdcd.core.network import Block
from tdcd.core.state import SiloState
from tdcd.errors import TdcdError
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.schema import Job, TableJob
from tdcd.sites import participants
from tdcd.sites.client import session
from tdcd.sites.client.session import Session
from tdcd.sites.event_loop import now
from tdcd.sites.hub.hub import Hub
from tdcd.sites.hub.main import build_hub
from tdcd.sites.messages.frames import LARGEST, PROTOCOL, Assembler, Message, frames
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.types import Failed, Join
from tdcd.sites.participants import read_set, silos_of
from tdcd.sites.security.identity import Identity
from tdcd.sites.shared_job import VERSION, SharedJob
from tdcd.sites.site_file import ClientSite
from tdcd.sites.transport.base import Stream
from tdcd.sites.transport.memory import MemoryHub

T = TypeVar("T")
Fault = Callable[[Identity, Message], str]
"""What a client does when it is asked something: "" reply, "die", "hang" until much later."""


_DATA: dict[str, JobData] = {}


def remembered_data(job: Job) -> JobData:
    """Read a data set once, though every client does: in one process that is most of the time."""
    key = job.model_dump_json()
    if key not in _DATA:
        _DATA.clear()
        _DATA[key] = load_data(job)
    return _DATA[key]


for module in (session, participants):
    setattr(module, "load_data", remembered_data)  # noqa: B010


def _no_fault(who: Identity, message: Message) -> str:
    return ""


@dataclass
class Federation:
    """All hubs and clients of a job."""

    job: Job
    folder: Path
    fault: Fault = _no_fault
    alter: Callable[[Identity, Message, Any], Any] = lambda who, request, reply: reply
    """Makes a hostile reply of an honest one."""
    hub_deadline: float = 60.0
    hubs: dict[str, Hub] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    compute: ComputeName = "auto"
    sessions: dict[Identity, Session] = field(default_factory=dict)
    remotes: dict[str, MemoryHub] = field(default_factory=dict)
    _tasks: dict[Identity, "asyncio.Task[None]"] = field(default_factory=dict)

    def names(self) -> dict[str, tuple[str, ...]]:
        return silos_of(self.job, read_set(self.job))

    def add_hub(self, silo: str) -> Hub:
        """Start a hub, perhaps again."""
        names = self.names()
        for name in names:
            self.remotes.setdefault(name, MemoryHub())
        others = {name: ("memory:1", self.remotes[name]) for name in names if name != silo}
        hub, reception = build_hub(
            self.job,
            silo,
            names[silo],
            dict(others),
            self.folder / silo,
            lambda line: self.log.append(f"{silo}: {line}"),
        )
        hub.context.peers.deadline = self.hub_deadline
        self.hubs[silo], self.remotes[silo].service = hub, reception
        return hub

    def add_client(self, who: Identity, *, again: bool = False) -> None:
        """Start a client; ``again`` with all that it knew, as after a cut line."""
        if not again:
            self.add_session(who)
        self._tasks[who] = asyncio.ensure_future(self._client(who))

    def add_session(self, who: Identity) -> None:
        """Let a client know nothing any more."""
        data = self.job.silos[who.silo].files[who.client or ""].file if isinstance(self.job, TableJob) else None
        self.sessions[who] = Session(
            self.job, who, ClientSite(data=data, workers=1, compute=self.compute), lambda line: None
        )

    async def _client(self, who: Identity) -> None:
        with suppress(TdcdError):
            async with self.remotes[who.silo].attend() as stream:
                await self._talk(who, stream)

    async def _talk(self, who: Identity, stream: Stream) -> None:
        join = Join(PROTOCOL, VERSION, SharedJob.of(self.job).text, who.silo, who.client or "", False)
        for piece in frames(pack(join)):
            await stream.send(piece)
        assembler = Assembler(LARGEST)
        while (frame := await stream.receive()) is not None:
            request = assembler.feed(frame)
            if request is None:
                continue
            fault = self.fault(who, request)
            if fault == "die":
                return
            if fault == "hang":
                await asyncio.sleep(2.5 * self.job.deployment.client_deadline)
            try:
                reply = self.sessions[who].reply(request)
            except TdcdError as error:
                reply = Failed(str(error))
            altered = self.alter(who, request, reply)
            packed = altered if isinstance(altered, Message) else pack(altered, request.stamp)
            for piece in frames(packed):
                await stream.send(piece)

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
        await self.begin()

    async def begin(self) -> None:
        """Bring those that are started to the first round."""

        async def bring(hub: Hub) -> None:
            await hub.setup.prepare(read_set(self.job))
            await hub.agree({})

        await asyncio.gather(*(bring(hub) for hub in self.hubs.values()))

    async def rounds(self, count: int) -> dict[str, Block]:
        """Train from the first weights."""
        blocks = {silo: hub.setup.first_block() for silo, hub in self.hubs.items()}
        for number in range(1, count + 1):
            result = await asyncio.gather(
                *(hub.run_round(SiloState(blocks[silo]), number) for silo, hub in self.hubs.items())
            )
            blocks = {silo: state.weights for silo, (state, _) in zip(self.hubs, result, strict=True)}
        return blocks

    async def lose(self, who: Identity) -> None:
        """Take a client away, before anybody asks it anything more."""
        self._tasks[who].cancel()
        await self.until(lambda: who.client not in self.hubs[who.silo].context.clients.present())

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        end = now() + seconds
        while not done():
            assert now() < end, "it takes too long"
            await asyncio.sleep(0.01)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next event when nothing is left to do: waiting costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0.0
        self._threads = 0
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> Any:
            events = select(0)
            if events or timeout == 0:
                return events
            if timeout is None or self._threads:  # only another thread can bring news: time passes as usual
                began = time.monotonic()
                events = select(1.0 if timeout is None else min(timeout, 0.05))
                self._ahead += time.monotonic() - began
                return events
            self._ahead += timeout
            return []

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._ahead

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:  # type: ignore[override]
        self._threads += 1
        future = super().run_in_executor(executor, function, *arguments)

        def done(_: Any) -> None:
            self._threads -= 1

        future.add_done_callback(done)
        return future


def run_virtually(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
