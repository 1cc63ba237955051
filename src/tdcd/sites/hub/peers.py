"""A hub's links to the other hubs: they meet, agree where to start, and push messages to each other.

Every hub answers on its port and dials every other hub; a message is pushed, and pushed again if that fails, until the
other side has it: taking it twice does no harm. The hub whose silo comes first by name *chairs*. To begin something
together, every hub joins a meeting and states its contribution; when all are there, a new epoch begins, and what
belongs to an earlier one is dropped. A hub that was restarted joins a meeting, too; then the chair calls all others.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from tdcd.engines.base import RewoundError
from tdcd.errors import AbsentError, DeploymentError, join_names
from tdcd.sites.event_loop import now
from tdcd.sites.hub.inbox import KINDS, Inbox
from tdcd.sites.hub.meeting import Meeting, check_brought, check_topics, read_opening
from tdcd.sites.logs import Log
from tdcd.sites.messages.calls import Hello, Opening
from tdcd.sites.messages.frames import LARGEST, PROTOCOL, Assembler, Frame, Message, Meter, RefusedError, Stamp, frames
from tdcd.sites.messages.packing import kind_of, pack, unpack
from tdcd.sites.messages.types import Call, Leave, SiloEmbeddings, SiloGradients, SiloScores
from tdcd.sites.security.tls import Refusal
from tdcd.sites.shared_job import VERSION, SharedJob
from tdcd.sites.transport.base import (
    BACK_OFF,
    FIRST_WAIT,
    LONGEST_WAIT,
    SLOWEST,
    STALL,
    EarlyError,
    RefusalError,
    RemoteHub,
    UnreachableError,
)

T = TypeVar("T")

ROUND = frozenset(map(kind_of, (SiloEmbeddings, SiloGradients)))
"""Kinds of messages that carry a round's numbers."""
EVALUATION = frozenset({kind_of(SiloScores)})
MEETINGS = 1_000_000
"""No hub has been to so many meetings more than another: one that says so makes it up."""
EARLY = 1.0
"""Seconds that a message may come before the epoch that it belongs to."""
EXPLAIN = 1.6
"""Seconds between two tries from which on it is worth finding out why a hub cannot be reached."""
FAREWELL = 2.0
"""Seconds to tell another hub that this one ends."""


@dataclass
class Peer:
    """Another hub."""

    silo: str
    address: str
    hub: RemoteHub
    present: bool = False


