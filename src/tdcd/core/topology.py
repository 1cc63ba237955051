"""Who holds what: the clients of a silo, and how a mini-batch falls to them.

Inside tdcd a sample is known by its number: its place in the ascending order of the IDs that all silos share.
Rows are joined by that number and never by their position in somebody's file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Roster:
    """The clients of one silo and who of them holds which sample."""

    clients: tuple[str, ...]
    """Names, ordered by the smallest sample number each client holds: an order nobody has to agree on."""
    owner: Tensor
    """For each sample the index of the client that holds it, shape (M,)."""

    def counts(self) -> list[int]:
        """Return how many samples each client holds."""
        return torch.bincount(self.owner, minlength=len(self.clients)).tolist()


def roster_of(owner: npt.NDArray[np.integer], names: Sequence[str]) -> Roster:
    """Make a roster of who holds each sample, given by numbers of clients; those without samples are left out."""
    present, first = np.unique(owner, return_index=True)
    order = present[np.argsort(first)]
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return Roster(tuple(names[k] for k in order), torch.from_numpy(rank[owner]))


@dataclass(frozen=True)
class Shards:
    """A mini-batch dealt to the clients of one silo: the projections π_{k,j} of line 22.

    Row indices are on the device of the silo's features; clients and counts stay in main memory, where rounds are
    planned.
    """

    order: Tensor
    """Positions in the batch, grouped by client in roster order, ascending within each; shape (B,)."""
    samples: Tensor
    """The sample numbers of those rows; shape (B,)."""
    clients: Tensor
    """The clients that have rows in the batch, ascending; shape (P,)."""
    counts: Tensor
    """|ζ_{k,j}| for each of them; shape (P,)."""
    idle: int
    """How many clients of the silo have no rows in the batch."""

    @property
    def starts(self) -> Tensor:
        """Where each client's rows begin in ``order``; shape (P,)."""
        return self.counts.cumsum(0) - self.counts

    def __iter__(self) -> Iterator[tuple[int, slice]]:
        """Yield every client that has rows, with the place of its rows in ``order``."""
        start = 0
        for client, count in zip(self.clients.tolist(), self.counts.tolist(), strict=True):
            yield client, slice(start, start + count)
            start += count


def deal(batch: Tensor, roster: Roster, device: torch.device | str = "cpu") -> Shards:
    """Find which rows of the batch belong to which client: O(B + K), or O(B log B) where there are many clients."""
    samples = batch.numpy()
    owner = roster.owner.numpy().take(samples)
    if len(roster.clients) <= 1 << 16:  # numpy sorts such small numbers in linear time
        order = owner.astype(np.uint16).argsort(kind="stable")
        counts = np.bincount(owner)
        clients = np.flatnonzero(counts)
        counts = counts[clients]
    else:
        order = owner.argsort(kind="stable")
        clients, counts = np.unique(owner, return_counts=True)
    places, rows, active, held = map(torch.from_numpy, (order, samples.take(order), clients, counts))
    return Shards(places.to(device), rows.to(device), active, held, len(roster.clients) - len(active))
