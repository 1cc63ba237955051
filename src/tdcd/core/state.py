"""What a silo carries from round to round."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from tdcd.core.network import Block

CARRIED = "optimizer/"
"""Begins the names of what clients' optimizers remember: it travels with the weights, and is averaged as they are."""
Memory = Mapping[str, Tensor]
"""Named tensors that a part of the training remembers."""


@dataclass(frozen=True)
class SiloState:
    """All that a silo carries from round to round, and a checkpoint holds of it."""

    weights: Block
    """θ_j; empty in a silo that has labels only."""
    memory: Memory = field(default_factory=dict)
    """What else it remembers: momentum at the hub, for example."""


def carried(tensors: Mapping[str, Tensor]) -> Block:
    """Return what clients' optimizers remember, of all that a silo remembers or a client returns."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(CARRIED)}


States = Mapping[str, SiloState]
"""By silo: all of them in a simulation, one at a hub's site."""
