"""What a silo carries from round to round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from tdcd.core.network import Block


@dataclass(frozen=True)
class SiloState:
    """All that a silo carries from round to round, and a checkpoint holds of it."""

    weights: Block
    """θ_j; empty in a silo that has labels only."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """Named tensors of whoever needs to remember something: momentum at the hub, for example."""


States = Mapping[str, SiloState]
"""By silo: all of them in a simulation, one at a hub's site."""


class HubUpdate(Protocol):
    """What a hub makes of its clients' average in a round."""

    def __call__(self, state: SiloState, averaged: Block, number: int, /) -> SiloState:
        """Return the silo's state after round ``number``, given the one before; changes nothing that it is given."""


def take_average(state: SiloState, averaged: Block, number: int) -> SiloState:  # noqa: ARG001
    """Take the average as it is (line 32); whatever else the silo remembers stays."""
    return SiloState(averaged, state.memory)
