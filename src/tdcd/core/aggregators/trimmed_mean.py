"""A mean of the clients without the extremes."""

from dataclasses import dataclass

from tdcd.core.aggregators.base import HubRound
from tdcd.core.aggregators.median import middle
from tdcd.core.network import Block
from tdcd.core.state import Memory


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every single number over the clients that took part, without the lowest and highest of them.

    See Aggregator.
    """

    fraction: float = 0.1
    """Of the clients that took part, rounded down: left out at either end."""

    linear = False

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 0.5:
            raise ValueError(f"fraction: should be at least 0 and below 0.5 (is {self.fraction!r})")

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(
        self,
        received: Block,
        memory: Memory,
        weights: Block,
        round_: HubRound,
    ) -> tuple[Block, Memory]:
        return {name: middle(stack, self.cut(len(stack))) for name, stack in received.items()}, memory

    def cut(self, clients: int) -> int:
        """Return how many clients are left out at either end."""
        return int(self.fraction * clients + 1e-9)  # 0.29 of 100 are 29, whatever floating point makes of it
