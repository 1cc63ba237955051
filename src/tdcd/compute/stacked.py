"""Stacked clients of any network that torch can vectorise, with gradients by autograd."""

import torch
from torch import Tensor
from torch.func import vmap

from tdcd.compute.base import blame, check_embedding
from tdcd.compute.chunked import Chunk, Chunked
from tdcd.compute.footprint import bytes_per_row
from tdcd.compute.modules import leaves_rows_alone
from tdcd.compute.threads import ALONE, Threads
from tdcd.core.local_steps import Backward, Steps, autograd, local_steps
from tdcd.core.network import Block, copy_block
from tdcd.core.state import carried
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards


class Stacked(Chunked):
    """Compute a chunk of clients by one vectorised call of their module."""

    cache = 1 << 24
    """Many clients for each call count more than the nearest cache: a call costs a hundred microseconds or more."""

    def __init__(self, task: SiloTask, pool: Threads = ALONE) -> None:
        super().__init__(task, pool)
        self._copies = not leaves_rows_alone(task.network.module)
        """Whether each pass needs rows of its own, as it may write to them."""

    def activations(self) -> int:
        """See Chunked."""
        return 2 * (bytes_per_row(self.task) or 0) // self.task.features.element_size()

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        if self.padded:
            return super().embed(block, round_, shards)
        task = self.task

        def one(chunk: Chunk) -> Tensor:
            x = task.features[shards.samples[chunk.places]]
            with torch.no_grad(), blame(task, chunk.clients, "the forward pass"):
                return self._forward(copy_block(stack(block, len(x))), x)

        chunks = list(self.chunks(shards))
        result = self.pool.map(one, chunks)
        embedding = result[0].new_empty(len(shards.samples), task.width)
        for chunk, part in zip(chunks, result, strict=True):
            embedding[chunk.places] = part
        return embedding

    def steps(self, block: Block, x: Tensor, share: Tensor, rate: float) -> Steps:
        """See Chunked."""
        network = self.task.network

        def forward(blocks: Block) -> tuple[Tensor, Backward]:
            weights = {name: blocks[name].detach().requires_grad_() for name in network.trainable}
            now = {**blocks, **weights}
            with torch.enable_grad():
                embeddings = self._forward(now, x.clone() if self._copies else x)
            blocks.update({name: tensor for name, tensor in now.items() if name not in weights})
            return embeddings.detach(), autograd(embeddings, weights)

        known = carried(block)
        blocks = copy_block(stack({name: t for name, t in block.items() if name not in known}, len(x)))
        steps, names = self.task.steps, network.trainable
        blocks = yield from local_steps(forward, blocks, names, known, share, steps, rate, grouped=True)
        if network.remembers:
            raise ValueError(
                "it changes an attribute that is neither a weight nor a buffer, which stacked clients would share; "
                'register it as a buffer, or set compute = "loop"'
            )
        return blocks

    def _forward(self, blocks: Block, x: Tensor) -> Tensor:
        """Embed x (G, n, …) with a block for each of G clients: (G, n, E). Updates the blocks' buffers."""
        network = self.task.network

        def one(block: Block, x: Tensor) -> tuple[Tensor, Block]:
            embedding = network(block, x, training=True)
            return check_embedding(embedding, len(x), self.task), {name: block[name] for name in network.buffers}

        embedding, buffers = vmap(one)(blocks, x)
        blocks.update(buffers)
        result: Tensor = embedding
        return result


def stack(block: Block, clients: int) -> Block:
    """Return the block once for each client, without copying it."""
    return {name: tensor.expand(clients, *tensor.shape) for name, tensor in block.items()}
