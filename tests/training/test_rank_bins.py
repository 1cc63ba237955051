"""The area under the precision-recall curve from counts in bins: the true one lies within the bound that is told."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from support import examples, labels_for, objective_of
from tdcd.training.metrics import measure
from tdcd.training.rank_bins import (
    LEAST,
    MOST_BINS,
    area_from_counts,
    choose_edges,
    count_in_bins,
    why_not_count,
    why_not_counts,
)
from tdcd.training.tally import added, bins_of, measured, ranks, tally, tally_lengths, why_not_tally


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(2, 400),
    st.integers(1, 5),
    st.integers(0, 10_000),
    st.sampled_from([("bce", 1), ("ce", 3), ("ce", 7)]),
    st.sampled_from([0, 1, 2]),
)
def test_the_true_area_lies_within_the_bound(
    rows: int, clients: int, seed: int, loss: tuple[str, int], digits: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    objective, width = objective_of(loss[0]), loss[1]
    labels = objective.prepare(labels_for(objective, rows, width, generator), width, torch.float64)
    scores = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    scores = scores if not digits else (scores * digits).round() / digits  # with ties
    owner = torch.randint(clients, (rows,), generator=generator)
    ranked = ranks(objective, scores)
    edges = choose_edges(ranked, owner)
    tallies = []
    for k in set(owner.tolist()):
        mine = owner == k
        assert not why_not_count(ranked[mine], edges), "what a hub asks for, clients answer"
        tallies.append(tally(objective, scores[mine], labels[mine], ranked[mine], edges))
        bins = bins_of(objective, edges)
        assert {name: len(values) for name, values in tallies[-1].items()} == tally_lengths(objective, width, bins)
        assert not why_not_tally(objective, width, tallies[-1], int(mine.sum()), bins)
    result, expected = measured(objective, added(objective, tallies)), measure(objective, scores, labels)
    assert ("auprc" in result) == ("auprc" in expected and edges.shape[1] > 0)
    if "auprc" in result:
        assert abs(result.pop("auprc") - expected["auprc"]) <= result.pop("auprc_error") + 1e-9
    expected.pop("auprc", None)
    assert result == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=6), st.integers(0, 10_000))
def test_any_order_within_bins_has_an_area_within_the_bound(bins: list[tuple[int, int]], seed: int) -> None:
    """Also with ties: a bin of several equal scores, or all of one."""
    random = np.random.default_rng(seed)
    rows, positives = [n for n, _ in bins], [min(n, p) for n, p in bins]
    if not sum(positives):
        return
    area = area_from_counts(rows, positives)
    scores, truth = [], []
    for place, (n, p) in enumerate(zip(rows, positives, strict=True)):
        truth += random.permutation([True] * p + [False] * (n - p)).tolist()
        scores += (place + np.sort(random.integers(0, random.integers(1, 8), n)) / 10).tolist()
    assert abs(metrics.average_precision_score(truth, scores) - area.value) <= area.error + 1e-9


def test_the_bound_is_met_by_the_worst_order() -> None:
    area = area_from_counts([50, 10], [10, 4])
    worst = [False] * 6 + [True] * 4 + [False] * 40 + [True] * 10
    true = metrics.average_precision_score(worst, range(60, 0, -1))
    assert true == pytest.approx(area.low)
    best = [True] * 4 + [False] * 6 + [True] * 10 + [False] * 40
    assert metrics.average_precision_score(best, [60 - k if k < 10 else 0.5 if k < 20 else 0 for k in range(60)]) == (
        pytest.approx(area.high)
    ), "the ten of the lower bin share a score"


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 500), st.integers(1, 20), st.integers(0, 1000))
def test_no_count_is_of_few_rows_of_a_client(rows: int, clients: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ranked = ranks(objective_of("ce"), torch.randn(rows, 3, generator=generator).round(decimals=1))
    owner = torch.randint(clients, (rows,), generator=generator)
    edges = choose_edges(ranked, owner)
    assert edges.shape[1] < MOST_BINS
    for k in set(owner.tolist()):
        counts, _ = count_in_bins(ranked[owner == k], torch.zeros(int((owner == k).sum()), 3), edges)
        mine = int((owner == k).sum())
        assert all(count == 0 or count >= LEAST or count == mine for count in counts.flatten().tolist())


def test_bins_are_fine_enough_to_be_of_use() -> None:
    """Three clients with 2,000 rows each, one row of five positive: within 0.01."""
    random = np.random.default_rng(7)
    scores = torch.tensor(random.normal(size=(6000, 1)))
    labels = torch.tensor((random.random(6000) < 1 / (1 + np.exp(2 - 1.5 * scores[:, 0].numpy()))).astype(float))
    objective, owner = objective_of("bce"), torch.arange(6000) % 3
    ranked = ranks(objective, scores)
    edges = choose_edges(ranked, owner)
    sums = [
        tally(objective, scores[own], labels[own], ranked[own], edges) for k in range(3) if (own := owner == k).any()
    ]
    result = measured(objective, added(objective, sums))
    true = metrics.average_precision_score(labels, scores)
    assert abs(result["auprc"] - true) <= result["auprc_error"] < 0.04
    assert abs(result["auprc"] - true) < 0.005


def test_a_client_refuses_bins_of_few_of_its_rows() -> None:
    ranked = torch.arange(1.0, 41.0, dtype=torch.float64).unsqueeze(1)
    assert not why_not_count(ranked, torch.tensor([[20.5]], dtype=torch.float64))
    assert why_not_count(ranked, torch.tensor([[3.5]], dtype=torch.float64)) == "counts of fewer than 10 of its rows"
    assert not why_not_count(ranked[:3], torch.tensor([[3.5]], dtype=torch.float64)), "its total it tells anyway"


@pytest.mark.parametrize(
    ("rows", "positives", "why"),
    [
        ([[6, 4]], [[2, 1]], ""),
        ([[6, 4]], [[2.5, 0.5]], "its counts in bins are not whole numbers"),
        ([[11, -1]], [[2, 1]], "its counts in bins are not whole numbers"),
        ([[6, 5]], [[2, 1]], "its counts in bins do not add up"),
        ([[6, 4]], [[2, 2]], "its counts in bins do not add up"),
        ([[8, 2]], [[0, 3]], "more rows of a bin are positive than there are"),
    ],
)
def test_counts_that_cannot_be(rows: list[list[float]], positives: list[list[float]], why: str) -> None:
    assert why_not_counts(np.array(rows), np.array(positives), 10, np.array([3.0])) == why
