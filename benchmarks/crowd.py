"""Let a thousand clients join one hub over real TLS, and train with all of them.

    python benchmarks/crowd.py                  # 1,000 clients
    python benchmarks/crowd.py --clients 100

The hubs are processes of their own. The clients are those of the package, many in one process: each has its own
certificate and connection, but no network: it sends its weights back as they came. Prints how long it takes until all
have joined, the seconds of a round in which all take part, and the hub's memory a client.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measures import resident
from tdcd.data.holdout import Part
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.load import load_job
from tdcd.jobs.schema import Job
from tdcd.sites.client import session
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.session import Session
from tdcd.sites.client.states import Ready
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.messages import types
from tdcd.sites.messages.calls import HubStatus
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Trust
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite, HubSite, read_site
from tdcd.sites.transport.base import UnreachableError
from tdcd.sites.transport.grpc import GrpcHub

CROWDED, OTHER, ROUNDS = "left", "right", 20
_DATA: list[JobData] = []


def read_once(job: Job) -> JobData:
    """Read the data set once for all clients in this process: they read the same files."""
    if not _DATA:
        _DATA.append(load_data(job))
    return _DATA[0]


class LightSession(Session):
    """A client that computes nothing in a round; its hub cannot tell."""

    _brought: tuple[Tensor, ...] = ()

    def _begin(self, request: types.Begin) -> types.Begun:
        words = {part.word: part for part in Part}
        numbers = {words[word]: n.numpy() for word, n in zip(request.parts, request.numbers, strict=True)}
        self._ready = Ready(request.setup, numbers, {}, request.population, request.width, None, None, None)
        return types.Begun()

    def _enter_round(self, typed: Any, number: int) -> None:
        pass

    def _embed(self, request: types.Embed) -> types.Embeddings:
        ready, self._brought = self._ready, request.weights
        assert ready  # noqa: S101
        return types.Embeddings(torch.zeros(len(ready.numbers[Part.TRAIN]), ready.width, dtype=self.job.training.dtype))

    def _score(self, request: types.Score) -> types.Scores:
        assert self._ready  # noqa: S101
        held = {part.word: len(numbers) for part, numbers in self._ready.numbers.items() if part.word in request.parts}
        rows = tuple(torch.zeros(n, self._ready.width, dtype=self.job.training.dtype) for n in held.values())
        return types.Scores(tuple(held), rows)

    def _descend(self, request: types.Descend) -> types.Weights:  # noqa: ARG002
        return types.Weights(self._brought)


async def ask(hub: GrpcHub) -> HubStatus | None:
    """Ask a hub how it goes."""
    try:
        return await hub.report(30.0)
    except UnreachableError:
        return None


async def crowd(federation: LocalFederation, job: Job, count: int) -> str:
    """Let everybody join; return what was measured."""
    shared, hubs = SharedJob.of(job), {}
    for who, site in federation.sites.items():
        if who.client is None:
            federation.processes[who] = site.start(quiet=True)
            own = read_site(site.file, HubSite)
            assert own.tls  # noqa: S101
            hubs[who.silo] = GrpcHub(Trust.of(own.tls, who), own.listen, who.silo)
    while not all([await ask(hub) for hub in hubs.values()]):
        await asyncio.sleep(0.1)
    pid = federation.processes[Identity(CROWDED)].pid
    alone = resident(pid)
    processes = []
    for who, site in federation.sites.items():
        if who.client is not None:
            own_site = read_site(site.file, ClientSite)
            assert own_site.tls  # noqa: S101
            remote = GrpcHub(Trust.of(own_site.tls, who), own_site.hub, who.silo)
            lines: list[str] = []
            one = LightSession(job, who, own_site.model_copy(update={"workers": 1}), lines.append)
            processes.append(ClientProcess(one, shared, remote, lines.append, 600.0))
    began = time.monotonic()
    clients = [asyncio.ensure_future(process.run()) for process in processes]
    joined = ready = first = 0.0
    memory, done = alone, 0
    while not all(task.done() for task in clients):
        status = await ask(hubs[CROWDED])
        now = time.monotonic() - began
        if status is None:
            await asyncio.sleep(0.2)
            continue
        joined = joined or now * (sum(client.present for client in status.clients) == count)
        if not ready and status.round >= 1:
            ready, first = now, status.round
        if status.round > first and status.round < ROUNDS:
            done, last = status.round, now
        memory = max(memory, resident(pid))
        await asyncio.sleep(0.2)
    await asyncio.gather(*clients)
    seconds = (last - ready) / (done - first)
    return (
        f"{count:,} clients joined in {joined:.1f} s; {seconds:.2f} s a round with all of them; "
        f"{1024 * (memory - alone) / count:.0f} kB of the hub's memory a client ({alone:.0f} to {memory:.0f} MB)"
    )


def main() -> None:
    """Measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    count = parser.parse_args().clients
    settings = {
        "data.features": {"kind": "strips", "silos": 2},
        "silos": {CROWDED: {"clients": count}, OTHER: {"clients": 1}},
        "model": {"kind": "linear"},
        "baselines": [],
        "training.rounds": ROUNDS,
        "training.batch_size": "full",
        "training.evaluate_every": 10 * ROUNDS,
        "training.checkpoint_every": 10 * ROUNDS,
        "deployment.hub_deadline": 300,
    }
    setattr(session, "load_data", read_once)  # noqa: B010
    with tempfile.TemporaryDirectory() as folder:
        job = load_job("digits", settings)
        federation = LocalFederation.laid_out(job, Path(folder))
        job = load_job(Path(folder) / "job.toml")
        try:
            print(asyncio.run(crowd(federation, job, count)))
        finally:
            federation.kill()
            for site in federation.sites.values():
                if site.log.exists() and "Traceback" in (text := site.log.read_text()):
                    print(text[-2000:])


if __name__ == "__main__":
    main()
