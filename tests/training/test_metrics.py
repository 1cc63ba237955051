"""Loss and metrics against references of a few lines, which count pairs and rows one by one.

Measured where labels are at hand, and from sums of clients that keep theirs: both are held against the reference.
"""

from fractions import Fraction
from itertools import product
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from support import examples
from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, Objective, SquaredError
from tdcd.training.metrics import measure
from tdcd.training.tally import added, measured, ranks, tally

SCORE = st.sampled_from([-3.0, -1.5, -0.5, 0.0, 0.25, 0.5, 1.0, 2.0])
"""Few different ones: ties are where such counts go wrong."""


def area(scores: list[float], positive: list[bool]) -> float:
    """Return the part of pairs, one of each kind, in which the positive is higher; a tie is half a pair."""
    pairs = list(product([s for s, p in zip(scores, positive, strict=True) if p],
                         [s for s, p in zip(scores, positive, strict=True) if not p]))  # fmt: skip
    return float(sum(Fraction(1, 2) if a == b else Fraction(int(a > b)) for a, b in pairs) / len(pairs))


def precision_area(scores: list[float], positive: list[bool]) -> float:
    """Return the mean precision over all positives, those with equal scores taken in together."""
    total, result = sum(positive), Fraction(0)
    for threshold in sorted(set(scores)):
        above = [p for s, p in zip(scores, positive, strict=True) if s >= threshold]
        here = sum(p for s, p in zip(scores, positive, strict=True) if s == threshold)
        result += Fraction(here, total) * Fraction(sum(above), len(above))
    return float(result)


def f1(truth: list[int], said: list[int], of: int) -> float | None:
    """Return F1 of a class; none if it neither occurs nor is predicted."""
    both = sum(t == s == of for t, s in zip(truth, said, strict=True))
    either = sum(t == of for t in truth) + sum(s == of for s in said)
    return 2 * both / either if either else None


def softmax(row: list[float]) -> list[float]:
    powers = [exp(z - max(row)) for z in row]
    return [power / sum(powers) for power in powers]


def null_loss(objective: Objective, y: Any) -> float:
    """Return the lowest mean loss of a constant prediction, from its definition."""
    shares = [float(np.mean(y == k)) for k in range(int(max(y)) + 1) if (y == k).any()]
    if isinstance(objective, BinaryCrossEntropy) and len(shares) == 2:
        w = objective.positive_weight
        p = w * shares[1] / (w * shares[1] + shares[0])
        return -(w * shares[1] * log(p) + shares[0] * log(1 - p))
    return -sum(share * log(share) for share in shares)


def scikit_learn(objective: Objective, scores: torch.Tensor, labels: Any) -> dict[str, float]:
    """Return what scikit-learn makes of the same scores, where it does not warn that something is undefined."""
    y, said = labels.numpy(), objective.predictions(scores).numpy()
    if isinstance(objective, SquaredError):
        return {"mse": metrics.mean_squared_error(y, said)} | ({"r2": metrics.r2_score(y, said)} if len(y) > 1 else {})
    many = isinstance(objective, CrossEntropy)
    result = {"accuracy": metrics.accuracy_score(y, said)}
    result["f1"] = metrics.f1_score(y, said, average="macro" if many else "binary", zero_division=0)
    if len(set(y.tolist())) == (scores.shape[1] if many else 2):
        truth = np.eye(scores.shape[1])[y] if many else y
        values = objective.probabilities(scores) if many else scores.squeeze(1)
        result["auroc"] = metrics.roc_auc_score(truth, values, average="macro")
        result["auprc"] = metrics.average_precision_score(truth, values, average="macro")
    return result


