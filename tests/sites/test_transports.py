"""One contract for whatever carries messages: gRPC over a real socket, and memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import torch

from tdcd.errors import TdcdError
from tdcd.sites.messages.calls import ClientStatus, Hello, HubStatus, Opening, PeerStatus
from tdcd.sites.messages.frames import Assembler, Frame, RefusedError, Stamp, frames, message_in, one_frame
from tdcd.sites.messages.packing import pack, unpack
from tdcd.sites.messages.types import Embeddings, Step
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Open
from tdcd.sites.transport.base import (
    AwayError,
    EarlyError,
    NotAllowedError,
    RefusalError,
    RemoteHub,
    Stream,
    UnreachableError,
)
from tdcd.sites.transport.grpc import GrpcHub, GrpcServer
from tdcd.sites.transport.memory import MemoryHub

STATUS = HubStatus(
    "bank", "loans", "round 3", 3, 9, 1.5, (ClientStatus("north", True, 10, 2, 0.5, 7),),
    (PeerStatus("insurer", "x:1", False),), 100, 200, 30, "", '{"round": 3}', 4.0, "0.1.0", 3, 30, 1,
)  # fmt: skip
HELLO = Hello(1, "0.1.0", "insurer", "{}", "abc", 2, "start", '{"x": 1}')
STEP = Step(torch.arange(6.0).reshape(3, 2))


class Service:
    """A hub that echoes what it is sent, or fails as it is told."""

    def __init__(self) -> None:
        self.failure: TdcdError | None = None
        self.heard: list[Any] = []

    async def attend(self, caller: Identity | None, stream: Stream) -> None:
        if self.failure:
            raise self.failure
        assembler = Assembler(1 << 24)
        while (frame := await stream.receive()) is not None:
            if (message := assembler.feed(frame)) is None:
                continue
            if message.kind == "embeddings":
                return  # the hub ends the stream
            for reply in frames(message):
                await stream.send(reply)

    async def meet(self, caller: Identity | None, hello: Hello) -> Opening:
        if self.failure:
            raise self.failure
        self.heard.append(hello)
        return Opening(7, '{"all": 1}')

    async def deliver(self, caller: Identity | None, silo: str, stream: AsyncIterator[Frame]) -> str:
        if self.failure:
            raise self.failure
        assembler, message = Assembler(1 << 24), None
        async for frame in stream:
            message = assembler.feed(frame)
        self.heard.append((silo, message))
        return "of no use"

    async def predict(self, caller: Identity | None, silo: str, frame: Frame) -> Frame:
        if self.failure:
            raise self.failure
        self.heard.append((silo, frame))
        return frame

    async def report(self, caller: Identity | None) -> HubStatus:
        return STATUS


@asynccontextmanager
async def over_grpc(service: Service) -> AsyncIterator[RemoteHub]:
    server = GrpcServer(service, Open(Identity("bank")), lambda _: None)
    port = await server.start("127.0.0.1:0")
    try:
        yield GrpcHub(Open(Identity("insurer")), f"127.0.0.1:{port}", "bank")
    finally:
        await server.stop()


@asynccontextmanager
async def in_memory(service: Service) -> AsyncIterator[RemoteHub]:
    yield MemoryHub(service)


Way = Callable[[Service], Any]
each_way = pytest.mark.parametrize("way", [over_grpc, in_memory])


def run(way: Way, test: Callable[[Service, RemoteHub], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        service = Service()
        async with way(service) as hub:
            await asyncio.wait_for(test(service, hub), 30)

    asyncio.run(go())


async def pieces(*messages: object) -> AsyncIterator[Frame]:
    for message in messages:
        for frame in frames(pack(message, Stamp("job", 1, 2, 3, 4))):
            yield frame


@each_way
@pytest.mark.parametrize("rows", [0, 3, 200_000])
def test_a_stream_carries_messages_both_ways(way: Way, rows: int) -> None:
    sent = Step(torch.rand(rows, 2))

    async def test(service: Service, hub: RemoteHub) -> None:
        async with hub.attend() as stream:
            for _ in range(3):
                async for frame in pieces(sent):
                    await stream.send(frame)
                assembler, message = Assembler(1 << 24), None
                while message is None:
                    frame_back = await stream.receive()
                    assert frame_back is not None
                    message = assembler.feed(frame_back)
                assert message.stamp == Stamp("job", 1, 2, 3, 4)
                assert torch.equal(unpack(message, Step).gradients, sent.gradients)
            async for frame in pieces(Embeddings(torch.zeros(1))):
                await stream.send(frame)
            assert await stream.receive() is None  # the hub has ended it

    run(way, test)


@each_way
@pytest.mark.parametrize("error", [RefusedError("an unsolicited reply"), NotAllowedError("who are you?")])
def test_a_client_that_is_refused_hears_why(way: Way, error: TdcdError) -> None:
    async def test(service: Service, hub: RemoteHub) -> None:
        service.failure = error
        with pytest.raises(RefusalError, match=str(error).replace("?", r"\?")):
            async with hub.attend() as stream:
                assert await stream.receive() is None

    run(way, test)


@each_way
@pytest.mark.parametrize("rows", [0, 3, 200_000])
def test_a_message_is_delivered_whole(way: Way, rows: int) -> None:
    sent = Step(torch.rand(rows, 2))

    async def test(service: Service, hub: RemoteHub) -> None:
        assert await hub.deliver("insurer", pieces(sent), 10) == "of no use"
        ((silo, message),) = service.heard
        assert silo == "insurer"
        assert torch.equal(unpack(message, Step).gradients, sent.gradients)
        service.failure = EarlyError("epoch 3 has not begun here")
        with pytest.raises(UnreachableError, match="epoch 3 has not begun here"):
            await hub.deliver("insurer", pieces(sent), 10)
        service.failure = RefusedError("half a message")
        with pytest.raises(RefusalError, match="half a message"):
            await hub.deliver("insurer", pieces(sent), 10)

    run(way, test)


@each_way
@pytest.mark.parametrize("rows", [0, 3, 200_000])
def test_a_question_is_one_frame_and_so_is_its_answer(way: Way, rows: int) -> None:
    sent = Step(torch.rand(rows, 2))

    async def test(service: Service, hub: RemoteHub) -> None:
        frame = one_frame(pack(sent, Stamp("job", 1, 2, 3, 4)))
        message = message_in(await hub.predict("insurer", frame, 10), 1 << 24)
        assert service.heard[0][0] == "insurer"
        assert message.stamp == Stamp("job", 1, 2, 3, 4)
        assert torch.equal(unpack(message, Step).gradients, sent.gradients)
        for late in (EarlyError("it does not serve yet"), AwayError("the hub of silo 'x' is away")):
            service.failure = late
            with pytest.raises(UnreachableError, match=str(late)):
                await hub.predict("insurer", frame, 10)
        service.failure = RefusedError("no IDs")
        with pytest.raises(RefusalError, match="no IDs"):
            await hub.predict("insurer", frame, 10)

    run(way, test)


@each_way
def test_hubs_meet_and_report(way: Way) -> None:
    async def test(service: Service, hub: RemoteHub) -> None:
        assert await hub.meet(HELLO, 10) == Opening(7, '{"all": 1}')
        assert service.heard == [HELLO]
        assert await hub.report(10) == STATUS
        assert await hub.answers(10)
        service.failure = RefusedError("another job")
        with pytest.raises(RefusalError, match="another job"):
            await hub.meet(HELLO, 10)

    run(way, test)


async def dialled(hub: RemoteHub) -> None:
    async with hub.attend() as stream:
        async for frame in pieces(STEP):
            await stream.send(frame)
        assert await stream.receive() is None


def test_a_hub_that_is_not_there_is_unreachable() -> None:
    async def test() -> None:
        for hub in (GrpcHub(Open(Identity("insurer")), "127.0.0.1:1", "bank"), MemoryHub()):
            with pytest.raises(UnreachableError):
                await hub.meet(HELLO, 0.5)
            with pytest.raises(UnreachableError):
                await hub.deliver("insurer", pieces(STEP), 0.5)
            with pytest.raises(UnreachableError):
                await hub.predict("insurer", one_frame(pack(STEP)), 0.5)
            with pytest.raises(UnreachableError):
                await dialled(hub)
            assert await hub.explain()

    asyncio.run(test())
