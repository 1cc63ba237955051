"""Many clients at once: their weights stacked, one vectorised pass for all of them.

Clients have unequal numbers of rows. Where no row can influence another, shorter clients are padded with rows of
weight zero. Where rows are coupled (BatchNorm) or might be, padding would corrupt the statistics, so only clients
of equal size are stacked.
"""

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import vmap

from tdcd.compute.interface import blame, checked, mean_with_idle, weight_of
from tdcd.core.average import Mean
from tdcd.core.client import descend
from tdcd.core.network import Block, copy_block
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards

CHUNK = 32
"""Clients computed together: enough to fill the machine, few enough to bound memory whatever K is."""

_ROWWISE = (
    nn.Linear, nn.Flatten, nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.LayerNorm, nn.GroupNorm, nn.Conv1d, nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d,
)  # fmt: skip


class Stacked:
    """Compute up to ``CHUNK`` clients of a silo in one pass."""

    def __init__(self, task: SiloTask) -> None:
        self._task = task
        self.padded = rows_are_independent(task.network.module)

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        rows = round_.batch[shards.order]
        embedding: Tensor | None = None
        with torch.no_grad():
            for clients, places, real in self._chunks(shards):
                with blame(self._task, clients, "the forward pass"):
                    found = self._forward(copy_block(stack(block, len(clients))), self._task.features[rows[places]])
                if embedding is None:
                    embedding = found.new_empty(len(rows), found.shape[-1])
                embedding[places[real]] = found[real]
        assert embedding is not None, "a batch has at least one row"  # noqa: S101
        return embedding

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """See Compute."""
        task = self._task
        rows = round_.batch[shards.order]
        mean = mean_with_idle(task, block, shards)
        for clients, places, real in self._chunks(shards):
            chosen = rows[places]
            x, y, stale = task.features[chosen], task.labels[chosen], others[places]
            share = real / real.sum(1, keepdim=True).to(others.dtype)

            def forward(theta: Block, x: Tensor = x) -> Tensor:
                return self._forward(theta, x)

            def loss(embedding: Tensor, y: Tensor = y, stale: Tensor = stale, share: Tensor = share) -> Tensor:
                return (task.objective.losses(embedding + stale, y) * share).sum()

            with blame(task, clients, "the local steps"):
                start = stack(block, len(clients))
                new = descend(forward, loss, start, task.network.trainable, task.steps, round_.rate, grouped=True)
            mean.add_stack(new, torch.tensor([weight_of(task, shards.counts[k]) for k in clients]))
        return mean

    def _forward(self, blocks: Block, x: Tensor) -> Tensor:
        """Embed x (G, n, …) with a block for each of G clients: (G, n, E). Updates the blocks' buffers."""
        network = self._task.network

        def one(block: Block, x: Tensor) -> tuple[Tensor, Block]:
            embedding = network(block, x, training=True)
            return checked(embedding, len(x), self._task), {name: block[name] for name in network.buffers}

        embedding, buffers = vmap(one)(blocks, x)
        blocks.update(buffers)
        result: Tensor = embedding
        return result

    def _chunks(self, shards: Shards) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield clients of similar size, the places of their rows (G, n) in shard order, and which are real.

        A padded place repeats the client's first row: a harmless value, whose weight is zero.
        """
        sized = sorted((part.stop - part.start, client, part.start) for client, part in shards)
        groups = [sized] if self.padded else [list(same) for _, same in groupby(sized, key=lambda s: s[0])]
        for group in groups:
            for first in range(0, len(group), CHUNK):
                counts, clients, starts = zip(*group[first : first + CHUNK], strict=True)
                offsets = torch.arange(max(counts))
                real = offsets < torch.tensor(counts).unsqueeze(1)
                places = torch.tensor(starts).unsqueeze(1) + offsets * real
                yield list(clients), places, real


def stack(block: Block, clients: int) -> Block:
    """Return the block once for each client, without copying it."""
    return {name: tensor.expand(clients, *tensor.shape) for name, tensor in block.items()}


def rows_are_independent(module: nn.Module) -> bool:
    """Tell whether surely no row of a batch influences another's embedding.

    Only torch's own layers, unaltered, are sure: a class of the user's, or a hook, could do anything.
    """
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False
    if type(module) is nn.Sequential:
        return all(rows_are_independent(child) for child in module)
    return type(module) in _ROWWISE
