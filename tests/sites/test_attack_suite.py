"""A sample of the attacks of benchmarks/attack.py, and hubs that answer with bytes that are nothing at all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tdcd.errors import AbsentError
from tdcd.jobs.schema import Job
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.session import Session
from tdcd.sites.messages.frames import Frame
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Open
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite
from tdcd.sites.transport.base import RefusalError
from tdcd.sites.transport.grpc import GrpcHub

from .attacks import hostile_client, hostile_hub, hostile_peer, record
from .tables import write_tables
from .test_labels import keeping
from .test_rounds import job
from .wire_attacks import attack

CLIENT = Identity("silo-2", "silo-2-1")


def attacked(name: str, folder: Path) -> tuple[Job, Identity]:
    if name == "tables":
        return write_tables(folder), Identity("hospital", "part-1")
    return (job() if name == "shared" else keeping(job(), name, "silo-2")), CLIENT


@pytest.mark.parametrize(("name", "every"), [("shared", 9), ("exact", 15), ("tables", 23)])
def test_a_client_believes_nothing_that_its_hub_sends(name: str, every: int, tmp_path: Path) -> None:
    wanted, client = attacked(name, tmp_path)
    outcomes = list(hostile_hub(record(wanted, tmp_path / "run", client), name, every))
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert len(outcomes) > 15


@pytest.mark.parametrize(("name", "every"), [("shared", 23), ("tables", 97)])
def test_a_hub_believes_nothing_that_its_client_sends(name: str, every: int, tmp_path: Path) -> None:
    wanted, client = attacked(name, tmp_path)
    recorded = record(wanted, tmp_path / "run", client)
    outcomes = list(hostile_client(wanted, recorded, tmp_path / "clients", name, every))
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert len(outcomes) >= 4


def test_a_hub_believes_nothing_that_another_sends(tmp_path: Path) -> None:
    outcomes = list(hostile_peer(job(), tmp_path, CLIENT.silo, "shared", 12))
    assert [outcome for outcome in outcomes if not outcome.good] == []
    assert len(outcomes) > 12


def test_bytes_changed_at_random(tmp_path: Path) -> None:
    result = attack(job(), tmp_path, CLIENT, 4000, 5, lambda number: None)
    assert result.total() == 4000
    for link in ("hub to client", "client to hub", "hub to hub", "hub to meeting"):
        assert result[f"{link}: refused"] > 200


class Nonsense(grpc.GenericRpcHandler):
    """Answers everything with bytes that are no message."""

    def service(self, details: Any) -> Any:
        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            yield b"\xff" * 50

        async def reply(requests: Any, context: Any) -> bytes:
            return b"\xff" * 50

        if details.method.endswith("Attend"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(reply)


def test_a_hub_that_answers_with_nonsense(tmp_path: Path) -> None:
    said: list[str] = []

    async def frames() -> AsyncIterator[Frame]:
        yield Frame(None, b"x")

    async def go() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Nonsense(),))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        hub = GrpcHub(Open(CLIENT), address, CLIENT.silo)
        session = Session(job(), CLIENT, ClientSite(hub=address), said.append)
        process = ClientProcess(session, SharedJob.of(job()), hub, said.append, 0.5)
        with pytest.raises(AbsentError):
            await asyncio.wait_for(process.run(), 20)
        for call in (hub.deliver("silo-1", frames(), 5.0), hub.report(5.0)):
            with pytest.raises(RefusalError, match="bytes that are no message"):
                await call
        await server.stop(0)

    asyncio.run(go())
    assert "the hub sends what this client does not understand: bytes that are no frame" in said
