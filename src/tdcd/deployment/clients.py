"""A hub's links to its own clients: they dial in and keep a stream open; the hub asks, they answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
from torch import Tensor

from tdcd.deployment.messages import Assembler, Message, Meter, RefusedError, frames
from tdcd.errors import AbsentError, DeploymentError, join_names

SMALL = 1 << 16
"""Bytes that an answer may have on top of the tensors that are expected."""
FAILURES = 3
"""Times in a row that nobody can do what is asked, before the hub gives up."""
ROUND = frozenset({"embed", "gradients", "step", "descend"})
"""Questions of a round; others are of what is before it, and of evaluations."""
LARGE = 1 << 23
"""Bytes of answers that are taken one at a time."""


class GoneError(Exception):
    """A client's stream has ended."""


@dataclass(frozen=True)
class Question:
    """What a hub asks a client in a round."""

    message: Message
    most: int
    """Bytes of tensors that the answer may have."""
    check: Callable[[Message], None]
    """Raises RefusedError if an answer is none."""


def like(expected: Mapping[str, Tensor]) -> Callable[[Message], None]:
    """Return a check that a message has these tensors, in this type and shape, and no others."""

    def check(message: Message) -> None:
        for name in {**expected, **message.tensors}:
            check_tensor(expected, name, message.tensors.get(name))

    return check


def check_tensor(expected: Mapping[str, Tensor], name: str, found: Tensor | None) -> None:
    """Check that a tensor that has come is one that was asked for.

    Raises:
        RefusedError: it is not.
    """
    wanted = expected.get(name)
    if wanted is None:
        raise RefusedError(f"unexpected tensor '{name[:40]}'")
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise RefusedError(f"it comes without '{name}' of shape {tuple(wanted.shape)}")


Take = Callable[[str, str, Tensor], None]
"""Is given tensors of answers: whose, their names, and they. Raises RefusedError if one is not as it should be."""


class Room:
    """Room for one large answer at a time: who wants to send another is not read from until there is some.

    Its tensors are taken one by one as they come: so a hub never holds a client's weights, let alone all clients'.
    """

    def __init__(self, take: Take, patience: float) -> None:
        self._take = take
        self._patience = patience
        """Seconds without a frame after which another may enter."""
        self._holder: Link | None = None
        self._since = 0.0
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
            while not self._over and (link.name in self._evicted or (self._holder and not self._idle(self._holder))):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience / 4):
                        await self._news.wait()
            self._waiting.discard(link.name)
            if self._holder:
                self._evicted.add(self._holder.name)
            self._holder, self._since = link, time.monotonic()

    def _idle(self, holder: "Link") -> bool:
        now = time.monotonic()
        return now - max(holder.seen, self._since) > self._patience or now - self._since > 4 * self._patience

    def busy(self) -> bool:
        """Tell whether an answer is coming in, or some wait to."""
        return bool(self._waiting - self._evicted) or (self._holder is not None and not self._idle(self._holder))

    async def leave(self, link: "Link") -> None:
        """Make room for another."""
        async with self._news:
            if self._holder is link:
                self._holder = None
                self._news.notify_all()

    def take(self, link: "Link", name: str, tensor: Tensor) -> None:
        """Take a tensor of an answer, if anybody still waits for it."""
        if not self._over:
            self._take(link.name, name, tensor)

    async def close(self) -> None:
        """Nobody waits for these answers any more."""
        async with self._news:
            self._over = True
            self._news.notify_all()


