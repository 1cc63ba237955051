"""What a hub answers on its port: clients' streams, other hubs' messages, questions how it goes.

Who is not on the list is refused, with a line on both sides that says why.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tdcd.deployment.clients import Clients
from tdcd.deployment.identity import Identity
from tdcd.deployment.messages import Assembler, Message, RefusedError
from tdcd.deployment.peers import EarlyError, Peers
from tdcd.deployment.shared import SharedJob
from tdcd.deployment.tls import OPTIONS, Open, Trust
from tdcd.deployment.wire import tdcd_pb2_grpc
from tdcd.deployment.wire.tdcd_pb2 import Frame, Hello, Opening, Receipt, StatusReply, StatusRequest
from tdcd.errors import DeploymentError, TdcdError, join_names, nearest

JOIN = 1 << 22
"""Bytes that a client's first message may have."""


@dataclass
class Server(tdcd_pb2_grpc.HubServicer):
    """A hub's port."""

    silo: str
    job: SharedJob
    trust: Trust | Open
    clients: Clients
    peers: Peers
    status: Callable[[], StatusReply]
    log: Callable[[str], None]
    health: Any = field(default_factory=health.aio.HealthServicer)
    _server: Any = None

    async def start(self, address: str) -> int:
        """Answer from now on; return the port.

        Raises:
            DeploymentError: the address is not available.
        """
        self._server = grpc.aio.server(options=(*OPTIONS, ("grpc.so_reuseport", 0)))
        tdcd_pb2_grpc.add_HubServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        await self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        try:
            if isinstance(self.trust, Trust):
                port = self._server.add_secure_port(address, self.trust.server())
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise DeploymentError(f"cannot answer on {address}: is another hub running there? ({error})") from error
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        """Answer no more."""
        await self.health.enter_graceful_shutdown()
        await self._server.stop(grace=1.0)

    async def Attend(self, _: Any, context: Any) -> None:  # noqa: N802 - gRPC's names
        """See tdcd.proto."""
        who = await self._welcome(context, self._own_client)
        try:
            first = await _first(context)
            who = who or self._told_client(first)
            self.job.check(_hello(first), str(who))
            await self.clients.attend(who.client or "", context)
        except TdcdError as error:
            await self._refuse(context, str(who or "a client"), error)

    async def Meet(self, hello: Hello, context: Any) -> Opening:  # noqa: N802
        """See tdcd.proto."""
        opening: Opening = await self._for_peer(context, hello.silo, lambda _: self.peers.met(hello))
        return opening

    async def Deliver(self, stream: AsyncIterator[Frame], context: Any) -> Receipt:  # noqa: N802
        """See tdcd.proto."""
        silo = dict(context.invocation_metadata()).get("silo", "")
        receipt: Receipt = await self._for_peer(context, silo, lambda name: self.peers.delivered(name, stream))
        return receipt

    async def Hand(self, frame: Frame, context: Any) -> Receipt:  # noqa: N802
        """See tdcd.proto."""
        return await self.Deliver(_alone(frame), context)

    async def Status(self, _: StatusRequest, context: Any) -> StatusReply:  # noqa: N802
        """See tdcd.proto."""
        await self._welcome(context, self._own)
        return self.status()

    async def _for_peer(self, context: Any, said: str, do: Callable[[str], Awaitable[Any]]) -> Any:
        who = await self._welcome(context, self._peer)
        try:
            if who is None and said not in self.peers.peers:
                raise DeploymentError(f"silo '{said[:80]}' is not in this job{nearest(said[:80], self.peers.peers)}")
            if who is not None and said != who.silo:
                raise DeploymentError(f"the certificate is of {who}, and the message says silo '{said[:80]}'")
            return await do(said)
        except EarlyError as error:
            return await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except TdcdError as error:
            return await self._refuse(context, str(who or f"silo '{said[:80]}'"), error)

    async def _welcome(self, context: Any, check: Callable[[Identity], None]) -> Identity | None:
        """Find out who calls, and whether it may."""
        if isinstance(self.trust, Open):
            return None
        try:
            who = self.trust.judge(context)
            check(who)
        except DeploymentError as error:
            await self._refuse(context, context.peer(), error, grpc.StatusCode.PERMISSION_DENIED)
            raise
        return who

    def _own(self, who: Identity) -> None:
        if who.silo != self.silo:
            raise DeploymentError(f"this is the hub of silo '{self.silo}', and the certificate is of {who}")

    def _own_client(self, who: Identity) -> None:
        self._own(who)
        if who.client not in self.clients.names:
            raise DeploymentError(
                f"{who} is not a client that the job names: {join_names(self.clients.names, most=16)}"
                if who.client
                else "a hub's certificate was shown where a client's is wanted"
            )

    def _peer(self, who: Identity) -> None:
        if who.client is not None:
            raise DeploymentError(f"{who} is a client; only hubs may bring messages here")
        if who.silo not in self.peers.peers:
            raise DeploymentError(f"{who} is not a hub that the job names: {join_names(self.peers.peers, most=16)}")

    def _told_client(self, first: Message) -> Identity:
        """Believe who a client says it is."""
        who = Identity(str(first.facts.get("silo")), str(first.facts.get("client")))
        self._own_client(who)
        return who

    async def _refuse(
        self, context: Any, who: str, error: Exception, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION
    ) -> Any:
        self.log(f"refused {who}: {error}")
        await context.abort(code, str(error))


async def _alone(frame: Frame) -> AsyncIterator[Frame]:
    yield frame


async def _first(context: Any) -> Message:
    """Read a client's first message."""
    assembler = Assembler(JOIN)
    while (frame := await context.read()) is not grpc.aio.EOF:
        if message := assembler.feed(frame):
            if message.kind != "join":
                raise RefusedError("a stream that does not begin with who it is")
            return message
    raise RefusedError("a stream that ends before it says who it is")


def _hello(first: Message) -> Hello:
    facts: Mapping[str, Any] = first.facts
    try:
        return Hello(
            protocol=int(facts["protocol"]), version=str(facts["version"]), job=json.dumps(facts["job"], sort_keys=True)
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError("a stream that does not say which job it is for") from error
