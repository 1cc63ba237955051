"""One silo's part of the training: all that stays the same from round to round."""

from dataclasses import dataclass

from torch import Tensor

from tdcd.core.average import Averaging
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Network
from tdcd.core.objective import Loss
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
    remote_labels: bool = False
    """Whether another silo holds the labels: clients descend logit gradients that they receive."""
