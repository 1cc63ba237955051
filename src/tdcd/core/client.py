"""A client's Q local gradient steps (lines 24 to 28 of Algorithm 1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.network import Block, copy_block


@dataclass(frozen=True)
class LocalSteps:
    """How a client descends in a round. The paper's plain SGD unless an option is set."""

    count: int = 1
    """Q, the number of local steps between two exchanges."""
    momentum: float = 0.0
    """Heavy-ball momentum; its state is reset each round."""
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """Largest Euclidean norm of a client's gradient over its whole block."""


def descend(
    forward: Callable[[Block], Tensor],
    loss: Callable[[Tensor], Tensor],
    block: Block,
    trainable: Sequence[str],
    steps: LocalSteps,
    rate: float,
    *,
    grouped: bool = False,
) -> Block:
    """Take Q steps θ ← θ − η·∂loss(forward(θ))/∂θ (Equation 5) and return the new block.

    ``forward`` recomputes the client's own embeddings Φ_{k,j} from its newest weights, and puts running statistics
    that it updates into the block it is given; ``loss`` holds the stale
    Φ_{-k,j} and returns the mean over the client's rows (Equation 4).

    With ``grouped``, every tensor has a leading dimension of clients, and ``loss`` returns the sum of the
    clients' losses: a client's loss depends on its own weights only, so one gradient of the sum is every
    client's own gradient.
    """
    block = copy_block(block)
    velocity: dict[str, Tensor] = {}
    for _ in range(steps.count):
        theta = {name: block[name].detach().requires_grad_() for name in trainable}
        now = {**block, **theta}
        value = loss(forward(now))
        block.update({name: tensor for name, tensor in now.items() if name not in theta})
        if not trainable:
            continue
        found = torch.autograd.grad(value, list(theta.values()), allow_unused=True)
        gradient = {name: g for name, g in zip(theta, found, strict=True) if g is not None}
        if steps.clip_norm is not None:
            gradient = _clipped(gradient, steps.clip_norm, grouped)
        for name, g in gradient.items():
            if steps.weight_decay:
                g = g + steps.weight_decay * block[name]
            if steps.momentum:
                g = velocity[name] = steps.momentum * velocity[name] + g if name in velocity else g
            block[name].add_(g, alpha=-rate)
    return block


def _clipped(gradient: dict[str, Tensor], most: float, grouped: bool) -> dict[str, Tensor]:
    lead = 1 if grouped else 0
    squares = [g.flatten(lead).square().sum(-1) if g.ndim > lead else g.square() for g in gradient.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * factor.view(-1, *[1] * (g.ndim - 1)) if grouped else g * factor for name, g in gradient.items()}
