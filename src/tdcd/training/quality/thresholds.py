"""Thresholds for the binary loss: chosen on some samples, and what they make of others."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.data.arrays import Array
from tdcd.errors import DataError
from tdcd.runs.quality import Cut, OperatingPoint
from tdcd.training.quality.curves import Ranking

Best = Literal["f1", "youden"]
CRITERIA: tuple[Best, ...] = ("f1", "youden")
HALF = Cut(0.5, "half")


def best_threshold(probabilities: Array, positive: Array, criterion: Best) -> float:
    """Return the threshold with the best F1, or with the largest Youden's J, recall + specificity − 1.

    It lies half-way between two probabilities that occur, so that rounding moves no row across it; of several that are
    as good, it is the highest, which flags the fewest rows.

    Raises:
        DataError: all rows are of one class.
    """
    ranking = Ranking.of(probabilities, positive)
    if not ranking.positive or not ranking.negative:
        raise DataError(f"all {ranking.count:,} are {'positive' if ranking.positive else 'negative'}")
    if criterion == "f1":
        worth = 2 * ranking.positives / (ranking.rows + ranking.positive)
    else:
        wrong = ranking.rows - ranking.positives  # in whole numbers, so that ties are ties
        worth = ranking.positives * ranking.negative - wrong * ranking.positive
    place = int(np.argmax(worth))
    upper = float(ranking.scores[place])
    lower = float(ranking.scores[place + 1]) if place + 1 < len(ranking.scores) else 0.0
    middle = (upper + lower) / 2
    return middle if middle > lower else upper


def choose_cuts(objective: Objective, scores: Tensor, labels: Tensor, chosen_on: str) -> tuple[Cut, ...]:
    """Choose a threshold by every criterion, on samples that are not those to be measured.

    Args:
        objective: The binary loss.
        scores: Of validation samples, (M, 1).
        labels: As the loss wants them.
        chosen_on: The samples, in words.

    Raises:
        DataError: all rows are of one class.
    """
    probabilities, positive = objective.probabilities(scores.double()).numpy(), labels.numpy() == 1
    return tuple(Cut(best_threshold(probabilities, positive, best), best, chosen_on) for best in CRITERIA)


def operate(probabilities: Array, positive: Array, cuts: Sequence[Cut]) -> tuple[OperatingPoint, ...]:
    """Count what becomes of rows at each threshold."""
    points = []
    for cut in cuts:
        said = probabilities >= cut.threshold
        right, wrong = int((said & positive).sum()), int((said & ~positive).sum())
        missed = int(positive.sum()) - right
        spared = len(positive) - right - wrong - missed
        ratios = {
            "precision": (right, right + wrong),
            "recall": (right, right + missed),
            "specificity": (spared, spared + wrong),
            "f1": (2 * right, 2 * right + wrong + missed),
            "accuracy": (right + spared, len(positive)),
            "flagged": (right + wrong, len(positive)),
        }
        measures = {name: part / whole for name, (part, whole) in ratios.items() if whole}
        points.append(OperatingPoint(cut, right, wrong, missed, spared, measures))
    return tuple(points)
