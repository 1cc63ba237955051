"""Intervals by Student's t, against tables and simulated samples."""

from math import sqrt
from statistics import fmean, stdev

import numpy as np
import pytest

from tdcd.experiments.intervals import t_interval, t_quantile


@pytest.mark.parametrize(
    ("free", "quantile"),
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (9, 2.26216),
        (10, 2.22814),
        (30, 2.04227),
        (120, 1.97993),
    ],
)
def test_quantiles_are_those_of_printed_tables(free: int, quantile: float) -> None:
    assert t_quantile(0.975, free) == pytest.approx(quantile, abs=1e-4)


def test_other_levels() -> None:
    assert t_quantile(0.95, 4) == pytest.approx(2.13185, abs=1e-4)
    assert t_quantile(0.995, 7) == pytest.approx(3.49948, abs=1e-4)
    assert t_quantile(0.5, 3) == pytest.approx(0.0, abs=1e-9)


def test_an_interval_by_hand() -> None:
    values = [0.7, 0.8, 0.75, 0.77, 0.73]
    half = 2.7764451 * stdev(values) / sqrt(5)
    assert t_interval(values) == pytest.approx((fmean(values) - half, fmean(values) + half))
    wider = 2.7764451 * stdev(values) * sqrt(1 / 5 + 1 / 4)
    assert t_interval(values, 1 / 4) == pytest.approx((fmean(values) - wider, fmean(values) + wider))
    assert t_interval([0.7]) is None


def test_it_covers_the_mean_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(3.0, 2.0, (2000, 4))
    covered = [low <= 3.0 <= high for low, high in map(t_interval, draws.tolist())]  # type: ignore[misc]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.015)
