"""A client's Q local gradient steps (lines 25 to 29 of Algorithm 1), as a generator.

It yields the embeddings at each step and takes ∂ℓ/∂z of every row from whoever drives it: a simulation computes that at
once from the labels, a site sends the embeddings away and goes on when the gradients have come.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from tdcd.core.network import Block, copy_block
from tdcd.core.optimizers import SGD, Optimizer
from tdcd.core.optimizers.base import apply_checked
from tdcd.core.parts import calling, is_foreign
from tdcd.core.state import CARRIED, Memory, SiloState, carried
from tdcd.core.torch_extras import run_backward


@dataclass(frozen=True)
class LocalSteps:
    """How a client descends in a round. The paper's plain SGD unless an option is set."""

    count: int = 1
    """Q, the number of local steps between two exchanges."""
    optimizer: Optimizer = field(default_factory=SGD)
    """How the weights move by a gradient."""
    weight_decay: float = 0.0
    clip_norm: float | None = None
    """Largest Euclidean norm of a client's gradient over its whole block."""
    proximal: float = 0.0
    """μ of a term μ/2·‖θ − θ_j‖² in a client's loss, which keeps it near the weights that it began with (FedProx)."""
    carry: bool = False
    """Whether what the optimizer remembers outlives the round: the hub averages it as it does the weights."""

    @property
    def plain(self) -> bool:
        """Whether these are steps of plain SGD."""
        return self == LocalSteps(self.count)

    @property
    def single(self) -> bool:
        """Whether this is one step of SGD from the hub's weights, where momentum and the proximal term are nothing."""
        return self.count == 1 and type(self.optimizer) is SGD and self.clip_norm is None and not self.carry

    def sent(self, state: SiloState, trainable: Collection[str]) -> Block:
        """Return what clients receive of their silo's state: the weights, and what their optimizer remembers.

        The latter in the order of names: tensors travel without them, and a checkpoint may hold another order.

        Args:
            state: The silo's.
            trainable: The names of the weights that gradient steps change.
        """
        if not self.carry:
            return state.weights
        known = carried(state.memory)
        if not known:
            with calling("optimizer", self.optimizer):
                first = self.optimizer.init({name: state.weights[name] for name in trainable})
            known = {CARRIED + name: tensor for name, tensor in first.items()}
        return state.weights | dict(sorted(known.items()))


Steps = Generator[Tensor, Tensor, Block]
"""Yields embeddings (n, E), or (G, n, E) of stacked clients; takes ∂ℓ/∂z of the same shape; returns the new weights."""
Backward = Callable[[Tensor], Block]
"""Carries the gradient at the embeddings back to the weights; weights that they do not depend on are left out."""
Forward = Callable[[Block], tuple[Tensor, Backward]]
"""Embeds a client's rows with its newest weights. Running statistics that the pass updates are put into the block."""


def local_steps(
    forward: Forward,
    block: Block,
    trainable: Collection[str],
    known: Block,
    share: Tensor | float,
    steps: LocalSteps,
    rate: float,
    *,
    grouped: bool = False,
) -> Steps:
    """Take Q steps θ ← θ − η·g(θ) (Equation 5), changing the block in place.

    Args:
        forward: A pass through the network.
        block: θ_j; changed, and returned in the end, with what the optimizer remembers if that is carried on.
        trainable: The names of the weights that gradient steps change.
        known: What one client's optimizer remembers of earlier rounds, under the names that it travels under.
        share: What a row weighs in its client's mean loss, 1/n.
        steps: How many, and their options.
        rate: η.
        grouped: Every tensor has a leading dimension of clients: they descend together, each by its own gradient.
    """
    weights = {name: block[name] for name in trainable}
    optimizer, memory = steps.optimizer, _memory(steps, weights, known, grouped)
    apply = partial(apply_checked, optimizer) if is_foreign(optimizer) else optimizer.apply
    start = copy_block(weights) if steps.proximal else {}
    for _ in range(steps.count):
        embeddings, backward = forward(block)
        gradients = yield embeddings
        gradient = backward(gradients * share)
        with torch.no_grad():
            if steps.clip_norm is not None and gradient:
                gradient = _clip(gradient, steps.clip_norm, grouped)
            if steps.weight_decay:
                gradient = {name: g + steps.weight_decay * block[name] for name, g in gradient.items()}
            if steps.proximal:
                gradient = {name: g + steps.proximal * (weights[name] - start[name]) for name, g in gradient.items()}
            memory = apply(gradient, memory, weights, rate)
    return block | ({CARRIED + name: tensor for name, tensor in memory.items()} if steps.carry else {})


def _memory(steps: LocalSteps, weights: Block, known: Block, grouped: bool) -> Memory:
    """Return what the optimizer remembers before a client's first step in a round."""
    if steps.carry:
        memory = {name.removeprefix(CARRIED): tensor for name, tensor in known.items()}
    else:
        with calling("optimizer", steps.optimizer):
            memory = dict(steps.optimizer.init({name: t[0] for name, t in weights.items()} if grouped else weights))
    if not memory:
        return memory
    if not grouped:
        return {name: tensor.clone() for name, tensor in memory.items()}
    clients = len(next(iter(weights.values())))
    return {name: tensor.expand(clients, *tensor.shape).clone() for name, tensor in memory.items()}


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
