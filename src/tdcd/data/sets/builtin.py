"""Data sets that come with scikit-learn, so that everybody has them.

scikit-learn is imported when one is read: it takes as much memory as some of the other sets.
"""

from pathlib import Path

import numpy as np

from tdcd.core.streams import preserve_random
from tdcd.data.features import Columns, Strips
from tdcd.data.sets.base import Dataset, Published, whole


def _digits(directory: Path) -> Dataset:  # noqa: ARG001
    with preserve_random():
        from sklearn.datasets import load_digits

    bunch = load_digits()
    return Dataset(
        ids=np.arange(len(bunch.target)),
        labels=bunch.target,
        shape=(1, 8, 8),
        pieces=whole(bunch.images[:, np.newaxis].astype(np.float32)),
        classes=tuple(str(digit) for digit in range(10)),
        divisor=16.0,
    )


def _breast_cancer(directory: Path) -> Dataset:  # noqa: ARG001
    with preserve_random():
        from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return Dataset(
        ids=np.arange(len(bunch.target)),
        labels=1 - bunch.target,
        shape=(30,),
        pieces=whole(bunch.data),
        columns=tuple(str(name) for name in bunch.feature_names),
        classes=("benign", "malignant"),
        standardise=np.ones(30, dtype=bool),
    )


DIGITS = Published(
    name="digits",
    what="1,797 handwritten digits of 8 × 8 pixels",
    task="10 classes",
    origin="",
    layout="",
    features=Strips(silos=2),
    read=_digits,
)
BREAST_CANCER = Published(
    name="breast-cancer",
    what="569 tumours, ten measurements each: their means, standard errors and worst values",
    task="binary: malignant or not",
    origin="",
    layout="",
    features=Columns(silos={"mean": [*range(10)], "error": [*range(10, 20)], "worst": [*range(20, 30)]}),
    read=_breast_cancer,
)
