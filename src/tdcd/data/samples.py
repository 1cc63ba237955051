"""Samples to train, validate or test on: rows of all silos that belong together."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tdcd.data.arrays import Data, to_tensor
from tdcd.data.frames import index_of, take_frame
from tdcd.errors import DataError


def to_rows(features: Mapping[str, Data], of: str, labels: Data | None = None) -> dict[str, Tensor]:
    """Return every silo's rows, of which row i is the same sample in all; indexes of data frames must say so, too."""
    tensors: dict[str, Tensor] = {}
    indexes = {"the labels": index_of(labels)}
    for silo, values in features.items():
        rows, indexes[f"silo '{silo}'"] = take_frame(values, f"{of}silo '{silo}'")
        tensors[silo] = to_tensor(rows, f"{of}silo '{silo}'")
    known = [(who, index) for who, index in indexes.items() if index is not None]
    for who, index in known[1:]:
        if not np.array_equal(index, known[0][1]):
            raise DataError(
                f"the data frames of {known[0][0]} and {who} have different indexes; bring their rows in the same "
                "order, as with frame.loc[ids]"
            )
    return tensors


@dataclass(frozen=True)
class Samples:
    """Aligned rows: row p of every silo, and label p, belong to sample p."""

    features: Mapping[str, Tensor]
    """X_j for each silo j, shape (M, *shape of one row in that silo)."""
    labels: Tensor
    """y, shape (M,) or, for several regression targets, (M, E)."""

    @classmethod
    def from_arrays(cls, features: Mapping[str, Data], labels: Data) -> "Samples":
        """Make a validation or test set of arrays: a row of every silo and a label for each sample, in the same order.

        Row i of every silo and label i are the same sample, whatever an index says; frames and series must agree on it.

        Raises:
            DataError: they are not numbers, not as many, or data frames whose indexes differ.
        """
        y = to_tensor(labels, "test labels", place=1)
        tensors = to_rows(features, "test rows of ", labels)
        for name, x in tensors.items():
            if len(x) != len(y):
                raise DataError(f"test set: silo '{name}' has {len(x)} rows, and there are {len(y)} labels")
        return cls(tensors, y)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        rows = (f"{silo} {tuple(x.shape[1:])}" for silo, x in self.features.items())
        shown = ", ".join([*islice(rows, 5), *(["…"] if len(self.features) > 5 else [])])
        return f"Samples({len(self):,}: {shown})"

    def to(self, device: torch.device) -> "Samples":
        """Return the samples on a device."""
        return Samples({silo: rows.to(device) for silo, rows in self.features.items()}, self.labels.to(device))

    def only(self, silo: str) -> "Samples":
        """Return what one silo has by itself."""
        return Samples({silo: self.features[silo]}, self.labels)
