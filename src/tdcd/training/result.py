"""What a training gives back."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tdcd.compute.whole import embed_whole
from tdcd.core.ledger import Traffic
from tdcd.core.network import Blocks, Network
from tdcd.core.objective import Objective
from tdcd.core.round import sum_embeddings
from tdcd.core.streams import borrow_stream
from tdcd.core.topology import Samples
from tdcd.data.arrays import ArrayLike, to_tensor
from tdcd.errors import DataError, join_names
from tdcd.training.metrics import measure
from tdcd.training.settings import Settings


@dataclass(frozen=True)
class Evaluation:
    """A line of the history: how good the global model is after a round."""

    round: int
    """Communication rounds so far."""
    iteration: int
    """Local steps so far: round × Q."""
    seconds: float
    """Wall time of the training so far, over all its sessions."""
    traffic: Traffic
    """Bytes that the rounds so far have sent."""
    train: Mapping[str, float]
    """Loss and metrics on all training rows; empty at a hub that is not told."""
    validation: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics on all validation rows; empty without a validation set."""
    test: Mapping[str, float] = field(default_factory=dict)
    """Loss and metrics on all test rows; empty without a test set."""
    better: bool = False
    """Whether the validation loss is lower than ever before."""

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> "Evaluation":
        """Read a line of history.jsonl back."""
        return cls(
            round=int(line["round"]),
            iteration=int(line["iteration"]),
            seconds=float(line["seconds"]),
            traffic=Traffic(**{str(way): int(sent) for way, sent in line["traffic"].items()}),
            train={str(name): float(value) for name, value in line["train"].items()},
            validation={str(name): float(value) for name, value in line["validation"].items()},
            test={str(name): float(value) for name, value in line["test"].items()},
            better=bool(line["better"]),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain dictionaries, as they stand in history.jsonl."""
        return asdict(self)


@dataclass(frozen=True)
class Result:
    """A trained federation."""

    settings: Settings
    networks: Mapping[str, Network]
    blocks: Blocks
    """The hubs' weights: after the last round, or those of the lowest validation loss."""
    kept: int
    """The round they are of."""
    history: tuple[Evaluation, ...]
    row_types: Mapping[str, torch.dtype]
    """The type of each silo's training rows; new rows are brought to it."""

    @property
    def final(self) -> Evaluation:
        """The evaluation of these weights."""
        return next((result for result in self.history if result.round == self.kept), self.history[-1])

    @property
    def objective(self) -> Objective:
        """The loss it was trained with."""
        return self.settings.objective

    def modules(self) -> dict[str, nn.Module]:
        """Return each silo's network as an ordinary module with its trained weights, in evaluation mode."""
        return {silo: network.with_weights(self.blocks[silo]) for silo, network in self.networks.items()}

    def scores(self, features: Mapping[str, ArrayLike]) -> Tensor:
        """Return the summed embeddings (M, E) of new samples; row i of every silo is the same sample."""
        missing = sorted(set(self.networks) - set(features))
        if missing:
            raise DataError(f"predicting needs the features of every silo; missing: {join_names(missing)}")
        tensors = {silo: to_tensor(features[silo], f"silo '{silo}'").to(self.row_types[silo]) for silo in self.networks}
        rows = {silo: len(x) for silo, x in tensors.items()}
        if len(set(rows.values())) > 1:
            raise DataError(f"the silos have different numbers of rows: {rows}")
        record = {}
        for silo, network in self.networks.items():
            with borrow_stream(network.device):
                record[silo] = embed_whole(silo, network, self.blocks[silo], tensors[silo].to(network.device))
        return sum_embeddings(record).cpu()

    def predict(self, features: Mapping[str, ArrayLike]) -> Tensor:
        """Return the predicted classes (M,), or values (M, E) for a regression."""
        return self.objective.predictions(self.scores(features))

    def probabilities(self, features: Mapping[str, ArrayLike]) -> Tensor:
        """Return probabilities: (M, classes), or (M,) of the positive class."""
        return self.objective.probabilities(self.scores(features))

    def evaluate(self, samples: Samples) -> dict[str, float]:
        """Return the loss and the metrics on labelled samples."""
        result = self.scores(samples.features)
        labels = self.objective.prepare(samples.labels, result.shape[1], self.settings.dtype)
        return measure(self.objective, result, labels)
