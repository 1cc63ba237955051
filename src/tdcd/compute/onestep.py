"""Q = 1, exactly: one weighted step on the whole batch is the average of every client's single step.

With one local step from the same weights θ, the hub's average is θ − η·Σ_k w_k·g_k, and g_k is a mean over the client's
rows: one gradient of a weighted sum over all rows. It needs that no row influences another.
"""

import torch
from torch import Tensor

from tdcd.compute.interface import blame, checked
from tdcd.core.average import Mean
from tdcd.core.client import LocalSteps, gradient_of
from tdcd.core.network import Block
from tdcd.core.round import Round
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards


class OneStep:
    """Compute all clients of a silo as one; the exchange's forward pass is the step's."""

    def __init__(self, task: SiloTask) -> None:
        assert one_step(task.steps), "only for a single plain step"  # noqa: S101
        self._task = task
        self._theta: Block = {}
        self._embedding: Tensor | None = None

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:  # noqa: ARG002
        """See Compute."""
        task = self._task
        rows = shards.samples
        self._theta = {name: block[name].detach().requires_grad_() for name in task.network.trainable}
        with blame(task, shards.clients.tolist(), "the forward pass"):
            x = task.features[rows]
            self._embedding = checked(task.network({**block, **self._theta}, x, training=True), len(x), task)
        return self._embedding.detach()

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """See Compute."""
        task, embedding = self._task, self._embedding
        assert embedding is not None, "a round starts with embed"  # noqa: S101
        self._embedding = None
        share = shares(task, shards, others.dtype)
        new = dict(block)
        with blame(task, shards.clients.tolist(), "the local steps"):
            loss = (task.objective.losses(embedding + others, task.labels[shards.samples]) * share).sum()
            found = gradient_of(loss, self._theta)
        decay = task.steps.weight_decay and task.steps.weight_decay * float(share.sum())
        for name, g in found.items():
            new[name] = block[name] - round_.rate * (g + decay * block[name] if decay else g)
        mean = Mean(block)
        mean.add(new, 1.0)
        return mean


def one_step(steps: LocalSteps) -> bool:
    """Tell whether the local steps are a single one without clipping (momentum needs a second step to matter)."""
    return steps.count == 1 and steps.clip_norm is None


def shares(task: SiloTask, shards: Shards, dtype: torch.dtype) -> Tensor:
    """Return what each row weighs in the step of all clients, in shard order (B,)."""
    rows = len(shards.order)
    if task.averaging == "samples":
        return torch.full((rows,), 1 / rows, dtype=dtype)
    each = 1 / ((len(shards.clients) + shards.idle) * shards.counts.to(dtype))
    return torch.repeat_interleave(each, shards.counts, output_size=rows)
