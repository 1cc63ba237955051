"""One client's stream at a hub that serves: several questions may be under way at a time."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tdcd.sites.event_loop import now
from tdcd.sites.hub.link import GoneError
from tdcd.sites.messages.frames import Assembler, Message, RefusedError, frames
from tdcd.sites.messages.packing import kind_of, pack, unpack
from tdcd.sites.messages.predictions import Ping, Pong
from tdcd.sites.messages.types import Failed
from tdcd.sites.transport.base import Stream, UnreachableError

T = TypeVar("T")

UNANSWERED = 64
"""Questions that a client may leave unanswered; then it is as good as away."""


@dataclass
class ServingLink:
    """A client's stream."""

    name: str
    stream: Stream
    job: str
    most: int
    """Bytes of tensors that an answer may have."""
    rows: int | None = None
    """Rows that it has ready: −1 if its table cannot be read, None before it has said so."""
    dismissal: str = ""
    """Why the hub has no use for this stream any more."""
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)
    seen: float = field(default_factory=now)
    sent: int = 0
    received: int = 0
    _asked: dict[int, tuple[type, "asyncio.Future[Any]"]] = field(default_factory=dict)
    """Questions that were not answered yet, by number; of some nobody waits for the answer any more."""
    _number: int = 0
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, question: Message, reply: type[T]) -> T:
        """Ask something and wait for the answer.

        Raises:
            GoneError: the stream ends before.
            RefusedError: the client answers that it cannot, or with something else.
        """
        if len(self._asked) >= UNANSWERED:
            raise GoneError(f"client '{self.name}' has not answered {UNANSWERED} questions")
        self._number += 1
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked[self._number] = reply, future
        await self.say(question.stamped(question.stamp._replace(job=self.job, epoch=self._number)))
        return await future

    async def say(self, message: Message) -> None:
        """Send a message.

        Raises:
            GoneError: the stream has ended.
        """
        async with self._sending:
            for frame in frames(message):
                try:
                    await self.stream.send(frame)
                except UnreachableError as error:
                    raise GoneError(f"the stream of client '{self.name}' is broken") from error
                self.sent += len(frame.chunk)

    async def alive(self, seconds: float) -> bool:
        """Tell whether anything comes from it within so many seconds."""
        before = self.seen
        try:
            async with asyncio.timeout(seconds):
                await self.ask(pack(Ping()), Pong)
        except (TimeoutError, GoneError):
            return self.seen > before
        return True

    async def listen(self) -> None:
        """Take answers until the stream ends.

        Raises:
            RefusedError: something came that is no answer.
        """
        assembler = Assembler(self.most)
        try:
            while (frame := await self.stream.receive()) is not None:
                self.seen = now()
                self.received += len(frame.chunk)
                if message := assembler.feed(frame):
                    self._take(message)
        finally:
            self.close()

    def _take(self, message: Message) -> None:
        if message.stamp.job != self.job or message.stamp.epoch not in self._asked:
            raise RefusedError("an unsolicited reply")
        reply, future = self._asked.pop(message.stamp.epoch)
        if future.done():
            return
        try:
            if message.kind == kind_of(Failed):
                raise RefusedError(unpack(message, Failed).why[:2000])
            future.set_result(unpack(message, reply))
        except RefusedError as error:
            future.set_exception(error)

    def dismiss(self, why: str) -> None:
        """Give up the stream, and tell the client why."""
        self.dismissal = why
        self.dismissed.set()

    def close(self) -> None:
        """Nothing comes any more."""
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(GoneError(f"client '{self.name}' has gone"))
                future.exception()  # nobody may be waiting for it any more
        self._asked.clear()
