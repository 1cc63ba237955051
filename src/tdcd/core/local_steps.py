"""A client's Q local gradient steps (lines 25 to 29 of Algorithm 1), as a generator.

It yields the embeddings at each step and takes ∂ℓ/∂z of every row from whoever drives it: a simulation computes that at
once from the labels, a site sends the embeddings away and goes on when the gradients have come.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.torch_extras import add_scaled_, run_backward


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

    @property
    def plain(self) -> bool:
        """Whether all options are off."""
        return self == LocalSteps(self.count)


Steps = Generator[Tensor, Tensor, Block]
"""Yields embeddings (n, E), or (G, n, E) of stacked clients; takes ∂ℓ/∂z of the same shape; returns the new weights."""
Backward = Callable[[Tensor], Block]
"""Carries the gradient at the embeddings back to the weights; weights that they do not depend on are left out."""
Forward = Callable[[Block], tuple[Tensor, Backward]]
"""Embeds a client's rows with its newest weights. Running statistics that the pass updates are put into the block."""


def local_steps(
    forward: Forward, block: Block, share: Tensor | float, steps: LocalSteps, rate: float, *, grouped: bool = False
) -> Steps:
    """Take Q steps θ ← θ − η·g(θ) (Equation 5), changing the block in place.

    Args:
        forward: A pass through the network.
        block: θ_j; changed, and returned in the end.
        share: What a row weighs in its client's mean loss, 1/n.
        steps: How many, and their options.
        rate: η.
        grouped: Every tensor has a leading dimension of clients: they descend together, each by its own gradient.
    """
    velocity: dict[str, Tensor] = {}
    for _ in range(steps.count):
        embeddings, backward = forward(block)
        gradients = yield embeddings
        gradient = backward(gradients * share)
        with torch.no_grad():
            if steps.clip_norm is not None and gradient:
                gradient = _clip(gradient, steps.clip_norm, grouped)
            if steps.weight_decay:
                gradient = {name: g + steps.weight_decay * block[name] for name, g in gradient.items()}
            if steps.momentum:
                for name, g in gradient.items():  # a weight that a step does not use keeps its velocity
                    velocity[name] = steps.momentum * velocity[name] + g if name in velocity else g
                gradient = {name: velocity[name] for name in gradient}
            add_scaled_(block, gradient, -rate)
    return block


def finish(steps: Steps, embeddings: Tensor, gradient: Callable[[Tensor], Tensor]) -> Block:
    """Take all steps that are left, given the embeddings yielded last; ``gradient`` returns ∂ℓ/∂z at embeddings."""
    try:
        while True:
            embeddings = steps.send(gradient(embeddings))
    except StopIteration as stop:
        block: Block = stop.value
        return block


def _clip(gradient: Mapping[str, Tensor], most: float, grouped: bool) -> dict[str, Tensor]:
    lead = 1 if grouped else 0
    squares = [g.flatten(lead).square().sum(-1) if g.ndim > lead else g.square() for g in gradient.values()]
    norm = torch.stack(squares).sum(0).sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * factor.view(-1, *[1] * (g.ndim - 1)) if grouped else g * factor for name, g in gradient.items()}


def autograd(embeddings: Tensor, weights: Block) -> Backward:
    """Return what carries gradients back from embeddings to the weights they came from, by torch's autograd."""
    return lambda gradients: gradient_of(embeddings, weights, gradients)


def gradient_of(outputs: Tensor, weights: Block, gradients: Tensor) -> Block:
    """Return the gradient at weights, given that at outputs which came from them; unused weights are left out."""
    if not weights:
        return {}
    parts = run_backward(outputs, gradients, tuple(weights.values()))
    return {name: g for name, g in zip(weights, parts, strict=True) if g is not None}
