"""Data frames of pandas and polars, taken as they are, without importing either."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tdcd.data.arrays import Array, Data, describe_value
from tdcd.errors import DataError, join_names, nearest


@dataclass(frozen=True)
class Columns:
    """The columns of a data frame that a silo was trained on. Later frames may have them in any order."""

    names: tuple[str, ...]
    """Those of features, in order."""
    ids: str = ""
    """The one that held the IDs, if one did: later frames may have it, too."""

    def places(self, names: Sequence[str], what: str) -> list[int]:
        """Return where each column of features stands among the names of another frame.

        Raises:
            DataError: a column is missing, or unknown.
        """
        missing = [name for name in self.names if name not in names]
        unknown = [name for name in names if name not in {*self.names, self.ids}]
        parts = [f"{word} {join_names(some)}" for word, some in (("missing", missing), ("unknown", unknown)) if some]
        if parts:
            raise DataError(
                f"{what}: not the columns that it was trained on: {'; '.join(parts)}; give a data frame with the "
                "columns of the training frame, in any order"
            )
        return [list(names).index(name) for name in self.names]


@dataclass(frozen=True)
class Taken:
    """What was read of a data frame, or of what is none."""

    rows: Data
    ids: Array | None = None
    names: tuple[str, ...] = ()
    """Of the columns of features; none where it is no data frame."""
    column: str = ""
    """The column that the IDs are from; by default they are the index."""


def index_of(values: Any) -> Array | None:
    """Return the index of a frame or a series of pandas; others have none."""
    index = getattr(values, "index", None)  # of a list it is a method
    return None if index is None or callable(index) or not hasattr(values, "to_numpy") else np.asarray(index)


def take_frame(values: Any, what: str, ids: str | None = None, known: Columns | None = None) -> Taken:
    """Return a frame's columns as an array, and its IDs: the column named ``ids``, or its index.

    Where columns are ``known``, these are returned in their order, and the IDs are from the column that they name, if
    it is there. What is no frame is returned as it is.

    Raises:
        DataError: a column is missing, unknown, or holds something other than numbers.
    """
    if not (hasattr(values, "columns") and hasattr(values, "to_numpy")):
        if ids is not None:
            raise DataError(f"{what}: ids = '{ids}' names a column, and {describe_value(values)} is no data frame")
        return Taken(values, index_of(values))
    names = [str(name) for name in values.columns]
    if known:
        known.places(names, what)
        ids = known.ids if known.ids in names else None
    if ids is not None and ids not in names:
        raise DataError(f"{what}: ids: there is no column '{ids}'{nearest(ids, names)}")
    if len(set(names)) < len(names):
        raise DataError(f"{what}: several columns have the same name; rename them")
    columns = {name: np.asarray(values[key]) for name, key in zip(names, values.columns, strict=True)}
    own = index_of(values) if ids is None else columns.pop(ids)
    for name, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise DataError(
                f"{what}, column '{name}': not numbers but {column.dtype}; encode texts and dates, and fill gaps, "
                "first; leave out a column of IDs"
            )
    if not columns:
        raise DataError(f"{what}: a data frame without columns of features")
    order = known.names if known else tuple(columns)
    return Taken(np.column_stack([columns[name] for name in order]), own, order, ids or "")
