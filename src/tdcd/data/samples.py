"""Samples to train, validate or test on: rows of all silos that belong together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from tdcd.core.topology import Roster, roster_of
from tdcd.data.arrays import Array, Data, describe_value, to_tensor
from tdcd.data.frames import Columns, index_of, take_frame
from tdcd.data.sources import RowSource, StoredRows, read_stored
from tdcd.errors import DataError


def to_rows(
    features: Mapping[str, Data | RowSource],
    of: str,
    labels: Data | None = None,
    columns: Mapping[str, Columns] | None = None,
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Return every silo's rows, and the names of their columns where they are data frames.

    Row i is the same sample in all silos; indexes of data frames must say so, too. ``columns`` are those of silos that
    were trained on data frames: those of later ones are brought in their order.
    """
    check_by_silo(features, f"{of}silos")
    tensors: dict[str, Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    known: dict[str, list[tuple[str, Array]]] = {"indexes": [], "IDs": []}
    if (index := index_of(labels)) is not None:
        known["indexes"].append(("the labels", index))
    for silo, values in features.items():
        if isinstance(values, RowSource):
            tensors[silo] = read_stored([StoredRows.whole(values, f"{of}silo '{silo}'")], f"{of}silo '{silo}'")[0]
            continue
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


def check_by_silo(features: object, what: str) -> None:
    """Check that rows are given by the names of their silos.

    Raises:
        DataError: they are not; ``what`` names them.
    """
    if not isinstance(features, Mapping):
        raise DataError(
            f'{what}: rows by the silos\' names are wanted, {{"bank": rows, …}}, not {describe_value(features)}'
        )


@dataclass(frozen=True)
class Samples:
    """Aligned rows: row p of every silo, and label p, belong to sample p."""

    features: Mapping[str, Tensor]
    """X_j for each silo j, shape (M, *shape of one row in that silo)."""
    labels: Tensor
    """y, shape (M,) or, for several regression targets, (M, E)."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The names of the columns of each silo that was given as a data frame, in the order that they stand in."""
    stored: Mapping[str, StoredRows] = field(default_factory=dict)
    """The rows of silos that are read where they are computed: their features here are outlines, without numbers."""
    holders: Mapping[str, Roster] = field(default_factory=dict)
    """Who holds each sample, for silos where that is known: quality is measured for each of these clients, too."""

    @classmethod
    def from_arrays(
        cls,
        features: Mapping[str, Data | RowSource],
        labels: Data,
        clients: Mapping[str, Sequence[str]] | None = None,
    ) -> "Samples":
        """Make a validation or test set of arrays: a row of every silo and a label for each sample, in the same order.

        Row i of every silo and label i are the same sample, whatever an index says; frames and series must agree on it.

        Args:
            features: Rows by the silos' names.
            labels: A label for each.
            clients: For silos where that is known, the name of the client that holds each sample: quality is measured
                for each of these clients, too.

        Raises:
            DataError: they are not numbers, not as many, or data frames whose indexes differ.
        """
        check_by_silo(features, "test rows of silos")
        y = to_tensor(labels, "test labels", place=1)
        sources = {silo: rows for silo, rows in features.items() if isinstance(rows, RowSource)}
        stored = {silo: StoredRows.whole(rows, f"test rows of silo '{silo}'") for silo, rows in sources.items()}
        given = {silo: rows for silo, rows in features.items() if silo not in sources}
        tensors, columns = to_rows(given, "test rows of ", labels)
        tensors |= {silo: rows.outline() for silo, rows in stored.items()}
        for name, x in tensors.items():
            if len(x) != len(y):
                raise DataError(f"test set: silo '{name}' has {len(x)} rows, and there are {len(y)} labels")
        holders = {silo: _roster(silo, names, len(y)) for silo, names in (clients or {}).items()}
        return cls({silo: tensors[silo] for silo in features}, y, columns, stored, holders)

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
            features={silo: rows if rows.is_meta else rows.to(device) for silo, rows in self.features.items()},
            labels=self.labels.to(device),
        )

    def loaded(self) -> "Samples":
        """Return the samples with all rows in this process."""
        if not self.stored:
            return self
        read = {silo: read_stored([rows], f"silo '{silo}'")[0] for silo, rows in self.stored.items()}
        return replace(self, features={**self.features, **read}, stored={})

    def only(self, silo: str) -> "Samples":
        """Return what one silo has by itself."""
        return Samples(
            {silo: self.features[silo]},
            self.labels,
            {name: columns for name, columns in self.columns.items() if name == silo},
            {name: stored for name, stored in self.stored.items() if name == silo},
            {name: roster for name, roster in self.holders.items() if name == silo},
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


def _roster(silo: str, names: Sequence[str], rows: int) -> Roster:
    """Return who holds each sample."""
    if isinstance(names, str) or len(names) != rows:
        raise DataError(f"clients of silo '{silo}': a name for each of the {rows} samples is wanted")
    known, owner = np.unique(np.asarray(names, dtype=np.str_), return_inverse=True)
    return roster_of(owner, known.tolist())
