"""Whether probabilities are frequencies."""

from collections.abc import Sequence

import numpy as np

from tdcd.data.arrays import Array
from tdcd.runs.quality import CalibrationBin

BINS = 10


def brier(probabilities: Array, positive: Array) -> float:
    """Return the mean squared distance of probabilities (n,) from what came true, 0 or 1."""
    return float(np.square(probabilities - positive).mean())


def brier_of_classes(probabilities: Array, labels: Array) -> float:
    """Return the mean over rows of the squared distance summed over all classes: from 0 to 2."""
    truth = np.eye(probabilities.shape[1])[labels]
    return float(np.square(probabilities - truth).sum(1).mean())


def calibrate(probabilities: Array, positive: Array, bins: int = BINS) -> tuple[CalibrationBin, ...]:
    """Return bins with about as many rows each, the lowest probabilities first; rows of one probability share a bin."""
    edges = np.quantile(probabilities, np.linspace(0, 1, bins + 1))
    places = np.searchsorted(edges[1:-1], probabilities)
    rows = np.bincount(places, minlength=bins)
    predicted = np.bincount(places, probabilities, minlength=bins)
    observed = np.bincount(places, positive.astype(np.float64), minlength=bins)
    return tuple(
        CalibrationBin(int(count), float(expected / count), float(came_true / count))
        for count, expected, came_true in zip(rows, predicted, observed, strict=True)
        if count
    )


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Return the mean distance between predicted and observed, over rows (ECE)."""
    return sum(one.rows * abs(one.predicted - one.observed) for one in bins) / sum(one.rows for one in bins)
