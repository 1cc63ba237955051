"""The area under the precision-recall curve from counts in bins of ranks, with a bound on its error.

Clients whose labels are private send how many positive rows they have in each bin of ranks, in place of labels. Within
a bin the order of positive and other rows is unknown, so the area is known up to a bound: all positive rows of a bin
may be its highest, or its lowest.

A count of few rows nearly names their labels. So no count is of fewer than ``LEAST`` rows of a client, unless it is of
all that the client has, whose total it sends anyway. The hub chooses bins by this rule, and each client verifies it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]
LEAST = 10
"""Rows of a client that a count is of, at least, unless it is of all or none of them."""
MOST_BINS = 100
"""Of a class."""
MOST_NUMBERS = 2000
"""Of all classes together, so that many classes have fewer bins each."""


def choose_edges(ranked: Tensor, owner: Tensor) -> Tensor:
    """Choose the bins of ranks that clients count in.

    Starting from one bin, that which may add most to the error is cut in halves: the largest compared with all rows
    down to its end. So bins are fine at the top, where precision changes fast, as far as clients' rows allow.

    Args:
        ranked: The rank of each row for every class, from 1 for the lowest score, ties sharing theirs: (M, E).
        owner: The number of the client that holds each row, (M,).

    Returns:
        For every class the ascending ranks between bins, (E, B − 1), filled up with infinity: bins above are empty.
    """
    width = ranked.shape[1]
    most = min(MOST_BINS, MOST_NUMBERS // width)
    rows = np.bincount(owner.numpy())
    classes = [_choose(column.numpy(), owner.numpy(), rows, most) for column in ranked.unbind(1)]
    edges = np.full((width, max(map(len, classes))), np.inf)
    for own, chosen in zip(edges, classes, strict=True):
        own[: len(chosen)] = chosen
    return torch.from_numpy(edges)


def _choose(ranked: Array, owner: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], most: int) -> list[float]:
    order = np.argsort(-ranked, kind="stable")
    ranked, owner = ranked[order], owner[order]
    between = np.flatnonzero(ranked[1:] != ranked[:-1]) + 1  # places where a bin may begin: never among ties
    waiting, edges = [(-1.0, 0, len(ranked))], list[float]()
    while waiting and len(edges) + 1 < most:
        _, start, stop = heapq.heappop(waiting)
        own = between[np.searchsorted(between, start, "right") : np.searchsorted(between, stop, "left")]
        if not len(own):
            continue
        middle = int(own[np.abs(own - (start + stop) / 2).argmin()])
        halves = [(start, middle), (middle, stop)]
        if all(_allowed(np.bincount(owner[a:b], minlength=len(rows)), rows) for a, b in halves):
            edges.append(float(ranked[middle - 1] + ranked[middle]) / 2)
            for a, b in halves:
                heapq.heappush(waiting, (-(b - a) / b, a, b))
    return sorted(edges)


def _allowed(counts: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> bool:
    """Tell whether a bin with so many rows of each client may be counted."""
    return bool(((counts >= LEAST) | (counts == 0) | (counts == rows)).all())


def count_in_bins(ranked: Tensor, positive: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
    """Count a client's rows, and its positive ones, in the bins of every class: (E, B) each.

    Args:
        ranked: The ranks of its rows, (n, E).
        positive: Which of them are of which class, (n, E), 0 or 1.
        edges: See ``choose_edges``.
    """
    bins = edges.shape[1] + 1
    rows, positives = [], []
    for own, truth, between in zip(ranked.unbind(1), positive.unbind(1), edges.unbind(0), strict=True):
        places = torch.searchsorted(between.contiguous(), own.contiguous())
        rows.append(torch.bincount(places, minlength=bins).double())
        positives.append(torch.bincount(places, truth.double(), minlength=bins))
    return torch.stack(rows), torch.stack(positives)


def why_not_count(ranked: Tensor, edges: Tensor) -> str:
    """Return why a client does not count its rows in some bins, or nothing: each would tell too much of too few."""
    rows, _ = count_in_bins(ranked, torch.zeros_like(ranked), edges)
    few = (rows > 0) & (rows < LEAST) & (rows < len(ranked))
    return f"counts of fewer than {LEAST} of its rows" if few.any() else ""


def why_not_counts(rows: Array, positives: Array, count: int, truth: Array) -> str:
    """Return why counts (E, B) cannot be those of a client, or nothing."""
    every = np.concatenate([rows, positives])
    if (every < 0).any() or (every != np.floor(every)).any():
        return "its counts in bins are not whole numbers"
    if (rows.sum(1) != count).any() or (positives.sum(1) != truth).any():
        return "its counts in bins do not add up"
    return "more rows of a bin are positive than there are" if (positives > rows).any() else ""


@dataclass(frozen=True)
class Area:
    """An area under a precision-recall curve, as far as it is known."""

    value: float
    """What it is if positive rows are spread evenly over their bins."""
    low: float
    high: float
    """It is between these, however rows lie in their bins."""

    @property
    def error(self) -> float:
        """How far the true value may be from this one, at most."""
        return max(self.high - self.value, self.value - self.low)


def area_from_counts(rows: Sequence[float] | Array, positives: Sequence[float] | Array) -> Area:
    """Return the average precision from counts in bins, the lowest ranks first.

    In a bin with n rows, p of them positive, below N rows with P positive ones, the i-th positive row from the top has
    a precision of at least (P + i) / (N + n − p + i): all others of the bin lie above it. It is at most
    (P + p) / (N + p), as if all p came first and shared a score: rows that do count to the end of theirs.
    """
    n, p = (np.asarray(values, dtype=np.float64)[::-1] for values in (rows, positives))
    above, found = np.cumsum(n) - n, np.cumsum(p) - p
    n, p, above, found = (values[p > 0] for values in (n, p, above, found))
    low = _precisions(found, above + n - p, p)
    high = p * (found + p) / (above + p)
    even = np.clip(p / n * _precisions(found, above * p / n, p), low, high)
    return Area(*(float(values.sum() / p.sum()) for values in (even, low, high)))


def _precisions(found: Array, above: Array, p: Array) -> Array:
    """Return Σ (found + i) / (above + i) over i = 1 … p, in closed form."""
    digamma = torch.special.digamma
    ends, begins = (digamma(torch.from_numpy(values)).numpy() for values in (above + p + 1, above + 1))
    result: Array = p + (found - above) * (ends - begins)
    return result
