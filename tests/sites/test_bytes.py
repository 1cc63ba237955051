"""What a ledger counts, what hubs put into frames, and what goes over real sockets: three counts, each of its own."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sites.test_absences import MODES, mode, with_deadlines
from sites.test_rounds import training_of
from tdcd.core.ledger import Traffic
from tdcd.core.network import Block
from tdcd.core.state import SiloState
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import Job
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.session import Session
from tdcd.sites.hub.hub import Hub
from tdcd.sites.hub.main import build_hub
from tdcd.sites.participants import read_set, silos_of
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Open
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite
from tdcd.sites.transport.base import RemoteHub
from tdcd.sites.transport.grpc import GrpcHub, GrpcServer

ROUNDS = 6


class Wire:
    """A port that hands on all that comes to another, and counts it."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.target, self.up, self.down, self.port = target, 0, 0, 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target())
        self._writers += [writer, back]

        def up(count: int) -> None:
            self.up += count

        def down(count: int) -> None:
            self.down += count

        for one, two, count in ((reader, back, up), (there, writer, down)):
            task = asyncio.ensure_future(self._carry(one, two, count))
            self._tasks.add(task)

    async def _carry(self, one: asyncio.StreamReader, two: asyncio.StreamWriter, count: Callable[[int], None]) -> None:
        while data := await one.read(1 << 16):
            count(len(data))
            two.write(data)
            await two.drain()
        two.close()

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # transports close in the next turn of the loop


class Sockets:
    """Hubs and clients in this process that talk over real sockets, every one through a wire."""

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.hubs: dict[str, Hub] = {}
        self.ports: dict[str, int] = {}
        self.to_hub: dict[str, Wire] = {}
        """From a silo's clients to their hub."""
        self.between: dict[tuple[str, str], Wire] = {}
        """From a hub to another."""
        self._servers: list[GrpcServer] = []
        self._clients: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        names, shared = silos_of(self.job, read_set(self.job)), SharedJob.of(self.job)
        for silo in names:
            self.to_hub[silo] = Wire(partial(self.ports.__getitem__, silo))
            await self.to_hub[silo].open()
            for other in names:
                if other != silo:
                    self.between[silo, other] = Wire(partial(self.ports.__getitem__, other))
                    await self.between[silo, other].open()
        for silo in names:
            await self._hub(silo, names)
        for silo, clients in names.items():
            for name in clients:
                site = ClientSite(hub=f"127.0.0.1:{self.to_hub[silo].port}", workers=1)
                who = Identity(silo, name)
                session, hub = Session(self.job, who, site, _silent), GrpcHub(Open(who), site.hub, silo)
                process = ClientProcess(session, shared, hub, _silent, 30.0)
                self._clients.append(asyncio.ensure_future(process.run()))

        async def bring(hub: Hub) -> None:
            await hub.setup.prepare(read_set(self.job))
            await hub.agree({})

        await asyncio.gather(*(bring(hub) for hub in self.hubs.values()))

    async def _hub(self, silo: str, names: dict[str, tuple[str, ...]]) -> None:
        trust = Open(Identity(silo))
        addresses = {name: f"127.0.0.1:{self.between[silo, name].port}" for name in names if name != silo}
        others: dict[str, tuple[str, RemoteHub]] = {
            name: (address, GrpcHub(trust, address, name)) for name, address in addresses.items()
        }
        self.hubs[silo], reception = build_hub(self.job, silo, names[silo], others, self.folder / silo, _silent)
        server = GrpcServer(reception, trust, _silent)
        self.ports[silo] = await server.start("127.0.0.1:0")
        self._servers.append(server)

    def carried(self) -> Traffic:
        """Return what all wires have carried so far, by direction. Hubs answer each other with receipts only."""
        return Traffic(
            client_to_hub=sum(wire.up for wire in self.to_hub.values()),
            hub_to_client=sum(wire.down for wire in self.to_hub.values()),
            hub_to_hub=sum(wire.up for wire in self.between.values()),
        )

    async def stop(self) -> None:
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        for server in self._servers:
            await server.stop()
        for wire in (*self.to_hub.values(), *self.between.values()):
            await wire.close()
        await asyncio.sleep(0.05)


def _silent(_: str) -> None:
    pass


def wide(job: Job) -> Job:
    """Give it networks and batches that outweigh what is around them."""
    table: dict[str, Any] = job.model_dump()
    table["model"] = {"kind": "mlp", "hidden": [400]}
    table["training"] |= {"batch_size": "full", "rounds": ROUNDS, "precision": "float64"}
    return parse_job(table, "job")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in MODES),
        ("shared", {"codec": "float16"}),
        ("registry exact", {"codec": "bfloat16"}),
        ("shared", {"participation": 0.7}),
        ("registry exact", {"participation": 0.7, "own": {"silo-1": {"local_steps": 1}}}),
    ],
)
def test_the_ledger_is_what_hubs_encode_and_what_sockets_carry(name: str, more: dict[str, Any], tmp_path: Path) -> None:
    job = with_deadlines(wide(mode(name, local_steps=3, **more)), 60)
    federation = Sockets(job, tmp_path)

    async def run() -> tuple[Traffic, Traffic]:
        await federation.start()
        try:
            blocks: dict[str, Block] = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}
            before, counted = federation.carried(), Traffic()
            for number in range(1, ROUNDS + 1):
                hubs = federation.hubs.items()
                result = await asyncio.gather(*(hub.run_round(SiloState(blocks[silo]), number) for silo, hub in hubs))
                blocks = {silo: state.weights for silo, (state, _) in zip(federation.hubs, result, strict=True)}
                counted = sum((sent for _, sent in result), counted)
            await asyncio.sleep(0.2)  # the last receipts
            after = federation.carried()
        finally:
            await federation.stop()
        ways = ("client_to_hub", "hub_to_client", "hub_to_hub")
        return counted, Traffic(*(getattr(after, way) - getattr(before, way) for way in ways))

    counted, carried = asyncio.run(run())
    training = training_of(job)
    own = training.ledger()
    expected = Traffic()
    for number in range(1, ROUNDS + 1):
        expected += own.traffic(own.counts(training.batch(number).numpy()))
    assert counted == expected  # what was put into frames
    messages = ROUNDS * 6 * (1 + job.training.local_steps)
    for way in ("client_to_hub", "hub_to_client", "hub_to_hub"):
        on_the_wire, in_the_ledger = getattr(carried, way), getattr(expected, way)
        around = 700 * messages + 0.02 * in_the_ledger  # headers, receipts, window updates
        assert in_the_ledger <= on_the_wire <= in_the_ledger + around, (way, in_the_ledger, on_the_wire)