def check(objective: Objective, rows: list[list[float]], labels: Any, expected: dict[str, float], cuts: int) -> None:
    scores = torch.tensor(rows, dtype=torch.float64)
    result = measure(objective, scores, labels)
    if not isinstance(objective, SquaredError):
        expected = expected | {"null_loss": null_loss(objective, labels.numpy())}
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    assert set(result) == set(expected)
    for name, value in scikit_learn(objective, scores, labels).items():
        assert result[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    ranked = ranks(objective, scores)
    sums = added(
        objective,
        (
            tally(objective, scores[k::cuts], labels[k::cuts], ranked[k::cuts])
            for k in range(cuts)
            if len(scores[k::cuts])
        ),
    )
    kept = measured(objective, sums)
    assert set(kept) == set(expected) - {"auprc"}
    for name, value in kept.items():
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-12), f"{name}, from sums"


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(SCORE, st.booleans()), min_size=1, max_size=25), st.sampled_from([1.0, 2.5]), st.integers(1, 4)
)
def test_the_binary_loss(rows: list[tuple[float, bool]], weight: float, cuts: int) -> None:
    z, positive = [s for s, _ in rows], [p for _, p in rows]
    truth, said = [int(p) for p in positive], [int(s > 0) for s in z]
    losses = [weight * log(1 + exp(-s)) if p else log(1 + exp(s)) for s, p in rows]
    expected = {
        "loss": sum(losses) / len(rows),
        "accuracy": sum(t == s for t, s in zip(truth, said, strict=True)) / len(rows),
        "f1": f1(truth, said, 1) or 0.0,
    }
    if len(set(truth)) == 2:
        expected |= {"auroc": area(z, positive), "auprc": precision_area(z, positive)}
    labels = torch.tensor(truth, dtype=torch.float64)
    check(BinaryCrossEntropy(weight), [[s] for s in z], labels, expected, cuts)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(2, 7).flatmap(lambda classes: st.tuples(st.just(classes), st.lists(st.tuples(
    st.lists(st.floats(-4, 4), min_size=classes, max_size=classes, unique=True), st.integers(0, classes - 1)),
    min_size=1, max_size=25))), st.integers(1, 4))  # fmt: skip
def test_several_classes(drawn: tuple[int, list[tuple[list[float], int]]], cuts: int) -> None:
    classes, rows = drawn
    truth, said = [y for _, y in rows], [max(range(classes), key=lambda c: z[c]) for z, _ in rows]
    chances = [softmax(z) for z, _ in rows]
    if any(len(set(column)) < len(column) for column in chances):
        return  # numbers too near to each other to be told apart
    known = [value for c in range(classes) if (value := f1(truth, said, c)) is not None]
    expected = {
        "loss": -sum(log(p[y]) for p, y in zip(chances, truth, strict=True)) / len(rows),
        "accuracy": sum(t == s for t, s in zip(truth, said, strict=True)) / len(rows),
        "f1": sum(known) / len(known),
    }
    if classes > 5:
        top = [y in sorted(range(classes), key=lambda c: -z[c])[:5] for z, y in rows]
        expected["top5"] = sum(top) / len(rows)
    if len(set(truth)) == classes:
        columns = [([p[c] for p in chances], [y == c for y in truth]) for c in range(classes)]
        if all(abs(a - b) > 1e-9 or a == b for scores, _ in columns for a, b in product(scores, scores)):
            expected["auroc"] = sum(area(*column) for column in columns) / classes
            expected["auprc"] = sum(precision_area(*column) for column in columns) / classes
        else:
            return
    check(CrossEntropy(), [z for z, _ in rows], torch.tensor(truth), expected, cuts)


@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.tuples(SCORE, SCORE, SCORE, SCORE), min_size=1, max_size=25),
    st.sampled_from([0.0, 1e6]),
    st.integers(1, 4),
)
def test_regression(rows: list[tuple[float, ...]], offset: float, cuts: int) -> None:
    """Two targets; far from zero, sums of squares would cancel."""
    scores, labels = [[a + offset, b + offset] for a, b, _, _ in rows], [[c + offset, d + offset] for *_, c, d in rows]
    errors = [
        [Fraction(s) - Fraction(y) for s, y in zip(z, t, strict=True)] for z, t in zip(scores, labels, strict=True)
    ]
    total = float(sum(e * e for row in errors for e in row) / (2 * len(rows)))
    expected = {"loss": total, "mse": total}
    if len(rows) > 1:
        parts = []
        for k in (0, 1):
            y = [Fraction(row[k]) for row in labels]
            spread, error = sum((v - sum(y) / len(y)) ** 2 for v in y), sum(row[k] ** 2 for row in errors)
            parts.append(float(1 - error / spread) if spread else float(not error))
        expected["r2"] = sum(parts) / 2
    check(SquaredError(), scores, torch.tensor(labels, dtype=torch.float64), expected, cuts)
