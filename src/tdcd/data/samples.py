"""Samples to train, validate or test on: rows of all silos that belong together."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from tdcd.data.arrays import ArrayLike, to_tensor
from tdcd.errors import DataError


@dataclass(frozen=True)
class Samples:
    """Aligned rows: row p of every silo, and label p, belong to sample p."""

    features: Mapping[str, Tensor]
    """X_j for each silo j, shape (M, *shape of one row in that silo)."""
    labels: Tensor
    """y, shape (M,) or, for several regression targets, (M, E)."""

    @classmethod
    def from_arrays(cls, features: Mapping[str, ArrayLike], labels: ArrayLike) -> "Samples":
        """Make a validation or test set of arrays: a row of every silo and a label for each sample, in the same order.

        Raises:
            DataError: they are not numbers, or not as many.
        """
        y = to_tensor(labels, "test labels")
        tensors = {name: to_tensor(x, f"test rows of silo '{name}'") for name, x in features.items()}
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
