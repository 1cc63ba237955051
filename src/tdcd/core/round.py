"""One communication round of TDCD: Algorithm 1 as the hubs see it.

Everything else in tdcd decides only *where* the clients run and *how fast*.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from tdcd.core.network import Block, Blocks

T = TypeVar("T")


@dataclass(frozen=True)
class Round:
    """What is known of a round before it starts."""

    number: int
    """1, 2, …, R."""
    batch: Tensor
    """ζ: the sample numbers of the mini-batch, ascending, shape (B,)."""
    rate: float
    """η, the learning rate of this round's local steps."""

    def __post_init__(self) -> None:
        if not len(self.batch):
            raise ValueError(f"round {self.number}: there is nothing in its mini-batch to train on")


class Clients(Protocol):
    """A hub's view of its own clients."""

    def embed(self, block: Block, round_: Round) -> Tensor:
        """Send θ_j and ζ down; gather every client's embeddings into Φ_j (B, E), row by row as in ζ."""

    def descend(self, others: Tensor) -> Block:
        """Send each client its rows of Φ_{-j} (B, E); return the average of what their Q steps produced."""


class Peers(Protocol):
    """A hub's view of the other hubs."""

    def exchange(self, embeddings: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Give the embeddings Φ_j of the hubs in this process; get Φ_{-j} = Σ_{l≠j} Φ_l for each of them."""


class Each(Protocol):
    """A way to do something for every silo: one after the other, or at once."""

    def __call__(self, function: Callable[[str], T], silos: Iterable[str], /) -> dict[str, T]:
        """Return ``function(silo)`` for every silo."""


def one_by_one(function: Callable[[str], T], silos: Iterable[str], /) -> dict[str, T]:
    """Do something for every silo, one after the other."""
    return {silo: function(silo) for silo in silos}


def communication_round(
    blocks: Blocks, round_: Round, silos: Mapping[str, Clients], peers: Peers, each: Each = one_by_one
) -> Blocks:
    """Run one round for the hubs in this process: all of them in a simulation, one at a real site."""
    embeddings = each(lambda j: silos[j].embed(blocks[j], round_), silos)
    others = peers.exchange(embeddings)
    return each(lambda j: silos[j].descend(others[j]), silos)


def sum_embeddings(embeddings: Mapping[str, Tensor]) -> Tensor:
    """Return Σ_j Φ_j, the scores. Silos are added in the order of their names, so that all hubs agree to the bit."""
    first, *others = sorted(embeddings)
    total = embeddings[first].clone()
    for other in others:
        total += embeddings[other]
    return total


def sum_of_others(embeddings: Mapping[str, Tensor], silo: str) -> Tensor:
    """Return Φ_{-j} (line 18). Silos are added in the order of their names, so that all hubs agree to the bit."""
    total = torch.zeros_like(embeddings[silo])
    for other in sorted(embeddings):
        if other != silo:
            total += embeddings[other]
    return total
