"""Q = 1, exactly: one weighted step on the whole batch is the average of every client's single step.

With one local step from the same weights θ, the hub's average is θ − η·Σ_k w_k·g_k, and g_k is a mean over the client's
rows: one gradient of a weighted sum over all rows. It needs that no row influences another.
"""

import numpy as np
import torch
from torch import Tensor

from tdcd.compute.base import blame, check_embedding, gradient_at
from tdcd.compute.footprint import KEPT, bytes_per_row
from tdcd.compute.threads import ALONE, Threads
from tdcd.core.average import Mean
from tdcd.core.local_steps import gradient_of
from tdcd.core.network import Block
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Shards

PIECE = 512
"""Rows that go through the network together, if there is memory for them."""


class OneStep:
    """Compute all clients of a silo as one; the exchange's forward pass is the step's, if there is memory for it."""

    def __init__(self, task: SiloTask, pool: Threads = ALONE) -> None:
        assert task.steps.single, "only for a single plain step"  # noqa: S101
        self._task, self._pool = task, pool
        self._per_row = max(1, bytes_per_row(task) or 0)
        self._size = max(1, min(PIECE, KEPT // self._per_row))
        self._theta: Block = {}
        self._kept: list[Tensor] = []

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:  # noqa: ARG002
        """See Compute."""
        self._theta = {name: block[name].detach().requires_grad_() for name in self._task.network.trainable}
        keep = self._per_row * len(shards.samples) <= KEPT

        def piece(rows: Tensor) -> Tensor:
            with torch.set_grad_enabled(keep):
                return self._forward(block, rows, shards)

        result = self._pool.map(piece, torch.split(shards.samples, self._size))
        self._kept = result if keep else []
        return torch.cat([part.detach() for part in result])

    def descend(self, block: Block, round_: Round, shards: Shards, rows: Tensor) -> Mean:
        """See Compute."""
        task, samples = self._task, torch.split(shards.samples, self._size)
        share = torch.split(shares(task, shards, rows).unsqueeze(-1), self._size)
        kept, self._kept = self._kept, []

        def piece(index: int) -> Block:
            part = slice(index * self._size, index * self._size + len(samples[index]))
            embeddings = kept[index] if kept else self._forward(block, samples[index], shards)
            with blame(task, shards.clients.tolist(), "the local steps"):
                gradients = gradient_at(task, shards, rows, part)(embeddings.detach())
                return gradient_of(embeddings, self._theta, gradients * share[index])

        decay = task.steps.weight_decay
        new = {name: tensor * (1 - round_.rate * decay) if decay else tensor.clone() for name, tensor in block.items()}
        for gradient in self._pool.stream(piece, range(len(samples))):
            for name, g in gradient.items():
                new[name].sub_(g, alpha=round_.rate)
        mean = Mean(block)
        mean.add(block | {name: new[name] for name in self._theta}, active_weight(task, shards))
        return mean

    def _forward(self, block: Block, rows: Tensor, shards: Shards) -> Tensor:
        task = self._task
        with blame(task, shards.clients.tolist(), "the forward pass"):
            x = task.features[rows]
            return check_embedding(task.network({**block, **self._theta}, x, training=True), len(x), task)


def active_weight(task: SiloTask, shards: Shards) -> float:
    """Return what the clients with rows in the batch weigh together in the hub's average."""
    return float(len(shards.clients) if task.averaging == "uniform" else len(shards.order))


def shares(task: SiloTask, shards: Shards, like: Tensor) -> Tensor:
    """Return what each row weighs in the average step of the clients that have rows, in shard order (B,)."""
    rows = len(shards.order)
    if task.averaging == "samples":
        return like.new_full((rows,), 1 / rows)
    each = 1 / (len(shards.clients) * shards.counts.to(like.dtype))
    return torch.from_numpy(np.repeat(each.numpy(), shards.counts.numpy())).to(like.device)
