"""Measures from sums over clients are those of all rows together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import labels_for, objective_of
from tdcd.training.metrics import measure
from tdcd.training.tally import added, measured, ranks, tally


@given(
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(0, 1000),
    st.sampled_from([("ce", 3), ("ce", 8), ("bce", 1), ("se", 1), ("se", 3)]),
    st.booleans(),
)
def test_sums_over_clients_make_the_measures_of_all_rows(
    rows: int, clients: int, seed: int, loss: tuple[str, int], ties: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    objective, width = objective_of(loss[0]), loss[1]
    labels = objective.prepare(labels_for(objective, rows, width, generator), width, torch.float64)
    scores = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    scores = scores.round() if ties else scores
    if loss[0] == "se":
        scores, labels = scores + 1e6, labels + 1e6  # far from zero
    owner = torch.randint(clients, (rows,), generator=generator)
    ranked = ranks(objective, scores)
    parts = [tally(objective, scores[owner == k], labels[owner == k], ranked[owner == k]) for k in range(clients)]
    expected = measure(objective, scores, labels)
    expected.pop("auprc", None)
    assert measured(objective, added(objective, parts)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_constant_target() -> None:
    objective, y = objective_of("se"), torch.full((4, 1), 2.0, dtype=torch.float64)
    for scores in (y, y + 1):
        result = measured(objective, tally(objective, scores, y, ranks(objective, scores)))
        assert result == pytest.approx(measure(objective, scores, y))
