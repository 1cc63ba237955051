"""A median of the clients: a minority of them, whatever it sends, moves the weights no further than the others do."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from tdcd.core.aggregators.base import HubRound
from tdcd.core.network import Block
from tdcd.core.state import Memory


class Middle(ABC):
    """The mean of every single number over the clients in the middle, of those that took part.

    Clients without rows in the mini-batch would hold on to θ_j: they do not count. See Aggregator.
    """

    linear = False

    @abstractmethod
    def cut(self, clients: int) -> int:
        """Return how many clients are left out at either end."""

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        return {name: middle(stack, self.cut(len(stack))) for name, stack in received.items()}, memory


@dataclass(frozen=True)
class Median(Middle):
    """The median of every single number; of the two in the middle, their mean."""

    def cut(self, clients: int) -> int:
        return (clients - 1) // 2


def middle(stack: Tensor, cut: int) -> Tensor:
    """Return the mean of every number over clients (K, …) without the ``cut`` lowest and highest."""
    kept = stack.sort(0).values[cut : len(stack) - cut].double().mean(0)
    return (kept if stack.is_floating_point() else kept.round()).to(stack.dtype)
