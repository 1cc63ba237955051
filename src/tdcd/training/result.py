"""What a training gives back."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor, nn

from tdcd.compute.whole import embed_whole
from tdcd.core.network import Blocks, Network
from tdcd.core.objectives import Objective
from tdcd.core.streams import borrow_stream
from tdcd.core.task import sum_embeddings
from tdcd.core.topology import Samples
from tdcd.data.arrays import ArrayLike, to_tensor
from tdcd.errors import DataError, join_names
from tdcd.runs.history import History
from tdcd.runs.records import PARTS, Evaluation
from tdcd.summary import Summary
from tdcd.training.metrics import measure
from tdcd.training.settings import Settings


@dataclass(frozen=True)
class Result:
    """A trained federation."""

    settings: Settings
    networks: Mapping[str, Network]
    blocks: Blocks
    """The hubs' weights: after the last round, or those of the lowest validation loss."""
    selected: int
    """The round they are of."""
    history: History
    row_types: Mapping[str, torch.dtype]
    """The type of each silo's training rows; new rows are brought to it."""

    @property
    def kept(self) -> Evaluation:
        """The evaluation of these weights."""
        return self.history.kept(self.selected)

    @property
    def final(self) -> Evaluation:
        """The evaluation after the last round; with ``select = "best"`` these weights may be of an earlier one."""
        return self.history[-1]

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

    def _summary(self) -> Summary:
        parts = [part for part in PARTS if self.kept.measures(part)]
        names = list(dict.fromkeys(name for part in parts for name in self.kept.measures(part)))
        weights = (
            f"{silo} {sum(p.numel() for p in network.module.parameters()):,}" for silo, network in self.networks.items()
        )
        ended = f"Result of {self.final.round:,} rounds, {self.settings.loss_kind}"
        rows = [[part, *(f"{self.kept.measures(part).get(name, nan):.4g}" for name in names)] for part in parts]
        return Summary(f"{ended}; weights of round {self.selected:,}: {join_names(weights)}", ["", *names], rows)

    def __repr__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()
