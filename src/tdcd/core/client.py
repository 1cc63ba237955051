"""A client's Q local gradient steps (lines 24 to 28 of Algorithm 1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.network import Block


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


Gradient = Callable[[Block], Block]
"""g_{k,j} of Equation 4: the gradient of a client's mean loss at a block. Running statistics that the forward pass
updates are put into the block."""


def autograd(
    forward: Callable[[Block], Tensor], loss: Callable[[Tensor], Tensor], trainable: Sequence[str]
) -> Gradient:
    """Return the gradient of ``loss(forward(θ))`` as torch's autograd finds it.

    ``forward`` recomputes the client's own embeddings Φ_{k,j} from its newest weights; ``loss`` holds the stale
    Φ_{-k,j}. Weights that the loss does not depend on are left out.
    """

    def gradient(block: Block) -> Block:
        theta = {name: block[name].detach().requires_grad_() for name in trainable}
        now = {**block, **theta}
        value = loss(forward(now))
        block.update({name: tensor for name, tensor in now.items() if name not in theta})
        return gradient_of(value, theta)

    return gradient


def gradient_of(loss: Tensor, weights: Block) -> Block:
    """Return the gradient of a loss at the weights it came from; those it does not depend on are left out."""
    if not weights:
        return {}
    # What torch.autograd.grad calls after checks that take a fifth of a small network's step.
    result = torch.autograd.Variable._execution_engine.run_backward(
        (loss,), (torch.ones_like(loss),), False, False, tuple(weights.values()), True, accumulate_grad=False
    )
    return {name: g for name, g in zip(weights, result, strict=True) if g is not None}


def descend(gradient: Gradient, block: Block, steps: LocalSteps, rate: float, *, grouped: bool = False) -> None:
    """Take Q steps θ ← θ − η·g(θ) (Equation 5), changing the block in place.

    With ``grouped``, every tensor has a leading dimension of clients, and ``gradient`` is that of the sum of their
    losses: a client's loss depends on its own weights only, so one gradient of the sum is every client's own.
    """
    velocity: dict[str, Tensor] = {}
    for _ in range(steps.count):
        record = gradient(block)
        with torch.no_grad():
            if steps.clip_norm is not None and record:
                record = _clip(record, steps.clip_norm, grouped)
            if steps.weight_decay:
                record = {name: g + steps.weight_decay * block[name] for name, g in record.items()}
            if steps.momentum:
                for name, g in record.items():  # a weight that a step does not use keeps its velocity
                    velocity[name] = steps.momentum * velocity[name] + g if name in velocity else g
                record = {name: velocity[name] for name in record}
            if record:
                torch._foreach_add_([block[name] for name in record], list(record.values()), alpha=-rate)


def _clip(gradient: dict[str, Tensor], most: float, grouped: bool) -> dict[str, Tensor]:
    lead = 1 if grouped else 0
    squares = [g.flatten(lead).square().sum(-1) if g.ndim > lead else g.square() for g in gradient.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * factor.view(-1, *[1] * (g.ndim - 1)) if grouped else g * factor for name, g in gradient.items()}
