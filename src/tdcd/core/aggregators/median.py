"""A median of the clients: a minority of them, whatever it sends, moves the weights no further than the others do."""

from dataclasses import dataclass

from torch import Tensor

from tdcd.core.aggregators.base import HubRound
from tdcd.core.network import Block
from tdcd.core.state import Memory


@dataclass(frozen=True)
class Median:
    """The median of every single number over the clients that took part; of the two in the middle, their mean.

    Clients without rows in the mini-batch would hold on to θ_j: they do not count. See Aggregator.
    """

    linear = False

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(
        self,
        received: Block,
        memory: Memory,
        weights: Block,
        round_: HubRound,
    ) -> tuple[Block, Memory]:
        return {name: middle(tensor, (len(tensor) - 1) // 2) for name, tensor in received.items()}, memory


def middle(stack: Tensor, cut: int) -> Tensor:
    """Return the mean of every number over clients (K, …) without the ``cut`` lowest and highest."""
    kept = stack.sort(0).values[cut : len(stack) - cut].double().mean(0)
    return (kept if stack.is_floating_point() else kept.round()).to(stack.dtype)