@dataclass
class Link:
    """One client's stream."""

    name: str
    context: Any
    job: str
    ready: bool = False
    """Whether it has all it needs to take part."""
    replaced: asyncio.Event = field(default_factory=asyncio.Event)
    """Another stream of the same client has come."""
    sent: int = 0
    received: int = 0
    seen: float = field(default_factory=time.monotonic)
    _assembler: Assembler = field(default_factory=lambda: Assembler(SMALL))
    _answer: asyncio.Future[Message] | None = None
    _busy: bool = False
    _room: Room | None = None
    meter: Meter = field(default_factory=Meter)
    """Counts the numbers of rounds."""
    _number: int = 0
    _gone: bool = False

    @property
    def free(self) -> bool:
        """Whether it could be asked something now."""
        return not self._gone and not self._busy

    async def ask(self, message: Message, most: int = 0) -> Message:
        """Ask something and wait for the answer, of so many bytes at most. See ``asked``."""
        return await asyncio.shield(self.asked(message, most))

    def asked(self, message: Message, most: int, room: Room | None = None) -> "asyncio.Task[Message]":
        """Ask something; return the task that ends with the answer: of so many bytes at most, read when there is room.

        Who stops waiting leaves the question under way: the client is not free before it has answered. The task raises

        - GoneError: the stream ends before the answer has come;
        - RefusedError: the client answers that it cannot.
        """
        task = asyncio.ensure_future(self._ask(message, most + SMALL, room))
        task.add_done_callback(_looked_at)
        return task

    async def say(self, message: Message) -> None:
        """Tell something that needs no answer."""
        for frame in frames(message.stamped(replace(message.stamp, job=self.job))):
            await self._write(frame)

    async def _ask(self, message: Message, most: int, room: Room | None) -> Message:
        if not self.free:
            raise GoneError(f"client '{self.name}' is still busy with an earlier question")
        self._busy = True
        try:
            return await self._answered(message, most, room)
        finally:
            self._busy = False

    async def _answered(self, message: Message, most: int, room: Room | None) -> Message:
        self._number += 1
        self._assembler.most = most
        self._assembler.take = partial(room.take, self) if room else None
        meter = self._assembler.meter = self.meter if message.kind in ROUND else None
        self._room = room
        self._answer = asyncio.get_running_loop().create_future()
        stamped = message.stamped(replace(message.stamp, job=self.job, epoch=self._number))
        for frame in frames(stamped, meter):
            await self._write(frame)
            self.sent += len(frame.chunk)
        answer = await self._answer
        self._answer = None
        if answer.kind == "failed":
            raise RefusedError(str(answer.facts.get("why", "it does not say why"))[:2000])
        return answer

    async def _write(self, frame: Any) -> None:
        try:
            await self.context.write(frame)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.RpcError, asyncio.InvalidStateError) as error:
            raise GoneError(f"the stream of client '{self.name}' is broken") from error

    async def listen(self) -> None:
        """Take answers until the stream ends.

        Raises:
            RefusedError: something came that is no answer.
        """
        try:
            while (frame := await self.context.read()) is not grpc.aio.EOF:
                self.received += len(frame.chunk)
                self.seen = time.monotonic()
                if self._room:
                    await self._room.enter(self)
                message = self._assembler.feed(frame)
                if message is None:
                    continue
                if message.stamp.job != self.job or self._answer is None or self._answer.done():
                    raise RefusedError("an unsolicited reply")
                if message.stamp.epoch != self._number:
                    raise RefusedError("an answer to another question")
                self._answer.set_result(message)
                del message  # it may be large, and the next answer may be long in coming
                await self._leave()
        finally:
            self.close()
            await self._leave()

    async def _leave(self) -> None:
        room, self._room, self._assembler.take = self._room, None, None
        if room:
            await room.leave(self)

    def close(self) -> None:
        """Give up the stream."""
        self._gone = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(GoneError(f"client '{self.name}' has gone"))
            self._answer.exception()  # somebody may have stopped waiting for it


def _looked_at(task: asyncio.Task[Message]) -> None:
    """Nobody may be waiting any more: what went wrong was told, or does not matter."""
    if not task.cancelled():
        task.exception()


Welcome = Callable[[Link], Awaitable[None]]
"""Brings a client that has just come to where it can take part."""


