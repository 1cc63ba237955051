"""The default engine: every silo in this process, a silo's clients computed together."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from tdcd.compute import Compute, ComputeName, Workers, choose, draws
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
    """Simulate the federation in this process, by several workers.

    With as many silos as workers, each worker computes whole silos; with fewer, or when a network draws random numbers,
    they share the clients of one silo after the other. Compiled kernels have ``threads`` of their own.
    """

    def __init__(
        self, tasks: Mapping[str, SiloTask], compute: ComputeName = "auto", workers: int = 1, threads: int = 1
    ) -> None:
        by_silo = len(tasks) >= workers > 1 and not any(draws(task) for task in tasks.values())
        self._silo_workers = Workers(workers if by_silo else 1)
        client_workers = Workers(1 if by_silo else workers)
        chosen = {silo: choose(task, compute, client_workers, threads) for silo, task in tasks.items()}
        self.paths = {silo: why for silo, (_, why) in chosen.items()}
        self._silos = {silo: LocalClients(tasks[silo].roster, path) for silo, (path, _) in chosen.items()}
        self._peers = LocalPeers()

    def round(self, blocks: Blocks, round_: Round) -> Blocks:
        """See Engine."""
        return communication_round(blocks, round_, self._silos, self._peers, self._each)

    def _each(self, function: Callable[[str], T], silos: Iterable[str], /) -> dict[str, T]:
        names = list(silos)
        return dict(zip(names, self._silo_workers.map(function, names), strict=True))
