"""Confidence intervals of a mean over folds or splits, by Student's t."""

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import fmean, stdev

CONFIDENCE = 0.95


def t_interval(
    values: Sequence[float], shared: float = 0.0, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Return the interval mean ± t·s·√(1/n + shared) of n values; nothing for fewer than two.

    With ``shared = 0`` it is that of n independent values. Folds and splits train on nearly the same samples, so that
    it is too narrow for them; with ``shared`` the number of test samples over that of training samples, it is the
    interval of Nadeau and Bengio (Inference for the generalization error, 2003).
    """
    if len(values) < 2:
        return None
    mean, free = fmean(values), len(values) - 1
    half = t_quantile((1 + confidence) / 2, free) * stdev(values) * sqrt(1 / len(values) + shared)
    return mean - half, mean + half


def t_quantile(probability: float, free: int) -> float:
    """Return below which value a t-distributed number of so many degrees of freedom is with a probability ≥ ½."""
    low, high = 0.0, 1.0
    while (1 + _within(high, free)) / 2 < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + _within(middle, free)) / 2 < probability else (low, middle)
    return high


def _within(t: float, free: int) -> float:
    """Return the probability that a t-distributed number is between −t and t, a finite sum for whole degrees."""
    angle = atan(t / sqrt(free))
    odd = free % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for number in range(1 + odd, free, 2):
        total += term
        term *= cos(angle) ** 2 * number / (number + 1)
    return (angle + sin(angle) * total) * 2 / pi if odd else sin(angle) * total
