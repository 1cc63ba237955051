"""The default engine: every silo in this process, a silo's clients computed together."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from tdcd.compute import Compute, ComputeName, Workers, choose, draws, gains_by_workers, make, one_torch_thread
from tdcd.compute.fused import Fused
from tdcd.compute.whole import embed_whole
from tdcd.core.network import Block, Blocks
from tdcd.core.round import Round, communication_round, sum_of_others, summed
from tdcd.core.streams import borrowed_stream
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards, deal

T = TypeVar("T")


class LocalClients:
    """A hub's clients as a group in memory."""

    def __init__(self, task: SiloTask, compute: Compute, workers: Workers) -> None:
        self._task, self._compute, self._workers = task, compute, workers
        self._open: tuple[Block, Round, Shards] | None = None
        self._known: tuple[Block, Tensor] | None = None
        """A block and its embeddings of all training rows, from an evaluation: the next exchange needs some of them."""

    def embed(self, block: Block, round_: Round) -> Tensor:
        """See Clients."""
        shards = deal(round_.batch, self._task.roster, self._task.features.device)
        self._open = block, round_, shards
        known, self._known = self._known, None
        if known and known[0] is block:
            return known[1][round_.batch]
        grouped = self._compute.embed(block, round_, shards)
        return torch.empty_like(grouped).index_copy_(0, shards.order, grouped)

    def descend(self, others: Tensor) -> Block:
        """See Clients."""
        assert self._open is not None, "a round starts with embed"  # noqa: S101
        block, round_, shards = self._open
        self._open = None
        return self._compute.descend(block, round_, shards, others[shards.order]).result()

    def embed_whole(self, block: Block, features: Tensor) -> Tensor:
        """Embed any rows for an evaluation."""
        if isinstance(self._compute, Fused):
            embedding = self._compute.embed_whole(block, features)
            if features is self._task.features:
                self._known = block, embedding
            return embedding
        return embed_whole(self._task.silo, self._task.network, block, features, self._workers)


class LocalPeers:
    """All hubs in one memory: the exchange is a sum."""

    def exchange(self, embeddings: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See Peers."""
        return {silo: sum_of_others(embeddings, silo) for silo in embeddings}


class LocalEngine:
    """Simulate the federation in this process, with at most so many workers.

    Compiled kernels have threads of their own. Other paths share out the silos to the workers or, where there are fewer
    silos, the clients of one silo after the other; but only networks whose operations are long enough gain by it. With
    a network that draws random numbers there is one worker: torch has one stream of them.
    """

    def __init__(self, tasks: Mapping[str, SiloTask], compute: ComputeName = "auto", workers: int = 1) -> None:
        if any(task.features.device.type != "cpu" for task in tasks.values()):
            workers = 1  # the device has enough to do
        chosen = {silo: choose(task, compute) for silo, task in tasks.items()}
        drawing = any(draws(task) for task in tasks.values())
        gains = not drawing and any(gains_by_workers(tasks[silo], name, workers) for silo, (name, _) in chosen.items())
        by_silo = gains and len(tasks) >= workers
        self._silo_workers = Workers(workers if by_silo else 1)
        shared = Workers(workers if gains and not by_silo else 1)
        threads = 1 if by_silo else workers
        self._device = next(iter(tasks.values())).features.device
        self.paths = {silo: why for silo, (_, why) in chosen.items()}
        self._silos = {
            silo: LocalClients(task, make(task, chosen[silo][0], shared, threads), shared)
            for silo, task in tasks.items()
        }
        self._peers = LocalPeers()

    def round(self, blocks: Blocks, round_: Round) -> Blocks:
        """See Engine."""
        with one_torch_thread():
            return communication_round(blocks, round_, self._silos, self._peers, self._each)

    def scores(self, blocks: Blocks, features: Mapping[str, Tensor]) -> Tensor:
        """See Engine."""
        with one_torch_thread(), borrowed_stream(self._device):
            return summed(self._each(lambda j: self._silos[j].embed_whole(blocks[j], features[j]), self._silos))

    def _each(self, function: Callable[[str], T], silos: Iterable[str], /) -> dict[str, T]:
        names = list(silos)
        return dict(zip(names, self._silo_workers.map(function, names), strict=True))
