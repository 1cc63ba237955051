"""A client's process: it dials its hub, and replies to what the hub asks. What it can do is in session.py."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tdcd.errors import AbsentError, DeploymentError, TdcdError
from tdcd.sites.client.session import Session
from tdcd.sites.event_loop import now
from tdcd.sites.messages.frames import PROTOCOL, Assembler, RefusedError, frames
from tdcd.sites.messages.packing import kind_of, pack, unpack
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


@dataclass
class ClientProcess:
    """A client that keeps a stream to its hub."""

    session: Session
    shared: SharedJob
    hub: RemoteHub
    log: Callable[[str], None]
    patience: float
    """Seconds that it tries to reach its hub."""
    _heard: bool = False
    """Whether the hub has said anything on the stream that is open, or was last."""

    async def run(self) -> None:
        """Reply until the hub says that the training is finished; when the hub stops before, wait for it.

        Raises:
            DeploymentError: the hub refuses this client, or one does not take the other's certificate.
            AbsentError: the hub cannot be reached, or has ended because others were away.
        """
        address = self.session.site.hub
        wait, longest, alone, warned = FIRST_WAIT, LONGEST_WAIT, now(), False
        while True:
            self._heard = False
            try:
                async with self.hub.attend() as stream:
                    last = await self._talk(stream)
                    if last and last.status == FINISHED:
                        return
                    if last and last.status == ABSENT:
                        raise AbsentError(f"the hub at {address} has ended: {last.why[:1000]}")
            except RefusalError as error:
                raise DeploymentError(f"the hub at {address} refuses this client: {error}") from error
            except UnreachableError:
                pass
            except RefusedError as error:
                self.log(f"the hub sends what this client does not understand: {error}")
            if self._heard:
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
        join = Join(PROTOCOL, VERSION, self.shared.text, who.silo, who.client or "")
        for piece in frames(pack(join)):
            await stream.send(piece)
        assembler = Assembler(self.session.most)
        while (frame := await stream.receive()) is not None:
            if not self._heard:
                self._heard = True
                self.log("connected to the hub")
            assembler.most = self.session.most
            request = assembler.feed(frame)
            if request is None:
                continue
            if request.kind == kind_of(Farewell):
                return unpack(request, Farewell)
            try:
                reply = self.session.reply(request)  # nothing else happens here: the transport keeps the line
            except TdcdError as error:
                self.log(f"cannot do '{request.kind}': {error}")
                reply = Failed(str(error))
            for piece in frames(pack(reply, request.stamp)):
                await stream.send(piece)
        return None
