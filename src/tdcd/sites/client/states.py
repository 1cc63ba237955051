"""What a client has to take part in a training, and in a round of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from tdcd.compute.worker import Worker
from tdcd.core.network import Block, Network
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.sites.client.dealing import Dealer
from tdcd.sites.client.label_holder import LabelHolder

BEGINNING = 1 << 28
"""Bytes that a request may have before the client knows its network: numbers of samples, labels, a preparation."""
VECTORS = 8 * 64
"""Bytes that may come for each row and output: float64, for as many silos."""


@dataclass(frozen=True)
class Ready:
    """The client can take part."""

    setup: str
    """The fingerprint of what the hub sent."""
    numbers: Mapping[Part, Array]
    """The numbers of its samples, ascending."""
    rows: Mapping[Part, Tensor]
    population: int
    width: int
    network: Network | None
    worker: Worker | None
    label_holder: LabelHolder | None
    """Its labels, where they are private."""
    received: Block = field(default_factory=dict)
    """Tensors like those that the hub sends with each round: weights, and what the optimizer remembers."""
    encoded: Block = field(default_factory=dict)
    """The same, as they travel in a round."""
    dealer: Dealer | None = None
    """Deals values of columns anew; none where there are no features."""

    @cached_property
    def most(self) -> int:
        """Bytes that a request may have; asked for with every frame."""
        rows = sum(len(numbers) for numbers in self.numbers.values())
        weights = sum(tensor.nbytes for tensor in self.received.values())
        return max(BEGINNING, 2 * weights + rows * (self.width * VECTORS + 64))


@dataclass
class OpenRound:
    """A round under way."""

    number: int
    mine: Tensor
    """Its rows of the mini-batch."""
    embeddings: Tensor | None = None
    others: Tensor | None = None
    """The summed embeddings of the other silos, where it has received them."""
