"""A client's process: it dials its hub, and replies to what the hub asks. What it can do is in session.py."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tdcd.errors import AbsentError, DeploymentError, TdcdError
from tdcd.sites.client.serving import MOST, REQUESTS, Server
from tdcd.sites.client.session import Session
from tdcd.sites.event_loop import now
from tdcd.sites.messages.frames import PROTOCOL, Assembler, Message, RefusedError, Stamp, frames
from tdcd.sites.messages.packing import kind_of, pack, unpack
from tdcd.sites.messages.predictions import Ping, Pong
from tdcd.sites.messages.types import ABSENT, FINISHED, Failed, Farewell, Join
from tdcd.sites.security.tls import Refusal
from tdcd.sites.shared_job import VERSION, SharedJob
from tdcd.sites.transport.base import (
    BACK_OFF,
    FIRST_WAIT,
    LONGEST_WAIT,
    RefusalError,
    RemoteHub,
    Stream,
    UnreachableError,
)

QUESTIONS = 128
"""Of a hub that serves, that may wait for their answers here."""


@dataclass
class ClientProcess:
    """A client that keeps a stream to its hub."""

    session: Session
    shared: SharedJob
    hub: RemoteHub
    log: Callable[[str], None]
    patience: float
    """Seconds that it tries to reach its hub."""
    server: Server | None = None
    """Answers for predictions, once the training is finished; else the client ends then."""
    _heard: bool = False
    """Whether the hub has said anything on the stream that is open, or was last."""
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Reply until the hub says that the training is finished; when the hub stops before, wait for it.

        One that serves comes back when the training is finished, and replies until somebody stops it.

        Raises:
            DeploymentError: the hub refuses this client, or one does not take the other's certificate.
            AbsentError: the hub cannot be reached, or has ended because others were away.
        """
        address = self.session.site.hub
        wait, longest, alone, warned = FIRST_WAIT, LONGEST_WAIT, now(), False
        finished = 0
        while True:
            self._heard = False
            last: Farewell | None = None
            try:
                async with self.hub.attend() as stream:
                    last = await self._talk(stream)
                    if last and last.status == FINISHED and self.server is None:
                        return
                    if last and last.status == ABSENT:
                        raise AbsentError(f"the hub at {address} has ended: {last.why[:1000]}")
            except RefusalError as error:
                raise DeploymentError(f"the hub at {address} refuses this client: {error}") from error
            except UnreachableError:
                pass
            except RefusedError as error:
                self.log(f"the hub sends what this client does not understand: {error}")
            if last and last.status == FINISHED:  # the hub may begin to serve at once, or is yet to be started for that
                if not finished:
                    self.log("the training is finished; coming back when the hub serves predictions")
                wait, longest, alone, warned = min(FIRST_WAIT * 2**finished, LONGEST_WAIT), LONGEST_WAIT, now(), False
                finished += 1
            elif self._heard:
                finished = 0
                wait, longest, alone, warned = FIRST_WAIT, LONGEST_WAIT, now(), False
                self.log("lost the connection to the hub; reconnecting")
            elif not warned:
                warned = True
                why = await self.hub.explain()
                longest = BACK_OFF if isinstance(why, Refusal) else LONGEST_WAIT
                self.log(f"waiting for the hub at {address}: {why}")
            if now() - alone > self.patience:
                why = await self.hub.explain()
                kind = DeploymentError if isinstance(why, Refusal) else AbsentError
                raise kind(f"the hub at {address} was not reached for {self.patience:g} seconds: {why}")
            await asyncio.sleep(min(wait, max(0.1, alone + self.patience - now())))
            wait = min(2 * wait, longest)

    async def _talk(self, stream: Stream) -> Farewell | None:
        """Reply to requests until the stream ends; return the hub's last word, if it says one."""
        who = self.session.identity
        join = Join(PROTOCOL, VERSION, self.shared.text, who.silo, who.client or "", self.server is not None)
        await self._send(stream, join)
        assembler, answering = Assembler(self._most), set[asyncio.Task[None]]()
        try:
            while (frame := await stream.receive()) is not None:
                if not self._heard:
                    self._heard = True
                    self.log("connected to the hub")
                assembler.most = self._most
                request = assembler.feed(frame)
                if request is None:
                    continue
                if request.kind == kind_of(Farewell):
                    return unpack(request, Farewell)
                if request.kind == kind_of(Ping) or (self.server and request.kind in REQUESTS):
                    if len(answering) >= QUESTIONS:
                        raise RefusedError(f"more than {QUESTIONS} questions at a time")
                    answering.add(task := asyncio.ensure_future(self._answer(stream, request)))
                    task.add_done_callback(answering.discard)
                    continue
                try:
                    reply = self.session.reply(request)  # nothing else happens here: the transport keeps the line
                except TdcdError as error:
                    self.log(f"cannot do '{request.kind}': {error}")
                    reply = Failed(str(error))
                await self._send(stream, reply, request.stamp)
        finally:
            for task in answering:
                task.cancel()
        return None

    @property
    def _most(self) -> int:
        """Bytes that a request of the hub may have."""
        return max(self.session.most, MOST) if self.server else self.session.most

    async def _answer(self, stream: Stream, request: Message) -> None:
        """Answer a question of a hub that serves, beside others; in a thread if it takes long."""
        reply: object
        try:
            if request.kind == kind_of(Ping) or self.server is None:
                unpack(request, Ping)
                reply = Pong()
            else:
                self.session.rest()
                quick = self.server.is_quick(request)
                reply = self.server.reply(request) if quick else await asyncio.to_thread(self.server.reply, request)
        except TdcdError as error:
            self.log(f"cannot do '{request.kind}': {error}")
            reply = Failed(str(error))
        with suppress(UnreachableError):
            await self._send(stream, reply, request.stamp)

    async def _send(self, stream: Stream, message: object, stamp: Stamp = Stamp()) -> None:  # noqa: B008 - frozen
        async with self._sending:
            for piece in frames(pack(message, stamp)):
                await stream.send(piece)
