"""Theorem 1, by hand and in its special cases; and measured on losses whose constants are known."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tdcd
from tdcd.theory import balanced_rate, bound, largest_rate


def test_by_hand() -> None:
    terms = bound(0.1, 2, 5, smoothness=3.0, client_smoothness=4.0, variances=[0.5, 1.5], decrease=6.0)
    assert terms.descent == pytest.approx(4 * 6 / (0.1 * 2 * 5))  # 24
    assert terms.noise == pytest.approx(4 * (0.1 * 3 * 2) * 2)  # 4.8
    assert terms.staleness == pytest.approx(4 * (4 * 0.01 * 4 * 16) * 2)  # 20.48
    assert terms.coupling == pytest.approx(4 * (8 * 0.001 * 8 * 3 * 16) * 2)  # 24.576
    assert terms.total == pytest.approx(24 + 4.8 + 20.48 + 24.576)
    assert terms.shares()["noise"] == pytest.approx(4.8 / 73.856)
    assert largest_rate(5, 2.0, 3.0) == pytest.approx(1 / 120)
    assert largest_rate(1, 2.0, 0.5) == pytest.approx(1 / 16)


@given(st.integers(1, 50), st.integers(1, 10**6), st.floats(0.01, 100), st.floats(0.01, 100), st.floats(0.01, 100))
def test_special_cases(steps: int, rounds: int, smooth: float, variance: float, decrease: float) -> None:
    most = largest_rate(steps, smooth, smooth)
    rate = balanced_rate(steps, rounds, smooth, smooth, [variance], decrease)
    assert rate <= most
    whole = bound(rate, steps, rounds, smooth, smooth, [variance], decrease)
    silos = bound(rate, steps, rounds, smooth, smooth, [variance / 4] * 4, decrease)  # N counts by the sum alone
    assert silos.total == pytest.approx(whole.total)
    one = bound(rate * steps, 1, rounds, smooth, smooth, [variance], decrease)  # Q counts with the rate alone
    assert one.total == pytest.approx(whole.total)
    if rate < most:
        assert whole.descent == pytest.approx(whole.noise)
        assert rate == pytest.approx(2 * balanced_rate(2 * steps, rounds, smooth, smooth, [variance], decrease))
        assert rate == pytest.approx(2 * balanced_rate(steps, 4 * rounds, smooth, smooth, [variance], decrease))
    assert balanced_rate(steps, rounds, smooth, smooth, [0.0], decrease) == most


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rate": 0.0}, "rate: a number above 0"),
        ({"rounds": -1}, "rounds: a number above 0"),
        ({"smoothness": float("inf")}, "smoothness: a number above 0"),
        ({"variances": []}, "variances: one number of at least 0 for each silo"),
        ({"variances": [1.0, -1.0]}, "variances: one number"),
        ({"decrease": float("nan")}, "decrease: a number of at least 0"),
    ],
)
def test_numbers_out_of_range(change: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"rate": 0.1, "local_steps": 1, "rounds": 1, "smoothness": 1.0, "client_smoothness": 1.0}
    given |= {"variances": [1.0], "decrease": 1.0}
    with pytest.raises(tdcd.JobError, match=says):
        bound(**{**given, **change})


@pytest.mark.parametrize(("silos", "steps"), [(1, 1), (2, 1), (2, 5), (3, 4)])
def test_a_training_stays_below_the_bound(silos: int, steps: int) -> None:
    """Least squares of linear models on all rows: the gradient is exact, so the noise is 0, and constants are known."""
    draw = np.random.default_rng(silos * 10 + steps)
    rows = {f"s{j}": draw.normal(size=(60, 3)) for j in range(silos)}
    joined = np.concatenate([np.concatenate([x, np.ones((60, 1))], 1) for x in rows.values()], 1)
    y = draw.normal(size=60)
    smooth = 2 * np.linalg.eigvalsh(joined.T @ joined / 60)[-1]  # of the mean squared error
    made = tdcd.Federation.from_silos([tdcd.Silo(j, x, [range(60)]) for j, x in rows.items()], y)
    rounds = 40
    rate = largest_rate(steps, smooth, smooth)
    settings = tdcd.Settings(loss="squared-error", rounds=rounds, local_steps=steps, rate=rate, precision="float64")
    simulation = tdcd.Simulation(made, tdcd.models.Linear(), settings)
    state, norms, losses = simulation.init(), [], []
    for _ in range(rounds + 1):
        weights = np.concatenate([w.reshape(-1).numpy() for silo in rows for w in state.weights[silo].values()])
        residual = joined @ weights - y
        norms.append(float(np.square(2 * joined.T @ residual / 60).sum()))
        losses.append(float(np.square(residual).mean()))
        if len(norms) <= rounds:
            state = simulation.round(state)
    measured = np.mean(norms[:rounds])
    least = np.square(joined @ np.linalg.lstsq(joined, y, rcond=None)[0] - y).mean()
    said = bound(rate, steps, rounds, smooth, smooth, [0.0] * silos, losses[0] - least)
    assert losses[-1] < losses[0]
    assert 0 < measured <= said.total
