"""Sites over gRPC: a hub answers on its port, others dial it. Nothing else imports grpc or protobuf."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tdcd.errors import DeploymentError, TdcdError
from tdcd.sites.messages.calls import ClientStatus, Hello, HubStatus, Opening, PeerStatus
from tdcd.sites.messages.frames import Frame, RefusedError
from tdcd.sites.security.identity import Identity, host_name
from tdcd.sites.security.tls import Open, Trust
from tdcd.sites.transport.base import (
    AwayError,
    EarlyError,
    ExpiredError,
    HubService,
    NotAllowedError,
    RefusalError,
    Stream,
    UnreachableError,
)
from tdcd.sites.transport.wire import tdcd_pb2 as wire
from tdcd.sites.transport.wire import tdcd_pb2_grpc
from tdcd.sites.transport.wire.frames import from_wire, to_wire

T = TypeVar("T")

HANDSHAKE = 10_000
"""Milliseconds to connect and show certificates: a crowd that joins at once has to queue."""
OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 60_000),  # on a slow line, a ping waits behind what is under way
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", HANDSHAKE),  # it bounds an attempt to connect; a wait for the next is shorter
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.http2.bdp_probe", 0),  # with it, gRPC would hold a large answer in memory that nobody has asked to read yet
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
)
"""Of every connection: a peer that no longer answers is noticed, no frame is larger than 4 MB."""

_REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED)
"""What a hub says on purpose. All else may be over soon: it is not there yet, is restarting, or the line was cut."""
LOOK_AGAIN = 10.0
"""Seconds between two looks at the certificate of a stream that stays open."""
DRAIN = 5.0
"""Seconds for a refused caller to finish sending: it does not hear why before."""


@dataclass
class _Stream:
    """One end of a stream: a servicer's context, or a call. See Stream."""

    line: Any
    ended: bool = False

    async def send(self, frame: Frame) -> None:
        try:
            await self.line.write(to_wire(frame))
        except Exception as error:  # gRPC raises errors of many kinds, and asyncio's, when a line is cut
            raise UnreachableError("the stream is broken") from error

    async def receive(self) -> Frame | None:
        frame = await self.line.read()
        if frame is None:  # gRPC could not parse it
            raise RefusedError("bytes that are no frame")
        self.ended = frame is grpc.aio.EOF
        return None if self.ended else from_wire(frame)


# Answering


