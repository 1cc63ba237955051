"""Samples to train, validate or test on: rows of all silos that belong together."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tdcd.data.arrays import Array, Data, describe_value, to_tensor
from tdcd.data.frames import Columns, index_of, take_frame
from tdcd.errors import DataError


def to_rows(
    features: Mapping[str, Data], of: str, labels: Data | None = None, columns: Mapping[str, Columns] | None = None
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Return every silo's rows, and the names of their columns where they are data frames.

    Row i is the same sample in all silos; indexes of data frames must say so, too. ``columns`` are those of silos that
    were trained on data frames: those of later ones are brought in their order.
    """
    if not isinstance(features, Mapping):
        raise DataError(
            f'{of}silos: rows by the silos\' names are wanted, {{"bank": rows, …}}, not {describe_value(features)}'
        )
    tensors: dict[str, Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    known: dict[str, list[tuple[str, Array]]] = {"indexes": [], "IDs": []}
    if (index := index_of(labels)) is not None:
        known["indexes"].append(("the labels", index))
    for silo, values in features.items():
        taken = take_frame(values, f"{of}silo '{silo}'", known=(columns or {}).get(silo))
        tensors[silo] = to_tensor(taken.rows, f"{of}silo '{silo}'")
        if taken.names:
            names[silo] = taken.names
        if taken.ids is not None:
            known["IDs" if taken.column else "indexes"].append((f"silo '{silo}'", taken.ids))
    for what, each in known.items():
        for who, ids in each[1:]:
            if not np.array_equal(ids, each[0][1]):
                raise DataError(
                    f"the data frames of {each[0][0]} and {who} have different {what}; bring their rows in the same "
                    "order, as with frame.loc[ids]"
                )
    return tensors, names


@dataclass(frozen=True)
class Samples:
    """Aligned rows: row p of every silo, and label p, belong to sample p."""

    features: Mapping[str, Tensor]
    """X_j for each silo j, shape (M, *shape of one row in that silo)."""
    labels: Tensor
    """y, shape (M,) or, for several regression targets, (M, E)."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the columns of each silo that was given as a data frame, in the order that they stand in."""

    @classmethod
    def from_arrays(cls, features: Mapping[str, Data], labels: Data) -> "Samples":
        """Make a validation or test set of arrays: a row of every silo and a label for each sample, in the same order.

        Row i of every silo and label i are the same sample, whatever an index says; frames and series must agree on it.

        Raises:
            DataError: they are not numbers, not as many, or data frames whose indexes differ.
        """
        y = to_tensor(labels, "test labels", place=1)
        tensors, columns = to_rows(features, "test rows of ", labels)
        for name, x in tensors.items():
            if len(x) != len(y):
                raise DataError(f"test set: silo '{name}' has {len(x)} rows, and there are {len(y)} labels")
        return cls(tensors, y, columns)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        rows = (f"{silo} {tuple(x.shape[1:])}" for silo, x in self.features.items())
        shown = ", ".join([*islice(rows, 5), *(["…"] if len(self.features) > 5 else [])])
        return f"Samples({len(self):,}: {shown})"

    def to(self, device: torch.device) -> "Samples":
        """Return the samples on a device."""
        return replace(
            self,
            features={silo: rows.to(device) for silo, rows in self.features.items()},
            labels=self.labels.to(device),
        )

    def only(self, silo: str) -> "Samples":
        """Return what one silo has by itself."""
        return Samples(
            {silo: self.features[silo]},
            self.labels,
            {name: columns for name, columns in self.columns.items() if name == silo},
        )

    def arrange(self, columns: Mapping[str, Columns], what: str) -> "Samples":
        """Return the samples with the columns of data frames in the order that silos were trained on.

        Raises:
            DataError: a column is missing, or unknown; ``what`` says of which samples.
        """
        features, orders = dict(self.features), dict(self.columns)
        for silo in self.columns.keys() & columns.keys():
            places = columns[silo].places(self.columns[silo], f"{what}, silo '{silo}'")
            if places != list(range(len(self.columns[silo]))):
                features[silo], orders[silo] = features[silo][:, places], columns[silo].names
        return replace(self, features=features, columns=orders)
