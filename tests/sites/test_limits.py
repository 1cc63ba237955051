"""What others may make a site hold: connections, messages, memory and time are bounded."""

import asyncio
import resource
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tdcd.data.arrays import LONGEST
from tdcd.sites.hub.inbox import WAITING
from tdcd.sites.hub.main import FILES, SPARE, allow_connections
from tdcd.sites.messages.calls import Hello
from tdcd.sites.messages.frames import (
    MOST_TENSORS,
    Assembler,
    Frame,
    Header,
    Message,
    RefusedError,
    Stamp,
    TensorHeader,
    frames,
)
from tdcd.sites.messages.packing import pack, unpack
from tdcd.sites.messages.predictions import MOST_IDS, Predict
from tdcd.sites.messages.types import AllIDs, End, SiloEmbeddings
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Open
from tdcd.sites.transport.grpc import GrpcServer

from .memory import Federation, run_virtually
from .test_rounds import job


def test_more_connections_than_allowed_are_closed() -> None:
    nobody: Any = object()

    def count(port: int) -> int:
        lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        open_ = 0
        for line in lines:
            line.settimeout(0.5)
            try:
                open_ += bool(line.recv(10))  # gRPC greets whoever it takes
            except OSError:
                continue
        for line in lines:
            line.close()
        return open_

    async def run() -> int:
        server = GrpcServer(nobody, Open(Identity("a")), print, most_connections=20)
        port = await server.start("127.0.0.1:0")
        try:
            return await asyncio.to_thread(count, port)
        finally:
            await server.stop()

    assert asyncio.run(run()) == 20


def test_a_hub_may_open_as_many_files_as_it_needs() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert allow_connections(100) == 400 + SPARE
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400 + SPARE + FILES
        assert allow_connections(10**7) < before[1] or before[1] == resource.RLIM_INFINITY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Line:
    """A message that another hub brings, frame by frame."""

    def __init__(self, message: Message) -> None:
        self.message = message

    async def __aiter__(self) -> Any:
        for frame in frames(self.message):
            yield frame


def delivered(tmp_path: Path, *messages: Message) -> list[str]:
    """Let the second hub bring messages to the first; return why each was refused, if it was."""
    federation = Federation(job(), tmp_path)

    async def run() -> list[str]:
        await federation.start()
        peers = federation.hubs["silo-1"].context.peers
        peers.most = 10_000
        result = []
        for message in messages:
            stamp = message.stamp._replace(job=peers.job.fingerprint, epoch=peers.epoch)
            try:
                result.append(await peers.delivered("silo-2", aiter(Line(message.stamped(stamp)))))
            except RefusedError as error:
                result.append(str(error))
        assert sum(message.nbytes for message in peers._inbox.messages.values()) <= 2 * peers.most
        assert len(peers._inbox.messages) <= WAITING
        await federation.stop()
        return result

    return run_virtually(run())


def test_unknown_kinds_are_not_kept(tmp_path: Path) -> None:
    (why,) = delivered(tmp_path, Message("no such kind", {}, {"x": torch.zeros(100)}))
    assert why == "'no such kind' is not a message between hubs"


def test_messages_that_nobody_waits_for_are_few(tmp_path: Path) -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    small = [pack(End(nothing, nothing, ()), Stamp("", 0, number)) for number in range(1, WAITING + 20)]
    replies = delivered(tmp_path / "small", *small)
    assert replies[:WAITING] == [""] * WAITING
    assert all("wait here already" in why for why in replies[WAITING:])
    large = [
        pack(SiloEmbeddings(torch.zeros(1000, dtype=torch.float64), nothing, ()), Stamp("", 0, number))
        for number in range(1, 6)
    ]
    assert [bool(why) for why in delivered(tmp_path / "large", *large)] == [False, False, True, True, True]


