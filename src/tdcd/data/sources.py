"""Data sets that need no download."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits

from tdcd.data.arrays import Array

SourceName = Literal["digits", "breast-cancer"]


@dataclass(frozen=True)
class Source:
    """A complete data set, split vertically into silos; row i has the ID i."""

    features: Mapping[str, Array]
    """A row for each sample in each silo."""
    labels: Array
    table: bool
    """Whether features are columns of different units, to be standardised."""


def digits() -> Source:
    """1,797 handwritten digits of 8×8 pixels; one silo has the left half of each image, one the right."""
    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, np.newaxis]
    return Source({"left": images[..., :4], "right": images[..., 4:]}, bunch.target, table=False)


def breast_cancer() -> Source:
    """569 tumours, ten measurements each: three silos have their means, standard errors and worst values.

    The label is 1 for a malignant tumour, 0 for a benign one.
    """
    bunch = load_breast_cancer()
    columns = bunch.data.astype(np.float32)
    blocks = {"mean": columns[:, :10], "error": columns[:, 10:20], "worst": columns[:, 20:]}
    return Source(blocks, 1 - bunch.target, table=True)


SOURCES: Mapping[SourceName, Callable[[], Source]] = {"digits": digits, "breast-cancer": breast_cancer}