@dataclass
class GrpcServer(tdcd_pb2_grpc.HubServicer):
    """A hub's port."""

    service: HubService
    trust: Trust | Open
    log: Callable[[str], None]
    most_connections: int = 1000
    """At a time; more are closed at once."""
    health: Any = field(default_factory=health.aio.HealthServicer)
    _server: Any = None

    async def start(self, address: str) -> int:
        """Answer from now on; return the port.

        Raises:
            DeploymentError: the address is not available.
        """
        limits = (
            ("grpc.so_reuseport", 0),
            ("grpc.max_allowed_incoming_connections", self.most_connections),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE),
        )
        self._server = grpc.aio.server(options=(*OPTIONS, *limits))
        tdcd_pb2_grpc.add_HubServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        await self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        try:
            if isinstance(self.trust, Trust):
                port = self._server.add_secure_port(address, _server_credentials(self.trust))
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise DeploymentError(f"cannot listen on {address}: is another hub running there? ({error})") from error
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        """Answer no more."""
        await self.health.enter_graceful_shutdown()
        await self._server.stop(grace=1.0)

    async def Attend(self, _: Any, context: Any) -> None:  # noqa: N802 - gRPC's names
        """See tdcd.proto."""

        async def attend(who: Identity | None) -> None:
            attending = asyncio.ensure_future(self.service.attend(who, _Stream(context)))
            valid = asyncio.ensure_future(self._while_valid(context))
            try:
                await asyncio.wait({attending, valid}, return_when=asyncio.FIRST_COMPLETED)
                await (attending if attending.done() else valid)
            finally:
                for task in (attending, valid):
                    task.cancel()
                await asyncio.gather(attending, valid, return_exceptions=True)

        await self._answer(context, attend)

    async def _while_valid(self, context: Any) -> None:
        """Look again and again at the certificate of a stream that stays open: it may expire, or its CA be replaced.

        Raises:
            ExpiredError: it is not valid any more.
        """
        while True:
            await asyncio.sleep(LOOK_AGAIN)
            try:
                self._authenticate(context)
            except NotAllowedError as error:
                raise ExpiredError(str(error)) from error

    async def Meet(self, hello: wire.Hello, context: Any) -> wire.Opening:  # noqa: N802
        """See tdcd.proto."""
        came = Hello(**{name: getattr(hello, name) for name in Hello.__dataclass_fields__})
        opening = await self._answer(context, lambda who: self.service.meet(who, came))
        return wire.Opening(epoch=opening.epoch, brought=opening.brought)

    async def Deliver(self, stream: AsyncIterator[wire.Frame], context: Any) -> wire.Receipt:  # noqa: N802
        """See tdcd.proto."""

        async def frames() -> AsyncIterator[Frame]:
            async for frame in stream:
                yield from_wire(frame)

        return await self._deliver(frames(), context)

    async def Hand(self, frame: wire.Frame, context: Any) -> wire.Receipt:  # noqa: N802
        """See tdcd.proto."""
        return await self._deliver(_alone(from_wire(frame)), context)

    async def _deliver(self, frames: AsyncIterator[Frame], context: Any) -> wire.Receipt:
        silo = _silo_of(context)

        async def deliver(who: Identity | None) -> str:
            try:
                return await self.service.deliver(who, silo, frames)
            except TdcdError:
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN):
                        async for _ in frames:
                            pass
                raise

        return wire.Receipt(refused=await self._answer(context, deliver))

    async def Predict(self, frame: wire.Frame, context: Any) -> wire.Frame:  # noqa: N802
        """See tdcd.proto."""
        silo, asked = _silo_of(context), from_wire(frame)
        return to_wire(await self._answer(context, lambda who: self.service.predict(who, silo, asked)))

    async def Status(self, _: wire.StatusRequest, context: Any) -> wire.StatusReply:  # noqa: N802
        """See tdcd.proto."""
        status = asdict(await self._answer(context, self.service.report))
        status["clients"] = [wire.ClientStatus(**client) for client in status["clients"]]
        status["peers"] = [wire.PeerStatus(**peer) for peer in status["peers"]]
        return wire.StatusReply(**status)

    async def _answer(self, context: Any, do: Callable[[Identity | None], Awaitable[T]]) -> T:
        """Find out who calls, and do what is asked; whoever may not is refused, with a line on both sides."""
        who: Identity | None = None
        try:
            who = self._authenticate(context)
            return await do(who)
        except (EarlyError, AwayError) as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise
        except ExpiredError as error:
            self.log(f"ended the stream of {who}: {error}")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
            raise
        except TdcdError as error:
            allowed = not isinstance(error, NotAllowedError)
            self.log(f"refused {who if who and allowed else context.peer()}: {error}")
            code = grpc.StatusCode.FAILED_PRECONDITION if allowed else grpc.StatusCode.PERMISSION_DENIED
            await context.abort(code, str(error))
            raise

    def _authenticate(self, context: Any) -> Identity | None:
        if isinstance(self.trust, Open):
            return None
        shown = context.auth_context().get("x509_pem_cert")
        if not shown:
            raise NotAllowedError("no certificate was shown")
        try:
            return self.trust.authenticate(shown[0])
        except DeploymentError as error:
            raise NotAllowedError(str(error)) from error


def _silo_of(context: Any) -> str:
    """Return the silo whose hub calls, as it says."""
    return str(dict(context.invocation_metadata()).get("silo", ""))


async def _itself(call: Any) -> Any:
    return await call


async def _alone(frame: Frame) -> AsyncIterator[Frame]:
    yield frame


def _server_credentials(trust: Trust) -> grpc.ServerCredentials:
    """Return what a hub answers with: everybody must show a certificate of a CA it knows.

    Certificates are read again when their files change, so that they can be renewed while the hub runs.
    """
    stamp = trust.stamp()

    def configuration() -> Any:
        roots = b"".join(file.read_bytes() for file in trust.authorities.values())
        pair = (trust.pair.key.read_bytes(), trust.pair.certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], roots)

    def changed() -> Any:
        """Return new certificates, or None to keep the present ones.

        gRPC calls this in every handshake, and replaces its TLS context whenever a configuration is returned:
        thousands of times a minute, that ends the process.
        """
        nonlocal stamp
        if (now := trust.stamp()) == stamp or not now:
            return None
        try:
            renewed = configuration()
        except OSError:
            return None  # a file is just being replaced
        stamp = now
        return renewed

    return grpc.dynamic_ssl_server_credentials(configuration(), changed, require_client_authentication=True)


# Dialling


