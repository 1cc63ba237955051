"""The computation of a group of a silo's clients: all of them in a simulation, some on a node, one at a site."""

import torch
from torch import Tensor

from tdcd.compute.base import Suspendable, Suspended
from tdcd.compute.choose import PathName, make
from tdcd.compute.kernel import Kernel
from tdcd.compute.threads import ALONE, Threads
from tdcd.compute.whole import embed_whole
from tdcd.core.average import Gathered
from tdcd.core.network import Block
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards, deal


class Worker:
    """Computes a group of clients of one silo. Rows are those of the round's mini-batch, in its order."""

    def __init__(
        self,
        task: SiloTask,
        path: PathName,
        pool: Threads = ALONE,
        threads: int = 1,
        *,
        suspendable: bool = False,
        seeded: bool = False,
    ) -> None:
        """Prepare it. See ``make``; with ``suspendable``, its clients wait for logit gradients between two steps."""
        self.task, self._pool, self._suspendable = task, pool, suspendable
        self.compute = make(task, path, pool, threads, seeded=seeded)
        self._open: tuple[Block, Round, Shards] | None = None
        self._suspended: Suspended | None = None

    def embed(self, block: Block, round_: Round) -> Tensor:
        """Begin a round: embed the clients' rows (B, E)."""
        self.abandon()
        shards = deal(round_.batch, self.task.roster, self.task.features.device)
        self._open = block, round_, shards
        grouped = self.compute.embed(block, round_, shards)
        return torch.empty_like(grouped).index_copy_(0, shards.order, grouped)

    def step(self, gradients: Tensor) -> Tensor:
        """Take one step of every client with logit gradients (B, E); return the new embeddings (B, E)."""
        _, _, shards = self._opened()
        grouped = self._begin_steps().step(gradients.index_select(0, shards.order))
        return torch.empty_like(grouped).index_copy_(0, shards.order, grouped)

    def descend(self, rows: Tensor) -> Gathered:
        """Take the steps that are left; return what ``Compute.descend`` does.

        ``rows`` (B, E) are Φ_{-j} or, where labels are remote, logit gradients.
        """
        block, round_, shards = self._opened()
        grouped = rows.index_select(0, shards.order)
        if self._suspendable:
            gathered = self._begin_steps().finish(grouped)
            self._suspended = None
        else:
            gathered = self.compute.descend(block, round_, shards, grouped)
        self._open = None
        return gathered

    def _opened(self) -> tuple[Block, Round, Shards]:
        if self._open is None:
            raise RuntimeError("local steps without embeddings before them")
        return self._open

    def _begin_steps(self) -> Suspended:
        if self._suspended is None:
            block, round_, shards = self._opened()
            path = self.compute
            if not isinstance(path, Suspendable):
                raise RuntimeError(f"{type(path).__name__} cannot wait between two steps")
            self._suspended = Suspended(self.task, block, path.pieces(block, round_, shards), self._pool)
        return self._suspended

    def abandon(self) -> None:
        """Give up a round that was begun."""
        if self._suspended is not None:
            self._suspended.close()
        self._suspended, self._open = None, None

    def embed_all(self, block: Block, features: Tensor) -> Tensor:
        """Embed any rows for an evaluation, the network in evaluation mode: (M, E)."""
        if isinstance(self.compute, Kernel):
            return self.compute.embed_whole(block, features)
        return embed_whole(self.task.silo, self.task.network, block, features, self._pool)
