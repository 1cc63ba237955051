"""Stacked clients of any network that torch can vectorise, with gradients by autograd."""

from torch import Tensor
from torch.func import vmap

from tdcd.compute.chunked import Chunked
from tdcd.compute.footprint import bytes_per_row
from tdcd.compute.interface import checked
from tdcd.core.client import autograd, descend
from tdcd.core.network import Block, copy_block


class Stacked(Chunked):
    """Compute a chunk of clients by one vectorised call of their module."""

    cache = 1 << 24
    """Many clients for each call count more than the nearest cache: a call costs a hundred microseconds or more."""

    def activations(self) -> int:
        """See Chunked."""
        return 2 * (bytes_per_row(self._task) or 0) // self._task.features.element_size()

    def embed_chunk(self, block: Block, x: Tensor) -> Tensor:
        """See Chunked."""
        return self._forward(copy_block(stack(block, len(x))), x)

    def descend_chunk(self, block: Block, x: Tensor, y: Tensor, stale: Tensor, share: Tensor, rate: float) -> Block:
        """See Chunked."""
        task = self._task
        blocks = copy_block(stack(block, len(x)))

        def loss(embedding: Tensor) -> Tensor:
            return (task.objective.losses(embedding + stale, y) * share).sum()

        gradient = autograd(lambda now: self._forward(now, x), loss, task.network.trainable)
        descend(gradient, blocks, task.steps, rate, grouped=True)
        return blocks

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


def stack(block: Block, clients: int) -> Block:
    """Return the block once for each client, without copying it."""
    return {name: tensor.expand(clients, *tensor.shape) for name, tensor in block.items()}
