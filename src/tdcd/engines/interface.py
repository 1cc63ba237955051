"""What the training loop asks of an engine."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from tdcd.core.network import Blocks
from tdcd.core.round import Round


class Engine(Protocol):
    """A place where a whole federation's rounds are computed."""

    @property
    def paths(self) -> Mapping[str, str]:
        """How each silo's clients are computed, and why, in a sentence."""

    def round(self, blocks: Blocks, round_: Round) -> Blocks:
        """Run one communication round from these blocks and return the new ones; nothing given is changed."""

    def scores(self, blocks: Blocks, features: Mapping[str, Tensor]) -> Tensor:
        """Return the global model's scores (M, E) of any rows, networks in evaluation mode."""
