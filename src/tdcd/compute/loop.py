"""One client after another: works for every module, and is what all other paths fall back on."""

import torch
from torch import Tensor

from tdcd.compute.interface import blame, checked, mean_with_idle, weight_of
from tdcd.core.average import Mean
from tdcd.core.client import descend
from tdcd.core.network import Block, copy_block
from tdcd.core.round import Round
from tdcd.core.seeds import client_seed
from tdcd.core.task import SiloTask
from tdcd.core.topology import Shards


class Loop:
    """Compute a silo's clients one at a time."""

    def __init__(self, task: SiloTask) -> None:
        self._task = task

    def embed(self, block: Block, round_: Round, shards: Shards) -> Tensor:
        """See Compute."""
        rows = round_.batch[shards.order]
        parts = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for client, part in shards:
                with blame(self._task, [client], "the forward pass"):
                    self._seed(round_, client)
                    x = self._task.features[rows[part]]
                    embedding = self._task.network(copy_block(block), x, training=True)
                    parts.append(checked(embedding, len(x), self._task))
        return torch.cat(parts)

    def descend(self, block: Block, round_: Round, shards: Shards, others: Tensor) -> Mean:
        """See Compute."""
        task = self._task
        rows = round_.batch[shards.order]
        mean = mean_with_idle(task, block, shards)
        with torch.random.fork_rng(devices=[]):
            for client, part in shards:
                x, y, stale = task.features[rows[part]], task.labels[rows[part]], others[part]

                def forward(theta: Block, x: Tensor = x) -> Tensor:
                    return task.network(theta, x, training=True)

                def loss(embedding: Tensor, y: Tensor = y, stale: Tensor = stale) -> Tensor:
                    return task.objective.losses(embedding + stale, y).mean()

                with blame(task, [client], "the local steps"):
                    self._seed(round_, client)
                    new = descend(forward, loss, block, task.network.trainable, task.steps, round_.rate)
                mean.add(new, weight_of(task, len(x)))
        return mean

    def _seed(self, round_: Round, client: int) -> None:
        task = self._task
        torch.manual_seed(client_seed(task.seed, round_.number, task.silo, task.roster.clients[client]))
