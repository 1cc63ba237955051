"""Which samples are for training, validation and testing, as a pure function of the ID and a seed.

Every site computes the same by itself, whatever other IDs it knows.
"""

from enum import IntEnum

import numpy as np

from tdcd.core.seeds import derive_each
from tdcd.data.arrays import Array


class Part(IntEnum):
    """What a sample is for."""

    TRAIN = 0
    VALIDATION = 1
    TEST = 2

    @property
    def word(self) -> str:
        """Its name in files and messages."""
        return ("train", "validation", "test")[self]


def held_out(ids: Array, fraction: float, seed: int, purpose: str = "held-out") -> Array:
    """Choose about ``fraction`` of many IDs, not exactly: each by its own draw from the ID and the seed.

    Returns a mask over ``ids``.
    """
    if fraction <= 0:
        return np.zeros(len(ids), dtype=bool)
    draws = derive_each(seed, purpose, ids.tolist()).astype(np.float64)
    mask: Array = draws / 2.0**63 < fraction
    return mask


def folds_of(ids: Array, folds: int, seed: int) -> Array:
    """Return the fold 1 … ``folds`` of each ID: by its own draw from the ID and the seed, so of about equal size."""
    numbers: Array = derive_each(seed, "fold", ids.tolist()) % folds + 1
    return numbers


def parts_of(
    ids: Array, test_fraction: float, validation_fraction: float, seed: int, testing: Array | None = None
) -> Array:
    """Return the part of each ID.

    Args:
        ids: In any order.
        test_fraction: About so many are for testing, unless ``testing`` says which.
        validation_fraction: About so many of the others are for validation.
        seed: Draws both.
        testing: A mask of the IDs for testing.
    """
    if testing is None:
        testing = held_out(ids, test_fraction, seed)
    validation = held_out(ids, validation_fraction, seed, "validation") & ~testing
    parts: Array = np.select([testing, validation], [Part.TEST, Part.VALIDATION], Part.TRAIN).astype(np.int8)
    return parts


def without_validation(parts: Array) -> Array:
    """Return the parts with validation samples among those for training."""
    result: Array = np.where(parts == Part.VALIDATION, Part.TRAIN, parts).astype(parts.dtype)
    return result
