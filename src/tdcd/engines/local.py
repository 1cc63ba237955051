"""The default engine: every silo in this process, a silo's clients computed together."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from tdcd.compute import (
    Compute,
    ComputeName,
    Workers,
    choose,
    draws,
    gains_by_workers,
    heavy,
    make,
    torch_threads,
)
from tdcd.core.network import Block, Blocks
from tdcd.core.round import Round, communication_round, sum_of_others
from tdcd.core.task import SiloTask
from tdcd.core.topology import Roster, Shards, deal

T = TypeVar("T")


class LocalClients:
    """A hub's clients as a group in memory."""

    def __init__(self, roster: Roster, compute: Compute) -> None:
        self._roster = roster
        self._compute = compute
        self._open: tuple[Block, Round, Shards] | None = None

    def embed(self, block: Block, round_: Round) -> Tensor:
        """See Clients."""
        shards = deal(round_.batch, self._roster)
        self._open = block, round_, shards
        grouped = self._compute.embed(block, round_, shards)
        return torch.empty_like(grouped).index_copy_(0, shards.order, grouped)

    def descend(self, others: Tensor) -> Block:
        """See Clients."""
        assert self._open is not None, "a round starts with embed"  # noqa: S101
        block, round_, shards = self._open
        self._open = None
        return self._compute.descend(block, round_, shards, others[shards.order]).result()


class LocalPeers:
    """All hubs in one memory: the exchange is a sum."""

    def exchange(self, embeddings: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See Peers."""
        return {silo: sum_of_others(embeddings, silo) for silo in embeddings}


class LocalEngine:
    """Simulate the federation in this process, with at most so many workers.

    Compiled kernels have threads of their own. Other paths share out the silos to the workers or, where there are fewer
    silos, the clients of one silo after the other; but only networks whose operations are long enough gain by it. A
    network that draws random numbers is computed by one worker, with torch's own threads.
    """

    def __init__(self, tasks: Mapping[str, SiloTask], compute: ComputeName = "auto", workers: int = 1) -> None:
        chosen = {silo: choose(task, compute) for silo, task in tasks.items()}
        drawing = any(draws(task) for task in tasks.values())
        gains = not drawing and any(gains_by_workers(tasks[silo], name, workers) for silo, (name, _) in chosen.items())
        by_silo = gains and len(tasks) >= workers
        self._silo_workers = Workers(workers if by_silo else 1)
        shared = Workers(workers if gains and not by_silo else 1)
        threads = 1 if by_silo else workers
        self._torch_threads = workers if drawing and any(map(heavy, tasks.values())) else 1
        self.paths = {silo: why for silo, (_, why) in chosen.items()}
        self._silos = {
            silo: LocalClients(task.roster, make(task, chosen[silo][0], shared, threads))
            for silo, task in tasks.items()
        }
        self._peers = LocalPeers()

    def round(self, blocks: Blocks, round_: Round) -> Blocks:
        """See Engine."""
        with torch_threads(self._torch_threads):
            return communication_round(blocks, round_, self._silos, self._peers, self._each)

    def _each(self, function: Callable[[str], T], silos: Iterable[str], /) -> dict[str, T]:
        names = list(silos)
        return dict(zip(names, self._silo_workers.map(function, names), strict=True))
