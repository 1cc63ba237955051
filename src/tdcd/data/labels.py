"""What a column of labels means to a loss."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from tdcd.data.arrays import Array
from tdcd.errors import DataError, listed

Loss = Literal["cross-entropy", "binary-cross-entropy", "squared-error"]
MOST_CLASSES = 1000


def coded(values: Array, loss: Loss, positive: str | int | None = None) -> tuple[Array, tuple[str, ...]]:
    """Turn labels, as they stand in tables, into those of a loss.

    Args:
        values: Numbers or texts.
        loss: What they are for.
        positive: The label that counts as 1 for the binary loss; default: they are 0 and 1.

    Returns:
        The labels, and what the classes 0, 1, 2, … stand for; for a regression, nothing.

    Raises:
        DataError: these labels do not fit this loss.
    """
    if loss == "squared-error":
        if values.dtype.kind == "U":
            raise DataError(f"labels: squared-error wants numbers, not texts such as '{values[0]}'")
        return values.astype(np.float64), ()
    names = words(values)
    classes, places = np.unique(names, return_inverse=True)
    if values.dtype.kind != "U":  # by their size: 2 before 10
        order = np.argsort([float(name) for name in classes])
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        classes, places = classes[order], rank[places]
    if loss == "binary-cross-entropy":
        return _binary(places, classes.tolist(), positive)
    if len(classes) > MOST_CLASSES:
        raise DataError(f"labels: {len(classes):,} different ones are too many classes; is it a regression?")
    return places.astype(np.int64), tuple(classes.tolist())


def words(values: Array) -> Array:
    """Write labels as texts; whole numbers without a point."""
    return values if values.dtype.kind == "U" else np.array([f"{value:.15g}" for value in values.tolist()])


def _binary(places: Array, classes: Sequence[str], positive: str | int | None) -> tuple[Array, tuple[str, ...]]:
    wanted = "1" if positive is None else str(positive)
    if positive is None and not set(classes) <= {"0", "1"}:
        raise DataError(
            f"labels: binary-cross-entropy wants 0 and 1, and these are {listed(classes)}; "
            "say which counts as 1: labels = { positive = … }"
        )
    if len(classes) > 2:
        raise DataError(f"labels: there are {len(classes)}, {listed(classes)}; the binary loss wants two")
    if wanted not in classes and positive is not None:
        raise DataError(f"labels.positive: no label is '{wanted}'; there is {listed(classes)}")
    negative = next((name for name in classes if name != wanted), "0" if positive is None else "other")
    return np.array([name == wanted for name in classes])[places].astype(np.int64), (negative, wanted)
