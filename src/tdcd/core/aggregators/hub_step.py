"""A damped hub: only a part of the way to the clients' mean.

In a round every silo corrects the same error, seen against embeddings of the others that stand still. With N silos and
many local steps the corrections together overshoot, by up to N. A hub that goes a part of the way takes that back, and
needs no communication for it.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from tdcd.core.aggregators.base import HubRound
from tdcd.core.network import Block
from tdcd.core.state import Memory

Size = float | Literal["1/N"]
"""β of a hub step; "1/N" is one over the number of silos that have features."""


@dataclass(frozen=True)
class HubStep:
    """θ_j ← θ_j + β·(mean_k θ_{k,j} − θ_j). Running statistics take the mean. See Aggregator."""

    size: Size = "1/N"
    """β; 1 is the paper's rule."""

    linear = True

    def __post_init__(self) -> None:
        check_size(self.size)

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        size = size_in(self.size, round_)
        if size == 1:
            return received, memory
        moved = {name: weights[name] + size * (received[name] - weights[name]) for name in round_.trainable}
        return received | moved, memory


def size_in(size: Size, round_: HubRound) -> float:
    """Return β as a number."""
    return 1 / round_.silos if size == "1/N" else size


def check_size(size: Size) -> None:
    """Check that β is one.

    Raises:
        ValueError: it is not.
    """
    if size != "1/N" and not (isinstance(size, int | float) and isfinite(size) and size > 0):
        raise ValueError(f'size: should be a number above 0, or "1/N" (is {size!r})')
