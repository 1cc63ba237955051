"""Data frames of pandas and polars, taken as they are, without importing either."""

from typing import Any

import numpy as np

from tdcd.data.arrays import Array, Data, describe_value
from tdcd.errors import DataError, nearest


def index_of(values: Any) -> Array | None:
    """Return the index of a frame or a series of pandas; others have none."""
    index = getattr(values, "index", None)  # of a list it is a method
    return None if index is None or callable(index) or not hasattr(values, "to_numpy") else np.asarray(index)


def take_frame(values: Any, what: str, ids: str | None = None) -> tuple[Data, Array | None]:
    """Return a frame's columns as an array, and its IDs: the column named ``ids``, or its index.

    What is no frame is returned as it is.

    Raises:
        DataError: a column is missing, or holds something other than numbers.
    """
    if not (hasattr(values, "columns") and hasattr(values, "to_numpy")):
        if ids is not None:
            raise DataError(f"{what}: ids = '{ids}' names a column, and {describe_value(values)} is no data frame")
        return values, index_of(values)
    names = [str(name) for name in values.columns]
    if ids is not None and ids not in names:
        raise DataError(f"{what}: ids: there is no column '{ids}'{nearest(ids, names)}")
    if len(set(names)) < len(names):
        raise DataError(f"{what}: several columns have the same name; rename them")
    columns = {name: np.asarray(values[key]) for name, key in zip(names, values.columns, strict=True)}
    own = index_of(values) if ids is None else columns.pop(ids)
    for name, column in columns.items():
        if column.dtype.kind not in "fiub":
            raise DataError(
                f"{what}, column '{name}': not numbers but {column.dtype}; encode texts and dates, and fill gaps, first"
            )
    if not columns:
        raise DataError(f"{what}: a data frame without columns of features")
    return np.column_stack(list(columns.values())), own
