"""What clients return in a round, gathered: as a running mean (line 32 of Algorithm 1), or the weights of each."""

from collections.abc import Collection, Sequence
from typing import Literal

import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.torch_extras import add_all_

Averaging = Literal["uniform", "samples"]
"""``uniform``: every client counts 1/K_j, as in the paper, also one with no rows in the batch, whose weights are
still θ_j. ``samples``: a client counts by its rows in the batch, |ζ_{k,j}|/|ζ|."""


PIECE = 1 << 18
"""Numbers that are added at once where memory counts: torch makes float64 of all of them first."""


class Mean:
    """A weighted mean of blocks that holds one block, however many are added.

    Sums are kept in float64, so that the mean of many float32 clients loses nothing. Of whole numbers, such as
    BatchNorm's count of batches, the differences from ``like`` are summed: those are exact where the numbers
    themselves, above 2⁵³, are not.
    """

    def __init__(self, like: Block) -> None:
        self._dtypes = {name: tensor.dtype for name, tensor in like.items()}
        self._sum = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in like.items()}
        self._whole = {name: tensor.long() for name, tensor in like.items() if not tensor.is_floating_point()}
        self._weight = 0.0

    @classmethod
    def of(cls, like: Block, sums: Block, weight: float) -> "Mean":
        """Return the mean that has gathered these sums."""
        mean = cls({})
        mean._dtypes = {name: tensor.dtype for name, tensor in like.items()}
        mean._whole = {name: tensor.long() for name, tensor in like.items() if not tensor.is_floating_point()}
        mean._sum, mean._weight = sums, weight
        return mean

    def sums(self) -> Block:
        """Return what was added up, in float64: not to be changed."""
        return self._sum

    def _apart(self, name: str, tensor: Tensor) -> Tensor:
        """Return what is summed of a tensor, or of a stack of them."""
        return tensor.long() - self._whole[name] if name in self._whole else tensor

    def add(self, block: Block, weight: float) -> None:
        """Add one block."""
        if block:
            summed = [self._apart(name, t) for name, t in block.items()] if self._whole else list(block.values())
            add_all_([self._sum[name] for name in block], summed, weight)
        self.count(weight)

    def add_tensor(self, name: str, tensor: Tensor, weight: float) -> None:
        """Add one tensor of a block that comes in parts. Tell once with ``count`` that all of it has come."""
        total, added = self._sum[name].view(-1), self._apart(name, tensor).reshape(-1)
        for start in range(0, len(total), PIECE):
            total[start : start + PIECE].add_(added[start : start + PIECE], alpha=weight)

    def count(self, weight: float) -> None:
        """Count a block whose tensors were added one by one."""
        self._weight += weight

    def add_stack(self, stack: Block, weights: Tensor) -> None:
        """Add a stack of blocks (G, …) with weights (G,), which lie in the main memory."""
        for name, tensor in stack.items():
            apart = self._apart(name, tensor).double()
            self._sum[name].add_(torch.tensordot(weights.to(self._sum[name]), apart, dims=1))
        self._weight += float(weights.sum())

    def add_sum(self, total: Block, weight: float) -> None:
        """Add what is a weighted sum of blocks of weights already."""
        for name, tensor in total.items():
            self._sum[name].add_(tensor)
        self._weight += weight

    @property
    def weight(self) -> float:
        """What all that was added weighs together."""
        return self._weight

    def merge(self, other: "Mean") -> None:
        """Add all that another mean, which began with the same block, has seen."""
        self.add_sum(other._sum, other._weight)

    def result(self) -> Block:
        """Return the mean, and forget it. Whole numbers are rounded, a half to the even one."""
        result = {}
        for name in list(self._sum):
            mean = self._sum.pop(name).div_(self._weight)
            result[name] = (_round_half_even(self._whole[name], mean) if name in self._whole else mean).to(
                self._dtypes[name]
            )
        return result


class Held:
    """The weights of each client that took part."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def add(self, client: int, block: Block) -> None:
        """Add a client's block, which nobody else changes."""
        self._blocks[client] = block

    def add_stack(self, clients: Sequence[int], stack: Block) -> None:
        """Add a stack of blocks (G, …)."""
        for place, client in enumerate(clients):
            self.add(client, {name: tensor[place] for name, tensor in stack.items()})

    def add_tensor(self, client: int, name: str, tensor: Tensor) -> None:
        """Add one tensor of a client's block that comes in parts."""
        self._blocks.setdefault(client, {})[name] = tensor

    @property
    def clients(self) -> list[int]:
        """Those that were added, ascending."""
        return sorted(self._blocks)

    def merge(self, other: "Held") -> None:
        """Add all that another has."""
        self._blocks.update(other._blocks)

    def stacked(self) -> Block:
        """Return all blocks as one, with a leading dimension of clients in the order of the roster; forget them."""
        blocks = [self._blocks[client] for client in self.clients]
        self._blocks = {}
        return {name: torch.stack([block.pop(name) for block in blocks]) for name in list(blocks[0])}


Gathered = Mean | Held
"""What the clients of a silo return in a round."""


def add_idle(mean: Mean, averaging: Averaging, clients: int, block: Block, changed: Collection[str] = ()) -> None:
    """Add those of the clients that take part without rows in the mini-batch: their weights are still θ_j.

    Of weights that are ``changed``, the mean is one of changes, and theirs are zero.
    """
    if averaging == "uniform" and (idle := clients - mean.weight):
        mean.add({name: tensor for name, tensor in block.items() if name not in changed}, idle)


def mean_of(gathered: Gathered) -> Block:
    """Return the mean of what was gathered, where the clients' mean was asked for."""
    if isinstance(gathered, Held):
        raise TypeError("the weights of each client were gathered, not their mean")
    return gathered.result()


def _round_half_even(whole: Tensor, more: Tensor) -> Tensor:
    """Return the whole number nearest to ``whole + more``, a half to the even one."""
    below = more.floor()
    part, number = more - below, whole + below.long()
    return number + ((part > 0.5) | ((part == 0.5) & (number % 2 != 0)))
