"""How far predictions of a regression are from what came true."""

import numpy as np

from tdcd.data.arrays import Array
from tdcd.runs.quality import PredictionBin, TargetQuality

QUANTILES = (1, 5, 25, 50, 75, 95, 99)
BINS = 20


def assess_target(name: str, predicted: Array, actual: Array) -> TargetQuality:
    """Return what is measured of one target: predicted and actual values (n,)."""
    residuals = actual - predicted
    measures = {
        "mae": float(np.abs(residuals).mean()),
        "rmse": float(np.sqrt(np.square(residuals).mean())),
        "bias": float(residuals.mean()),
    }
    spread = float(np.square(actual - actual.mean()).sum())
    if len(actual) > 1 and spread > 0:
        measures["r2"] = 1 - float(np.square(residuals).sum()) / spread
    quantiles = np.quantile(residuals, np.array(QUANTILES) / 100)
    named = {str(percent): float(value) for percent, value in zip(QUANTILES, quantiles, strict=True)}
    return TargetQuality(name, len(actual), measures, named, _bins(predicted, actual))


def _bins(predicted: Array, actual: Array) -> tuple[PredictionBin, ...]:
    """Return bins with about as many rows each, the lowest predictions first; equal predictions share a bin."""
    edges = np.quantile(predicted, np.linspace(0, 1, BINS + 1))
    places = np.searchsorted(edges[1:-1], predicted)
    bins = []
    for place in np.unique(places):
        there = places == place
        low, high = np.quantile(actual[there], (0.1, 0.9))
        mean, true = float(predicted[there].mean()), float(actual[there].mean())
        bins.append(PredictionBin(int(there.sum()), mean, true, float(low), float(high)))
    return tuple(bins)
