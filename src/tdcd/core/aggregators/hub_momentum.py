"""Momentum that outlives a round, at the hub.

A client's momentum starts afresh in every round. The hub can carry momentum from round to round instead: of the
averaged change,

    Δ ← (mean_k θ_{k,j} − θ_j) + μ·(η_r / η_{r−1})·Δ,    θ_j ← θ_j + β·Δ

With one local step and β = 1 this is what torch.optim.SGD does with the averaged gradient, also while the rate changes.
"""

from dataclasses import dataclass

import torch

from tdcd.core.aggregators.base import HubRound
from tdcd.core.aggregators.hub_step import Size, check_size, size_in
from tdcd.core.network import Block
from tdcd.core.state import Memory


@dataclass(frozen=True)
class HubMomentum:
    """Carries Δ of a silo's trainable weights. Running statistics take the mean. See Aggregator."""

    momentum: float = 0.9
    """μ."""
    size: Size = 1.0
    """β, as of a hub step."""

    linear = True

    def __post_init__(self) -> None:
        if not 0 < self.momentum < 1:
            raise ValueError(f"momentum: should be above 0 and below 1 (is {self.momentum!r})")
        check_size(self.size)

    def init(self, weights: Block) -> Memory:
        return {name: torch.zeros_like(tensor) for name, tensor in weights.items() if tensor.is_floating_point()}

    def apply(self, received: Block, memory: Memory, weights: Block, round_: HubRound) -> tuple[Block, Memory]:
        size = size_in(self.size, round_)
        factor = self.momentum * round_.rate / round_.last_rate if round_.last_rate else 0.0
        change = {name: received[name] - weights[name] + factor * memory[name] for name in round_.trainable}
        moved = {name: weights[name] + size * delta for name, delta in change.items()}
        return received | moved, {**memory, **change}
