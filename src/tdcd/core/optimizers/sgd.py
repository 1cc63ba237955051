"""Stochastic gradient descent, the paper's optimizer."""

from dataclasses import dataclass

import torch

from tdcd.core.network import Block
from tdcd.core.state import Memory
from tdcd.core.torch_extras import add_scaled_


@dataclass(frozen=True)
class SGD:
    """θ ← θ − η·g, or with heavy-ball momentum θ ← θ − η·v, v ← μ·v + g, as torch.optim.SGD. See Optimizer."""

    momentum: float = 0.0
    """μ."""

    elementwise = True

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: should be at least 0 and below 1 (is {self.momentum!r})")

    def init(self, weights: Block) -> Memory:
        return {name: torch.zeros_like(tensor) for name, tensor in weights.items()} if self.momentum else {}

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        if self.momentum:
            for name, g in gradient.items():  # a weight that a step does not use keeps its velocity
                memory[name].mul_(self.momentum).add_(g)
            gradient = {name: memory[name] for name in gradient}
        add_scaled_(weights, gradient, -rate)
        return memory
