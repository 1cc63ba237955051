"""Curves over all thresholds: ROC, precision and recall, lift. Rows with one score lie on one point."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tdcd.data.arrays import Array
from tdcd.runs.quality import LiftGroup, Points

MOST_POINTS = 100
"""Of a curve in a record."""
GROUPS = 10
"""Of a table of lift."""


@dataclass(frozen=True)
class Ranking:
    """How many rows, and how many positive ones, have at least each score."""

    scores: Array
    """The distinct scores, the highest first."""
    rows: Array
    """Rows with at least this score."""
    positives: Array
    """Positive rows with at least this score."""

    @classmethod
    def of(cls, scores: Array, positive: Array) -> "Ranking":
        """Rank rows, at least one: scores (n,), and which rows are positive (n,)."""
        order = np.argsort(-scores, kind="stable")
        ranked = scores[order]
        last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
        return cls(ranked[last], last + 1, np.cumsum(positive[order].astype(np.int64))[last])

    @property
    def count(self) -> int:
        """All rows."""
        return int(self.rows[-1])

    @property
    def positive(self) -> int:
        """All positive rows."""
        return int(self.positives[-1])

    @property
    def negative(self) -> int:
        """All other rows."""
        return self.count - self.positive

    @cached_property
    def rates(self) -> tuple[Array, Array]:
        """The false and the true positive rate at every threshold, from nothing flagged to everything."""
        wrong, right = self.rows - self.positives, self.positives
        return np.append(0.0, wrong / self.negative), np.append(0.0, right / self.positive)

    def auroc(self) -> float:
        """Return the area under the ROC curve."""
        x, y = self.rates
        return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())

    def auprc(self) -> float:
        """Return the average precision, the area under the steps of the precision-recall curve."""
        found = np.diff(self.positives, prepend=0)
        return float((found * (self.positives / self.rows)).sum() / self.positive)

    def ks(self) -> float:
        """Return the largest distance between the shares of positive and of negative rows with at least some score."""
        x, y = self.rates
        return float(np.abs(y - x).max())

    def roc(self) -> Points:
        """Return points of the ROC curve."""
        x, y = self.rates
        return thin_out(x, y, x + y)

    def precision_recall(self) -> Points:
        """Return points of the precision-recall curve, the highest threshold first."""
        recall = self.positives / self.positive
        return thin_out(recall, self.positives / self.rows, recall)

    def lift(self) -> tuple[LiftGroup, ...]:
        """Return tenths of the rows by their scores, the highest first; of few rows, a group for each."""
        edges = np.rint(np.linspace(0, self.count, min(GROUPS, self.count) + 1)).astype(np.int64)
        found = np.interp(edges, np.append(0, self.rows), np.append(0, self.positives))
        share = self.positive / self.count
        return tuple(
            LiftGroup(int(rows), _short(own), _short(own / rows / share), _short(above / self.positive))
            for rows, own, above in zip(np.diff(edges), np.diff(found), found[1:], strict=True)
        )


def thin_out(x: Array, y: Array, along: Array, most: int = MOST_POINTS) -> Points:
    """Return at most so many points of a curve, evenly spaced along an ascending quantity, both ends among them."""
    if len(x) > most:
        wanted = np.linspace(along[0], along[-1], most)
        places = np.minimum(np.searchsorted(along, wanted), len(along) - 1)
        places[[0, -1]] = 0, len(along) - 1
        places = np.unique(places)
        x, y = x[places], y[places]
    return Points(tuple(map(_short, x)), tuple(map(_short, y)))


def _short(value: float) -> float:
    """Round to what a figure or a table can show."""
    return float(f"{value:.5g}")
