"""One client's stream, seen from its hub: the hub asks, the client replies."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from tdcd.sites.event_loop import now
from tdcd.sites.messages.frames import Assembler, Frame, Message, Meter, RefusedError, frames
from tdcd.sites.messages.packing import kind_of, pack, unpack
from tdcd.sites.messages.types import (
    Descend,
    Embed,
    Failed,
    FirstGradients,
    Judge,
    LaterGradients,
    Score,
    Step,
)
from tdcd.sites.transport.base import SLOWEST, Stream, UnreachableError

T = TypeVar("T")

SMALL = 1 << 16
"""Bytes that a reply may have on top of the tensors that are expected."""
ROUND = frozenset(map(kind_of, (Embed, FirstGradients, LaterGradients, Step, Descend)))
"""Requests of a round."""
EVALUATION = frozenset(map(kind_of, (Score, Judge)))
"""Requests of an evaluation; all others are of what is before the first round."""


class GoneError(Exception):
    """A client's stream has ended."""


Take = Callable[[str, str, Tensor], None]
"""Called with each tensor of a reply: client, tensor name, tensor. Raises RefusedError if it does not fit."""


class ReceiveSlot:
    """Room for one large reply at a time: whoever wants to send another is not read from until there is some.

    Its tensors are taken one by one as they come: so a hub never holds a client's weights, let alone all clients'. They
    are taken in the order of the requests, whoever is first to reply: a sum depends on the order, in its last bits.
    """

    def __init__(self, take: Take, names: Iterable[str], patience: float, end_of: Callable[[str], float]) -> None:
        self._take = take
        self._expected = list(names)
        """Who has yet to reply."""
        self._patience = patience
        """Seconds without a frame after which another may enter."""
        self._end_of = end_of
        """Tells until when a client is waited for that has not begun to reply."""
        self._holder: Link | None = None
        self._since = 0.0
        self._before = 0
        """Bytes that the holder had sent when it entered."""
        self._waiting: set[str] = set()
        self._evicted: set[str] = set()
        self._over = False
        self._news = asyncio.Condition()

    async def enter(self, link: "Link") -> None:
        """Wait for room. A holder that sends nothing any more, or takes too long, has to make room for good."""
        if self._holder is link:
            return
        async with self._news:
            self._waiting.add(link.name)
            try:
                while not self._over and (
                    link.name in self._evicted
                    or (self._holder and not self._idle(self._holder))
                    or not self._has_turn(link.name)
                ):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._patience / 4):
                            await self._news.wait()
            finally:
                self._waiting.discard(link.name)
            if self._holder:
                self._evicted.add(self._holder.name)
            self._holder, self._since, self._before = link, now(), link.received

    def _has_turn(self, name: str) -> bool:
        """Tell whether all before it have replied, or had time enough to."""
        before = self._expected[: self._expected.index(name)] if name in self._expected else []
        late = {one for one in before if one not in self._waiting and now() >= self._end_of(one)}
        self._evicted.update(late)
        return self._evicted.issuperset(before)

    def replied(self, name: str, _: object = None) -> None:
        """Wait for a reply no more: it has come, or never will."""
        if name in self._expected:
            self._expected.remove(name)

    def _idle(self, holder: "Link") -> bool:
        time = now()
        enough = 4 * self._patience + (holder.received - self._before) / SLOWEST
        return time - max(holder.seen, self._since) > self._patience or time - self._since > enough

    def busy(self) -> bool:
        """Tell whether a reply is coming in, or some wait to."""
        return bool(self._waiting - self._evicted) or (self._holder is not None and not self._idle(self._holder))

    async def leave(self, link: "Link") -> None:
        """Make room for another."""
        async with self._news:
            self.replied(link.name)
            if self._holder is link:
                self._holder = None
            self._news.notify_all()

    def take(self, link: "Link", name: str, tensor: Tensor) -> None:
        """Take a tensor of a reply, if anybody still waits for it."""
        if not self._over and link.trouble is None:
            try:
                self._take(link.name, name, tensor)
            except RefusedError as error:  # the rest of the reply is read all the same, and dropped
                link.trouble = error

    async def close(self) -> None:
        """Nobody waits for these replies any more."""
        async with self._news:
            self._over = True
            self._news.notify_all()


@dataclass
class Meters:
    """Count the bytes of numbers: of rounds, and of evaluations."""

    rounds: Meter = field(default_factory=Meter)
    evaluations: Meter = field(default_factory=Meter)

    def of(self, kind: str) -> Meter | None:
        """Return the meter for a kind of request, if it is counted."""
        return self.rounds if kind in ROUND else self.evaluations if kind in EVALUATION else None