@dataclass
class GrpcHub:
    """A hub at an address. See RemoteHub."""

    trust: Trust | Open
    address: str
    silo: str
    _stub: Any = None
    _health: Any = None
    _stamp: tuple[int, ...] | None = None

    def renew(self) -> bool:  # noqa: D102
        stamp = self.trust.stamp()
        if self._stub is not None and (stamp == self._stamp or not stamp):  # a file is just being replaced
            return False
        channel = self._channel()
        self._stamp, self._stub = stamp, tdcd_pb2_grpc.HubStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)
        return True

    def _channel(self) -> grpc.aio.Channel:
        """Dial; the hub must show a certificate with its name, of its silo's CA."""
        trust = self.trust
        if isinstance(trust, Open):
            return grpc.aio.insecure_channel(self.address, OPTIONS)
        files = (trust.authorities[self.silo], trust.pair.key, trust.pair.certificate)
        try:
            credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
        except OSError as error:
            raise UnreachableError(f"a certificate cannot be read: {error}") from error
        options = (*OPTIONS, ("grpc.ssl_target_name_override", host_name(self.silo)))
        return grpc.aio.secure_channel(self.address, credentials, options)

    @asynccontextmanager
    async def attend(self) -> AsyncIterator[Stream]:  # noqa: D102
        async with self._channel() as channel:
            call = tdcd_pb2_grpc.HubStub(channel).Attend()
            stream = _Stream(call)
            try:
                yield stream
            except (grpc.aio.AioRpcError, UnreachableError) as error:
                raise _error_of(await call.code(), await call.details()) from error
            if stream.ended and (status := await call.code()) is not grpc.StatusCode.OK:
                raise _error_of(status, await call.details())

    async def meet(self, hello: Hello, timeout: float) -> Opening:  # noqa: D102
        opening = await self._called(lambda stub: stub.Meet(wire.Hello(**asdict(hello)), timeout=timeout))
        return Opening(opening.epoch, opening.brought)

    async def deliver(self, silo: str, frames: AsyncIterator[Frame], timeout: float) -> str:  # noqa: D102
        who = (("silo", silo),)
        first = await anext(frames)
        second = await anext(frames, None)

        if second is None:  # most messages are one frame
            receipt = await self._called(lambda stub: stub.Hand(to_wire(first), timeout=timeout, metadata=who))
            return str(receipt.refused)

        async def bring(call: Any) -> Any:
            for frame in (first, second):
                await asyncio.wait_for(call.write(to_wire(frame)), timeout)
            async for frame in frames:
                await asyncio.wait_for(call.write(to_wire(frame)), timeout)
            await call.done_writing()
            return await asyncio.wait_for(call, timeout)

        receipt = await self._called(lambda stub: stub.Deliver(metadata=who), bring)
        return str(receipt.refused)

    async def predict(self, silo: str, frame: Frame, timeout: float) -> Frame:  # noqa: D102
        who, asked = (("silo", silo),), to_wire(frame)
        return from_wire(await self._called(lambda stub: stub.Predict(asked, timeout=timeout, metadata=who)))

    async def report(self, timeout: float) -> HubStatus:  # noqa: D102
        reply = await self._called(lambda stub: stub.Status(wire.StatusRequest(), timeout=timeout))
        values = {name: getattr(reply, name) for name in HubStatus.__dataclass_fields__}
        values["clients"] = tuple(
            ClientStatus(**{name: getattr(one, name) for name in ClientStatus.__dataclass_fields__})
            for one in reply.clients
        )
        values["peers"] = tuple(PeerStatus(one.silo, one.address, one.present) for one in reply.peers)
        return HubStatus(**values)

    async def answers(self, timeout: float) -> bool:  # noqa: D102
        try:
            if self._health is None:
                self.renew()
            await self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout)
        except (grpc.aio.AioRpcError, UnreachableError):
            return False
        return True

    async def explain(self) -> str:  # noqa: D102
        return await self.trust.explain(self.address, self.silo)

    async def _called(self, call: Callable[[Any], Any], reply_of: Callable[[Any], Awaitable[Any]] = _itself) -> Any:
        if self._stub is None:
            self.renew()
        under_way = call(self._stub)
        try:
            reply = await reply_of(under_way)
            if reply is None:  # gRPC could not parse it
                raise RefusalError("it answers with bytes that are no message")
            return reply
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            # The call knows better: an error may be of its last write only, or it was over before all was written.
            raise _error_of(await under_way.code(), await under_way.details()) from error
        except TimeoutError as error:
            raise UnreachableError("nothing gets through") from error
        finally:
            under_way.cancel()


def _error_of(code: grpc.StatusCode, details: str | None) -> DeploymentError:
    return (RefusalError if code in _REFUSALS else UnreachableError)(details or code.name)
