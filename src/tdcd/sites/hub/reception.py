"""What a hub answers: it checks who calls, and hands the call on. See HubService."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass

from tdcd.errors import join_names, nearest
from tdcd.sites.hub.clients import Clients
from tdcd.sites.hub.peers import Peers
from tdcd.sites.messages.calls import Hello, HubStatus, Opening
from tdcd.sites.messages.frames import Assembler, Frame, RefusedError
from tdcd.sites.messages.packing import unpack
from tdcd.sites.messages.types import Join
from tdcd.sites.security.identity import Identity
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.transport.base import EarlyError, NotAllowedError, Stream


@dataclass(frozen=True)
class Door:
    """Who may call a hub."""

    silo: str
    clients: Collection[str]
    peers: Collection[str]

    def check_silo(self, who: Identity) -> None:
        """Check that somebody is of this silo."""
        if who.silo != self.silo:
            raise NotAllowedError(f"this is the hub of silo '{self.silo}', and the certificate is of {who}")

    def check_client(self, who: Identity) -> None:
        """Check that somebody is a client of this silo."""
        self.check_silo(who)
        if who.client not in self.clients:
            raise NotAllowedError(
                f"{who} is not a client that the job names: {join_names(self.clients, most=16)}"
                if who.client
                else "a hub's certificate was shown where a client's is wanted"
            )

    def check_peer(self, who: Identity | None, silo: str) -> None:
        """Check that somebody is the hub of another silo, as it says."""
        if who is None:
            if silo not in self.peers:
                raise RefusedError(f"silo '{silo[:80]}' is not in this job{nearest(silo[:80], self.peers)}")
            return
        if who.client is not None:
            raise NotAllowedError(f"{who} is a client; only hubs may bring messages here")
        if who.silo not in self.peers:
            raise NotAllowedError(f"{who} is not a hub that the job names: {join_names(self.peers, most=16)}")
        if silo != who.silo:
            raise RefusedError(f"the certificate is of {who}, and the message says silo '{silo[:80]}'")


@dataclass(frozen=True)
class Reception:
    """What a hub answers that trains."""

    silo: str
    job: SharedJob
    clients: Clients
    peers: Peers
    status: Callable[[], Awaitable[HubStatus]]

    @property
    def door(self) -> Door:
        """Who may call."""
        return Door(self.silo, self.clients.names, self.peers.peers)

    async def attend(self, caller: Identity | None, stream: Stream) -> None:
        """Keep a client's stream until it ends.

        Raises:
            NotAllowedError: it is no client of this silo.
            TdcdError: it has another job, or sends what does not belong here.
        """
        if caller is not None:
            self.door.check_client(caller)
        join = await first_message(stream)
        who = caller or Identity(join.silo, join.client)
        if caller is None:
            self.door.check_client(who)
        self.job.check(join.protocol, join.version, join.job, str(who))
        await self.clients.attend(who.client or "", stream)

    async def meet(self, caller: Identity | None, hello: Hello) -> Opening:
        """Let another hub come to a meeting."""
        self.door.check_peer(caller, hello.silo)
        return await self.peers.met(hello)

    async def deliver(self, caller: Identity | None, silo: str, frames: AsyncIterator[Frame]) -> str:
        """Take a message of another hub."""
        self.door.check_peer(caller, silo)
        return await self.peers.delivered(silo, frames)

    async def predict(self, caller: Identity | None, silo: str, frame: Frame) -> Frame:  # noqa: ARG002
        """Answer no question about IDs before the training has finished."""
        raise EarlyError(f"the hub of silo '{self.silo}' does not serve predictions, or not yet")

    async def report(self, caller: Identity | None) -> HubStatus:
        """Tell how the hub is doing, to anybody of its silo."""
        if caller is not None:
            self.door.check_silo(caller)
        return await self.status()


async def first_message(stream: Stream) -> Join:
    """Read a client's first message."""
    assembler = Assembler(0)
    while (frame := await stream.receive()) is not None:
        if message := assembler.feed(frame):
            return unpack(message, Join)
    raise RefusedError("the stream ended before the join message")
