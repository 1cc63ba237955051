"""The paper's rule: take the clients' mean."""

from dataclasses import dataclass

from tdcd.core.aggregators.base import HubRound
from tdcd.core.network import Block
from tdcd.core.state import Memory


@dataclass(frozen=True)
class Average:
    """θ_j ← mean_k θ_{k,j}. See Aggregator."""

    linear = True

    def init(self, weights: Block) -> Memory:
        return {}

    def apply(
        self,
        received: Block,
        memory: Memory,
        weights: Block,
        round_: HubRound,
    ) -> tuple[Block, Memory]:
        return received, memory
