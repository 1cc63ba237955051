"""Stacked in rounds where many clients have equally many rows, one client at a time in the others."""

from collections.abc import Iterable

from torch import Tensor

from tdcd.compute.base import Piece, Suspendable
from tdcd.compute.loop import Loop
from tdcd.compute.stacked import Stacked
from tdcd.compute.threads import ALONE, Threads
from tdcd.core.average import Gathered
from tdcd.core.network import Block
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards

CROWD = 8
"""Clients for each number of rows from which stacking them is worth it."""


class Mixed:
    """For networks whose rows may influence each other: only clients of equal size can be stacked."""

    def __init__(self, task: SiloTask, pool: Threads = ALONE, *, seeded: bool = False) -> None:
        self._stacked, self._loop = Stacked(task, pool), Loop(task, pool, seeded=seeded)
        self._now: Suspendable = self._loop

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        crowded = len(shards.clients) >= CROWD * len(set(shards.counts.tolist()))
        self._now = self._stacked if crowded else self._loop
        return self._now.embed(block, round_, shards)

    def descend(self, block: Block, round_: Round, shards: Shards, rows: Tensor) -> Gathered:
        """See Compute."""
        return self._now.descend(block, round_, shards, rows)

    def pieces(self, block: Block, round_: Round, shards: Shards) -> Iterable[Piece]:
        """See Suspendable."""
        return self._now.pieces(block, round_, shards)
