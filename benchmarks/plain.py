"""The plain loop: TDCD as a user of torch would write it in an afternoon. Everything is measured against it."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tdcd.core.network import Block, Blocks, named_tensors
from tdcd.core.objectives import BinaryCrossEntropy
from tdcd.core.task import Round, SiloTask


def plain_round(blocks: Blocks, round_: Round, tasks: Mapping[str, SiloTask]) -> Blocks:
    """Run one round, client after client, each silo's module used for all of its clients."""
    batch, rate = round_.batch, round_.rate
    shards: dict[str, list[Tensor]] = {}
    phi: dict[str, Tensor] = {}
    for silo, task in tasks.items():
        owner = task.roster.owner[batch]
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=len(task.roster.clients)).tolist()
        shards[silo] = list(torch.split(order, counts))
        module = task.network.module
        with torch.no_grad():
            for name, tensor in named_tensors(module):
                tensor.copy_(blocks[silo][name])
            phi[silo] = torch.empty(len(batch), task.width, dtype=task.features.dtype)
            for rows in shards[silo]:
                if len(rows):
                    phi[silo][rows] = module(task.features[batch[rows]])
    total = torch.stack(list(phi.values())).sum(0)

    result: dict[str, Block] = {}
    for silo, task in tasks.items():
        module = task.network.module
        parameters: list[Tensor] = list(module.parameters())
        everything = [tensor for _, tensor in named_tensors(module)]  # also running statistics
        start = [blocks[silo][name] for name, _ in named_tensors(module)]
        sums = [torch.zeros_like(tensor) for tensor in everything]
        others = total - phi[silo]
        for rows in shards[silo]:
            if not len(rows):
                torch._foreach_add_(sums, start)
                continue
            x, y, stale = task.features[batch[rows]], task.labels[batch[rows]], others[rows]
            with torch.no_grad():
                torch._foreach_copy_(everything, start)
            for _ in range(task.steps.count):
                scores = module(x) + stale
                if isinstance(task.objective, BinaryCrossEntropy):
                    loss = F.binary_cross_entropy_with_logits(scores[:, 0], y)
                else:
                    loss = F.cross_entropy(scores, y)
                gradient = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradient, alpha=-rate)
            with torch.no_grad():
                torch._foreach_add_(sums, everything)
        means = [total / len(task.roster.clients) for total in sums]
        result[silo] = dict(zip((name for name, _ in named_tensors(module)), means, strict=True))
    return result