@dataclass
class Peers:
    """The other hubs, seen from one. Everything happens in one event loop."""

    silo: str
    job: SharedJob
    peers: Mapping[str, Peer]
    deadline: float
    """Seconds that a hub is waited for."""
    log: Log
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))
    epoch: int = 0
    now: int = 0
    """The round that is under way."""
    most: int = LARGEST
    """Bytes that a message may have; whoever knows what is to come sets it after each meeting."""
    sent: int = 0
    received: int = 0
    meter: Meter = field(default_factory=Meter)
    """Counts the numbers that were brought to other hubs in rounds; what had to be brought twice counts once."""
    evaluations: Meter = field(default_factory=Meter)
    """The same for evaluations."""
    _present: dict[str, Hello] = field(default_factory=dict)
    """Who has come to the meeting, at the chair."""
    _meeting: Meeting | None = None
    """The last one, at the chair."""
    _inbox: Inbox = field(default_factory=Inbox)
    _calls: set[tuple[str, int]] = field(default_factory=set)
    """Calls of the chair that were heard: its incarnation, and the epoch that they end."""
    _called: int = -1
    """The epoch that the last call ended: it may be heard before that epoch has begun here."""
    _working: bool = False
    """Whether an epoch's work is under way."""
    _rewound: bool = False
    _heard: dict[str, float] = field(default_factory=dict)
    """When each hub was last heard of in a large message: on a slow line that is no silence."""
    _left: dict[str, str] = field(default_factory=dict)
    """Hubs that have ended because others were away, and what they said, since this one last began to wait for all."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def chair(self) -> str:
        """The silo whose hub chairs."""
        return min([self.silo, *self.peers])

    # What other hubs call

    async def met(self, hello: Hello) -> Opening:
        """Let another hub come to the meeting, and answer when all have come.

        Raises:
            DeploymentError: it cannot take part; the message tells the difference.
        """
        if self.chair != self.silo:
            raise DeploymentError(f"the hub of silo '{self.chair}' chairs, not that of '{self.silo}'")
        self.job.check(hello.protocol, hello.version, hello.job, f"the hub of silo '{hello.silo}'")
        check_brought(hello.brought)
        if hello.epoch > self.epoch + MEETINGS:
            raise RefusedError(f"epoch {hello.epoch} is not one that hubs can have come to")
        async with self._news:
            last = self._meeting
            if not self._over(hello):
                self._present[hello.silo] = hello
                self._left.pop(hello.silo, None)
                again = last and last.incarnations.get(hello.silo) != hello.incarnation
                if again and self._working and not self._rewound:
                    self.log(f"the hub of silo '{hello.silo}' was started again; all hubs meet")
                    self._rewound = True
                self._news.notify_all()
            try:
                await self._news.wait_for(lambda: self._over(hello))
            except asyncio.CancelledError:
                if self._present.get(hello.silo) is hello:
                    del self._present[hello.silo]  # it is gone before all had come
                raise
            if self._meeting is None:
                raise RefusedError("the meeting is over before it began")
            return self._meeting.opening

    def _over(self, hello: Hello) -> bool:
        """Tell whether a hub has been to the last meeting, with this very greeting."""
        last = self._meeting
        return last is not None and last.epoch > hello.epoch and last.incarnations.get(hello.silo) == hello.incarnation

    async def delivered(self, silo: str, stream: AsyncIterator[Frame]) -> str:
        """Take a message; return why it is of no use, if it is not.

        Raises:
            RefusedError: it is none.
            EarlyError: it is of an epoch that has not begun here.
        """
        assembler, message = Assembler(self.most), None
        began, size = now(), 0
        async for frame in stream:
            self.received += len(frame.chunk)
            size += len(frame.chunk)
            self._heard[silo] = min(now(), began + size / SLOWEST)
            if message is not None:
                raise RefusedError("more than one message")
            message = assembler.feed(frame)
        if message is None:
            raise RefusedError("an incomplete message")
        if message.stamp.job != self.job.fingerprint:
            raise RefusedError("a message of another job")
        if message.kind not in KINDS:
            raise RefusedError(f"'{message.kind[:40]}' is not a message between hubs")
        async with self._news:
            self.peers[silo].present = True
            stamp = message.stamp
            if message.kind == kind_of(Call):
                self._hear(silo, unpack(message, Call), stamp)
            elif message.kind == kind_of(Leave):
                leave, back = unpack(message, Leave), self._present.get(silo)
                if stamp.epoch == self.epoch and (back is None or back.incarnation == leave.incarnation):
                    self._left[silo] = leave.why[:1000]  # and it was not started again since
            else:
                await self._caught_up(stamp.epoch)
                if stamp.epoch < self.epoch or stamp.round < self.now:
                    return f"it is of round {stamp.round} of epoch {stamp.epoch}, which is over"
                self._inbox.keep(silo, message, self.most)
            self._news.notify_all()
        return ""

    async def _caught_up(self, epoch: int) -> None:
        """Wait for an epoch: another hub may have heard sooner than this one that it has begun."""
        try:
            async with asyncio.timeout(EARLY):
                await self._news.wait_for(lambda: self.epoch >= epoch)
        except TimeoutError as error:
            raise EarlyError(f"epoch {epoch} has not begun here; bring it again") from error

    def _hear(self, silo: str, message: Call, stamp: Stamp) -> None:
        """The chair calls all hubs to a meeting."""
        call = (message.incarnation, stamp.attempt)
        if silo == self.chair and call not in self._calls:
            self._calls.add(call)
            self._called = stamp.attempt
            self._rewound = self._working

    # What the own hub does

    async def meeting(self, topic: str, brought: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Meet all other hubs: tell what one brings, and return what everybody brought, by silo.

        Raises:
            DeploymentError: somebody did not come in time, or came for something else.
        """
        async with self._news:
            self._working = self._rewound = False
            self._left.clear()  # whoever has ended may be back
            self.most = LARGEST
        hello = Hello(
            protocol=PROTOCOL,
            version=VERSION,
            silo=self.silo,
            job=self.job.text,
            incarnation=self.incarnation,
            epoch=self.epoch,
            topic=topic,
            brought=json.dumps(dict(brought)),
        )
        opening = await (self._chaired(hello) if self.chair == self.silo else self._attended(hello))
        async with self._news:
            self.epoch, self.now = opening.epoch, 0
            self._inbox = Inbox()
            self._left.clear()
            self._working, self._rewound = True, self.epoch <= self._called
            self._news.notify_all()
        everybody = read_opening(opening, self.chair, {self.silo, *self.peers})
        check_topics(everybody, topic)
        return everybody

    async def _chaired(self, hello: Hello) -> Opening:
        """Call all other hubs, wait until they have come, and open the next epoch."""
        end = now() + self.deadline
        call = pack(Call(self.incarnation), Stamp(self.job.fingerprint, 0, 0, self.epoch))
        calls = [asyncio.ensure_future(self._push(peer, call, end)) for peer in self.peers.values()]
        everyone: dict[str, Hello] = {}
        try:
            while not everyone:
                await self._until(lambda: not self._absent(), end, self._absent)
                async with self._news:
                    if not self._absent():  # one may have left in between
                        everyone = {self.silo: hello, **self._present}
                        self._present.clear()
        finally:
            for task in calls:
                task.cancel()
        async with self._news:
            self._meeting = Meeting.of(everyone)
            self._news.notify_all()
            return self._meeting.opening

    def _absent(self) -> list[str]:
        return sorted(set(self.peers) - set(self._present))

    async def _attended(self, hello: Hello) -> Opening:
        """Go to the meeting that the chair holds."""
        peer = self.peers[self.chair]
        end = now() + self.deadline

        async def call() -> Opening:
            return await self._unless_left(peer.hub.meet(hello, max(1.0, end - now())))

        return await self._trying(peer, call, end)

    def advance(self, number: int) -> None:
        """Begin a round: what belongs to earlier ones is of no use any more."""
        self.now = number
        self._inbox.forget_before(number)

    async def leave(self, why: str) -> None:
        """Tell the other hubs that this one ends: nobody need wait for it, and all learn who was away."""
        packed = pack(Leave(self.incarnation, why), Stamp(self.job.fingerprint, self.epoch))

        async def tell(peer: Peer) -> None:
            with suppress(UnreachableError, RefusalError):
                await peer.hub.deliver(self.silo, _in_pieces(packed), FAREWELL)

        await asyncio.gather(*(tell(peer) for peer in self.peers.values()))

    async def exchange(self, message: T, stamp: Stamp = Stamp()) -> dict[str, T]:  # noqa: B008 - frozen
        """Send every other hub a message, and receive one of the same type and moment from each.

        Raises:
            RewoundError: all hubs meet again.
            DeploymentError: a hub was lost for too long.
        """
        await self.send_all(message, stamp)
        return {silo: await self.receive(silo, type(message), stamp) for silo in self.peers}

    async def send_all(self, message: object, stamp: Stamp = Stamp()) -> None:  # noqa: B008
        """Send every other hub a message of this epoch."""
        await asyncio.gather(*(self.send(silo, message, stamp) for silo in self.peers))

    async def send(self, silo: str, message: object, stamp: Stamp = Stamp()) -> None:  # noqa: B008
        """Send another hub a message of this epoch."""
        stamped = pack(message, stamp._replace(job=self.job.fingerprint, epoch=self.epoch))
        await self._push(self.peers[silo], stamped, now() + self.deadline, rewindable=True)

    async def receive(self, silo: str, kind: type[T], stamp: Stamp = Stamp()) -> T:  # noqa: B008
        """Wait for a message of another hub.

        Raises:
            RefusedError: it is malformed.
        """
        name = kind_of(kind)
        end = now() + self.deadline
        await self._until(lambda: self._inbox.has(name, stamp, silo), end, lambda: [silo], rewindable=True)
        try:
            return unpack(self._inbox.take(name, stamp, silo), kind)
        except RefusedError as error:
            raise RefusedError(f"the hub of silo '{silo}' sends {error}") from error

    async def _until(
        self, done: Callable[[], bool], end: float, missing: Callable[[], list[str]], *, rewindable: bool = False
    ) -> None:
        """Wait for other hubs."""
        async with self._news:
            while self._goes_on(rewindable=rewindable, done=done):
                heard = max((self._heard.get(silo, 0.0) for silo in missing()), default=0.0)
                if (left := max(end, heard + self.deadline) - now()) <= 0:
                    raise self._lost(missing(), "it sent nothing")
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._news.wait()

    async def _push(self, peer: Peer, message: Message, end: float, *, rewindable: bool = False) -> None:
        """Bring a message to a hub, however often it takes."""

        async def call() -> None:
            meter = Meter()
            await peer.hub.deliver(self.silo, _in_pieces(message, meter), min(STALL, max(1.0, end - now())))
            self.sent += message.nbytes
            if message.kind in ROUND:
                self.meter.sent += meter.sent
            elif message.kind in EVALUATION:
                self.evaluations.sent += meter.sent

        await self._trying(peer, call, end, rewindable=rewindable)

    async def _trying(self, peer: Peer, call: Callable[[], Awaitable[T]], end: float, *, rewindable: bool = False) -> T:
        """Call a hub again and again until it answers."""
        wait, longest = FIRST_WAIT, LONGEST_WAIT
        while True:
            try:
                result = await call()
            except (UnreachableError, RefusalError) as error:
                if peer.hub.renew():
                    continue
                if isinstance(error, RefusalError):
                    raise DeploymentError(
                        f"the hub of silo '{peer.silo}' ({peer.address}) refuses this hub: {error}"
                    ) from error
                if peer.present or wait == FIRST_WAIT:
                    self.log(f"waiting for the hub of silo '{peer.silo}' ({peer.address})")
                peer.present = False
                if now() > end:
                    raise self._lost([peer.silo], await peer.hub.explain()) from error
                if wait < EXPLAIN <= 2 * wait:
                    why = await peer.hub.explain()
                    longest = BACK_OFF if isinstance(why, Refusal) else LONGEST_WAIT
                    self.log(f"still waiting for the hub of silo '{peer.silo}' ({peer.address}): {why}")
                await self._pause(min(wait, max(0.1, end - now())), rewindable=rewindable)
                wait = min(2 * wait, longest)
            else:
                peer.present = True
                return result

    async def _pause(self, seconds: float, *, rewindable: bool) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._news:
                while self._goes_on(rewindable=rewindable):
                    await self._news.wait()

    def _goes_on(self, *, rewindable: bool, done: Callable[[], bool] = lambda: False) -> bool:
        """Tell whether to wait on for other hubs.

        Raises:
            RewoundError: all hubs meet again.
            AbsentError: one has left, so that nobody may come any more.
        """
        if rewindable and self._rewound:
            raise RewoundError
        if done():
            return False
        if self._left:
            silo, why = min(self._left.items())
            raise AbsentError(f"the hub of silo '{silo}' has ended: {why}")
        return True

    async def _unless_left(self, call: Awaitable[T]) -> T:
        """Wait for what a hub answers, unless one leaves meanwhile: then nobody may answer any more."""
        answer, left = asyncio.ensure_future(call), asyncio.ensure_future(self._someone_leaves())
        try:
            await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
            return await (answer if answer.done() else left)
        finally:
            answer.cancel()
            left.cancel()

    async def _someone_leaves(self) -> NoReturn:
        async with self._news:
            while self._goes_on(rewindable=False):
                await self._news.wait()
        raise RuntimeError("a wait without an end has ended")

    def _lost(self, silos: Sequence[str], why: str) -> DeploymentError:
        hubs = join_names(f"'{silo}' ({self.peers[silo].address})" for silo in silos)
        return (DeploymentError if isinstance(why, Refusal) else AbsentError)(
            f"timed out after {self.deadline:g} s waiting for the hub of silo {hubs}: {why}. "
            "What was done is kept: when it is back, start the hubs again, and they go on"
        )


async def _in_pieces(message: Message, meter: Meter | None = None) -> AsyncIterator[Frame]:
    for frame in frames(message, meter):
        yield frame