@dataclass
class Clients:
    """The clients of a silo, seen from its hub. Everything happens in one event loop."""

    silo: str
    names: tuple[str, ...]
    """Who may come."""
    job: str
    deadline: float
    """Seconds that a client may take to do its part of a stage."""
    log: Callable[[str], None]
    welcome: Welcome
    links: dict[str, Link] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    """Rounds that each client was left out of, though it holds rows of their mini-batches."""
    meter: Meter = field(default_factory=Meter)
    """Counts the numbers of rounds, to and from all clients."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _failures: int = 0
    _bytes: tuple[int, int] = (0, 0)
    """Sent to and received from clients whose streams have ended."""

    async def attend(self, name: str, context: Any) -> None:
        """Keep a client's stream until it ends.

        Raises:
            RefusedError: something came that does not belong here.
        """
        link = Link(name, context, self.job, meter=self.meter)
        if before := self.links.get(name):
            self.log(f"client '{name}' comes again; its stream of before is given up")
            before.close()
            before.replaced.set()
        self.links[name] = link
        self.log(f"client '{name}' has come")
        listening, welcoming = asyncio.ensure_future(link.listen()), asyncio.ensure_future(self._welcomed(link))
        replaced = asyncio.ensure_future(link.replaced.wait())
        try:
            await asyncio.wait({listening, welcoming, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if welcoming.done():
                await welcoming  # it may have failed
                await asyncio.wait({listening, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if link.replaced.is_set():
                raise RefusedError(f"another process has come as client '{name}', and takes its place")
            await listening
        finally:
            listening.cancel()
            welcoming.cancel()
            replaced.cancel()
            link.close()
            self._bytes = (self._bytes[0] + link.sent, self._bytes[1] + link.received)
            if self.links.get(name) is link:
                del self.links[name]
                self.log(f"client '{name}' has gone")
            await self._tell()

    async def _welcomed(self, link: Link) -> None:
        try:
            await self.welcome(link)
        except GoneError:
            return
        link.ready = True
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def present(self) -> set[str]:
        """Return who can be asked now."""
        return {name for name, link in self.links.items() if link.ready and link.free}

    async def enough(self, count: int, seconds: float) -> None:
        """Wait until so many clients are there.

        Raises:
            DeploymentError: they have not come in time.
        """
        end = time.monotonic() + seconds
        warned = False
        while len(self.present()) < count:
            if not warned:
                warned = True
                away = join_names(sorted(set(self.names) - self.present()))
                self.log(f"waiting for clients: {len(self.present())} of {len(self.names)} are there, without {away}")
            left = end - time.monotonic()
            if left <= 0:
                absent = ", ".join(sorted(set(self.names) - self.present()))
                raise AbsentError(
                    f"silo '{self.silo}': {len(self.present())} of at least {count} clients are there after "
                    f"{seconds:g} seconds; absent: {absent}. What was done is kept: start the hub again to go on"
                )
            async with self._news:
                try:
                    await asyncio.wait_for(self._news.wait(), min(left, 0.5))  # a busy client becomes free untold
                except TimeoutError:
                    continue

    async def all_or(self, count: int, seconds: float) -> None:
        """Wait for all clients as long as a stage may take; then so many are enough."""
        try:
            await self.enough(len(self.names), self.deadline)
        except DeploymentError:
            await self.enough(count, seconds)

    async def ask(
        self, questions: Mapping[str, Question], take: Take | None = None
    ) -> tuple[dict[str, Message], set[str]]:
        """Ask several clients at once; return the answers, and who is left out because it gave none.

        Args:
            questions: What to ask each.
            take: Is given the tensors of every answer, in the order of names; those of large answers as soon as they
                come, one answer at a time: then also those of a client that is left out after all. They are not kept.

        Raises:
            DeploymentError: nobody could do what was asked.
        """
        room = Room(take, self.deadline / 4) if take else None
        present = self.present()
        tasks = {
            name: self.links[name].asked(q.message, q.most, room if q.most > LARGE else None)
            for name, q in questions.items()
            if name in present
        }
        if tasks:
            await self._waited(set(tasks.values()), room)
        if room:
            await room.close()
        answers: dict[str, Message] = {}
        failed: dict[str, str] = {}
        lost: dict[str, str] = {name: "it is not there" for name in questions if name not in tasks}
        for name, task in tasks.items():
            if not task.done():
                lost[name] = f"it has not answered for {self.deadline:g} seconds"
                continue
            try:
                answer = task.result()
                questions[name].check(answer)
                answers[name] = answer
            except GoneError:
                lost[name] = "it has gone"
            except RefusedError as error:
                failed[name] = lost[name] = str(error)
        for name, why in lost.items():
            if name in tasks:
                self.log(f"client '{name}' is left out: {why}")
        for name in sorted(answers):
            if take and questions[name].most <= LARGE:
                for part, tensor in answers[name].tensors.items():
                    take(name, part, tensor)
        if questions:
            self._failures = self._failures + 1 if len(failed) == len(questions) else 0
        if self._failures == FAILURES:
            name, why = next(iter(failed.items()))
            raise DeploymentError(f"silo '{self.silo}': no client can do its part; client '{name}': {why}")
        return answers, set(lost)

    async def _waited(self, tasks: set["asyncio.Task[Message]"], room: Room | None) -> None:
        """Wait as long as a stage may take; large answers come one after the other, and for these a while longer."""
        end = time.monotonic() + self.deadline
        last = end + self.deadline * len(tasks)
        left = self.deadline
        while tasks and left > 0:
            _, tasks = await asyncio.wait(tasks, timeout=left)
            now = time.monotonic()
            left = end - now if now < end else self.deadline / 8 if room and room.busy() and now < last else 0.0

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of tensors sent to and received from clients."""
        links = self.links.values()
        return self._bytes[0] + sum(link.sent for link in links), self._bytes[1] + sum(link.received for link in links)
