"""What is known of a round before it starts, and sums of embeddings."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tdcd.core.script import total


@dataclass(frozen=True)
class Round:
    """What is known of a round before it starts."""

    number: int
    """1, 2, …, R."""
    batch: Tensor
    """ζ: the sample numbers of the mini-batch, ascending, shape (B,)."""
    rate: float
    """η, the learning rate of this round's local steps."""

    def __post_init__(self) -> None:
        if not len(self.batch):
            raise ValueError(f"round {self.number}: there is nothing in its mini-batch to train on")


def sum_embeddings(embeddings: Mapping[str, Tensor]) -> Tensor:
    """Return Σ_j Φ_j, the scores, as all hubs add them up."""
    scores = total(embeddings, embeddings)
    if isinstance(scores, int):
        raise ValueError("no silo has embeddings")
    return scores
