"""Adam: steps in units of each weight's own gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.core.state import Memory


@dataclass(frozen=True)
class Adam:
    """θ ← θ − η·m̂ / (√v̂ + ε) with running means m of g and v of g², as torch.optim.Adam. See Optimizer."""

    beta1: float = 0.9
    """How much of m stays in a step."""
    beta2: float = 0.999
    """How much of v stays in a step."""
    epsilon: float = 1e-8

    elementwise = True

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: should be at least 0 and below 1 (is {getattr(self, name)!r})")
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon: should be above 0 and below 1 (is {self.epsilon!r})")

    def init(self, weights: Block) -> Memory:
        zeros = {f"{part}/{name}": torch.zeros_like(t) for part in ("m", "v") for name, t in weights.items()}
        return zeros | {f"steps/{name}": tensor.new_zeros(()) for name, tensor in weights.items()}

    def apply(self, gradient: Block, memory: Memory, weights: Block, rate: float) -> Memory:
        for name, g in gradient.items():
            steps = memory[f"steps/{name}"].add_(1)
            m = memory[f"m/{name}"].lerp_(g, 1 - self.beta1)
            v = memory[f"v/{name}"].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            scale = rate / _like(1 - self.beta1**steps, g)
            spread = v.sqrt().div_(_like((1 - self.beta2**steps).sqrt(), g)).add_(self.epsilon)
            weights[name].sub_(scale * m / spread)
        return memory


def _like(number: Tensor, tensor: Tensor) -> Tensor:
    """Give a number, or one for each of stacked clients, as many dimensions as a tensor has."""
    return number.reshape(*number.shape, *[1] * (tensor.ndim - number.ndim))