@dataclass
class Link:
    """One client's stream."""

    name: str
    stream: Stream
    job: str
    meters: Meters = field(default_factory=Meters)
    ready: bool = False
    """Whether it has all it needs to take part."""
    version: int = -1
    """The version of the weights that the client has."""
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)
    """The hub has no use for this stream any more."""
    dismissal: str = ""
    """Why, for the client."""
    trouble: RefusedError | None = None
    """What was wrong with a tensor of the reply that is coming in."""
    sent: int = 0
    received: int = 0
    seen: float = field(default_factory=now)
    stirred: float = field(default_factory=now)
    """When bytes last went either way."""
    _assembler: Assembler = field(default_factory=lambda: Assembler(SMALL))
    _reply: asyncio.Future[Message] | None = None
    _busy: bool = False
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _slot: ReceiveSlot | None = None
    _number: int = 0
    _gone: bool = False

    @property
    def moved(self) -> int:
        """Bytes that have gone either way."""
        return self.sent + self.received

    @property
    def free(self) -> bool:
        """Whether it could be asked something now."""
        return not self._gone and not self._busy

    async def ask(self, request: object, reply: type[T], most: int = 0) -> T:
        """Ask something and wait for the reply, of so many bytes at most. See ``asked``."""
        return await asyncio.shield(self.asked(pack(request), reply, most))

    def asked(self, request: Message, reply: type[T], most: int, slot: ReceiveSlot | None = None) -> "asyncio.Task[T]":
        """Ask something; return the task that ends with the reply: of so many bytes at most, read when there is room.

        Whoever stops waiting leaves the request under way: the client is not free before it has replied. It raises

        - GoneError: the stream ends before the reply has come;
        - RefusedError: the client replies that it cannot, or with something else.
        """
        task = asyncio.ensure_future(self._ask(request, reply, most + SMALL, slot))
        task.add_done_callback(_looked_at)
        return task

    async def say(self, message: object) -> None:
        """Say something that needs no reply."""
        packed = pack(message)
        async with self._sending:
            for frame in frames(packed.stamped(packed.stamp._replace(job=self.job))):
                await self._send(frame)

    async def _ask(self, request: Message, reply: type[T], most: int, slot: ReceiveSlot | None) -> T:
        if not self.free:
            raise GoneError(f"client '{self.name}' is still busy with an earlier request")
        self._busy = True
        try:
            return await self._replied(request, reply, most, slot)
        finally:
            self._busy = False

    async def _replied(self, request: Message, reply: type[T], most: int, slot: ReceiveSlot | None) -> T:
        self._number += 1
        self._assembler.most = most
        self._assembler.take = partial(slot.take, self) if slot else None
        meter = self._assembler.meter = self.meters.of(request.kind)
        self._slot, self.trouble = slot, None
        self._reply = asyncio.get_running_loop().create_future()
        stamped = request.stamped(request.stamp._replace(job=self.job, epoch=self._number))
        async with self._sending:  # a farewell may come in between
            for frame in frames(stamped, meter):
                await self._send(frame)
                self.sent += len(frame.chunk)
                self.stirred = now()
        try:
            envelope = await self._reply
        finally:
            self._reply = None
        if envelope.kind == kind_of(Failed):
            raise RefusedError(unpack(envelope, Failed).why[:2000])
        return unpack(envelope, reply)

    async def _send(self, frame: Frame) -> None:
        try:
            await self.stream.send(frame)
        except UnreachableError as error:
            raise GoneError(f"the stream of client '{self.name}' is broken") from error

    async def listen(self) -> None:
        """Take replies until the stream ends.

        Raises:
            RefusedError: something came that is no reply.
        """
        try:
            while (frame := await self.stream.receive()) is not None:
                self.received += len(frame.chunk)
                self.seen = self.stirred = now()
                if self._slot:
                    await self._slot.enter(self)
                message = self._assembler.feed(frame)
                if message is None:
                    continue
                if message.stamp.job != self.job or self._reply is None or self._reply.done():
                    raise RefusedError("an unsolicited reply")
                if message.stamp.epoch != self._number:
                    raise RefusedError("a reply to another request")
                if self.trouble:
                    self._reply.set_exception(self.trouble)
                else:
                    self._reply.set_result(message)
                del message  # it may be large, and the next reply may be long in coming
                await self._leave()
        finally:
            self.close()
            await self._leave()

    async def _leave(self) -> None:
        slot, self._slot, self._assembler.take = self._slot, None, None
        if slot:
            await slot.leave(self)

    def dismiss(self, why: str) -> None:
        """Give up the stream, and tell the client why."""
        self.dismissal = why
        self.close()
        self.dismissed.set()

    def close(self) -> None:
        """Give up the stream."""
        self._gone = True
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(GoneError(f"client '{self.name}' has gone"))
            self._reply.exception()  # nobody may be waiting for it any more


def _looked_at(task: "asyncio.Task[Any]") -> None:
    """Nobody may be waiting any more: what went wrong was reported, or does not matter."""
    if not task.cancelled():
        task.exception()