@pytest.mark.parametrize(("change", "why"), [
    ({"epoch": 2**64 - 1}, "not one that hubs can have come to"),
    ({"brought": "{"}, "malformed"),
    ({"brought": "[]"}, "malformed"),
    ({"brought": "[" * 100_000}, "malformed"),
    ({"job": "{"}, ""),
    ({"job": "null"}, ""),
])  # fmt: skip
def test_a_meeting_refuses_what_cannot_be(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    federation = Federation(job(), tmp_path)

    async def run() -> str:
        await federation.start()
        peers = federation.hubs["silo-1"].context.peers
        good = {"protocol": 1, "version": "", "silo": "silo-2", "job": peers.job.text, "incarnation": "x", "epoch": 0,
                "topic": "start", "brought": "{}"}  # fmt: skip
        from tdcd.errors import TdcdError
        from tdcd.sites.messages.frames import PROTOCOL
        from tdcd.sites.shared_job import VERSION

        hello = Hello(**{**good, "protocol": PROTOCOL, "version": VERSION, **change})
        try:
            await peers.met(hello)
        except TdcdError as error:
            return str(error)
        finally:
            await federation.stop()
        return "accepted"

    refused = run_virtually(run())
    assert refused != "accepted"
    assert why in refused


def test_a_few_long_texts_do_not_blow_up_many_short_ones() -> None:
    for texts in (["7"] * 300_000, [f"{number:036}" for number in range(300_000)], [""] * 300_000):
        message = pack(AllIDs(pl.Series([*texts, LONGEST * "x"])))
        ids, peak = unpacked(message)
        assert len(ids) == 300_001
        assert ids.estimated_size() <= 2 * message.nbytes
        assert peak < 1 << 24, "beside the column, which is not of Python's memory"
    few = np.array(["no", "yes"] * 50 + ["prefers not to say, as is everybody's good right"])
    assert (unpack(pack(Predict("run", 1, few)), Predict).ids == few).all(), "of few texts any may be long"
    many = np.array([*map(str, range(MOST_IDS)), LONGEST * "x"])
    with pytest.raises(RefusedError, match="2,049 texts of up to 256 characters"):
        unpack(pack(Predict("run", 1, many)), Predict)
    assert (unpack(pack(Predict("run", 1, many[1:])), Predict).ids == many[1:]).all()
    with pytest.raises(RefusedError, match="more than 256 characters"):
        unpack(pack(AllIDs(pl.Series([(1 << 20) * "x"]))), AllIDs)


def unpacked(message: Message) -> tuple[pl.Series, int]:
    """Return the IDs of a message, and the most memory of Python meanwhile."""
    tracemalloc.start()
    try:
        return unpack(message, AllIDs).ids, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_with_many_tensors_takes_no_time_but_that_of_its_bytes() -> None:
    """Each frame brings a few bytes: what was read before is not looked at again."""

    def header(count: int) -> Header:
        return Header("", 0, 0, 0, 0, "x", "", tuple(TensorHeader(str(n), "uint8", (8,)) for n in range(count)))

    with pytest.raises(RefusedError, match="a message with"):
        Assembler(1 << 30).feed(Frame(header(MOST_TENSORS + 1), b""))
    assembler, many = Assembler(1 << 30), header(MOST_TENSORS)
    calls = 0

    class Counted(tuple[TensorHeader, ...]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal calls
            calls += len(range(*key.indices(len(self)))) if isinstance(key, slice) else 1
            return super().__getitem__(key)

    assembler.feed(Frame(many._replace(tensors=Counted(many.tensors)), b"\0" * 8))
    message = None
    for _ in range(MOST_TENSORS - 1):
        message = assembler.feed(Frame(None, b"\0" * 8))
    assert message is not None
    assert calls < 4 * MOST_TENSORS


def test_a_client_takes_no_more_than_it_can_need(tmp_path: Path) -> None:
    """An unsolicited tensor of 800 MB is refused by its header, before a byte of it is stored."""
    federation = Federation(job(), tmp_path)

    async def run() -> list[int]:
        await federation.start()
        await federation.stop()
        return [session.most for session in federation.sessions.values()]

    for most in run_virtually(run()):
        header = Header("", 0, 0, 0, 0, "embed", "", (TensorHeader("x", "float64", (100_000_000,)),))
        with pytest.raises(RefusedError, match="would be larger than the 268,435,456 bytes that it may have here"):
            Assembler(most).feed(Frame(header, b""))
