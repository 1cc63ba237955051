"""What is computed: one silo's part of the training, what is known of a round, and the scores of the whole model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from tdcd.core.aggregators import Aggregator, Average
from tdcd.core.average import Averaging
from tdcd.core.codecs import Codec
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Block, Network
from tdcd.core.objectives import Loss
from tdcd.core.sampling import participants
from tdcd.core.script import total
from tdcd.core.state import SiloState
from tdcd.core.topology import Roster


@dataclass(frozen=True)
class SiloTask:
    """What the clients of silo j compute, on which rows."""

    silo: str
    network: Network
    features: Tensor
    """X_j, held once for all clients, shape (M, …)."""
    labels: Tensor
    """y as the objective prepared it, shape (M,) or (M, E); of no use where labels are remote."""
    roster: Roster
    objective: Loss
    steps: LocalSteps
    averaging: Averaging
    seed: int
    width: int
    """E, the width of the embeddings."""
    aggregator: Aggregator = field(default_factory=Average)
    """What the hub makes of its clients' weights."""
    updates: Codec | None = None
    """What clients' changes of their weights go through; nothing where they return the weights themselves."""
    participation: float = 1.0
    """The part of the clients that is drawn for each round."""
    remote_labels: bool = False
    """Whether another silo holds the labels: clients descend logit gradients that they receive."""

    @cached_property
    def participants(self) -> int:
        """How many clients take part in a round."""
        return participants(len(self.roster.clients), self.participation)

    def sent(self, state: SiloState) -> Block:
        """Return what a client receives of its silo's state: the weights, and what its optimizer remembers."""
        return self.steps.sent(state, self.network.trainable)


@dataclass(frozen=True)
class Round:
    """What is known of a round before it starts."""

    number: int
    """1, 2, …, R."""
    batch: Tensor
    """ζ: the sample numbers of the mini-batch, ascending, shape (B,)."""
    rate: float
    """η, the learning rate of this round's local steps."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """η of the silos that have a rate of their own."""

    def of(self, silo: str) -> "Round":
        """Return the round as it is for one silo."""
        return replace(self, rate=self.rates[silo]) if silo in self.rates else self

    def __post_init__(self) -> None:
        if not len(self.batch):
            raise ValueError(f"round {self.number}: there is nothing in its mini-batch to train on")


def sum_embeddings(embeddings: Mapping[str, Tensor]) -> Tensor:
    """Return Σ_j Φ_j, the scores, as all hubs add them up."""
    scores = total(embeddings, embeddings)
    if isinstance(scores, int):
        raise ValueError("no silo has embeddings")
    return scores
