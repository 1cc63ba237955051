"""Loss and metrics from sums over rows, which clients whose labels are private send in place of their labels.

The sums of all clients make the measures of all rows. For the area under the ROC curve, clients receive the rank of
each row's score among all rows: the sum of the positives' ranks is enough. The area under the precision-recall curve is
no such sum, and is left out.
"""

from collections.abc import Iterable
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from tdcd.core.objectives import Objective, Tally
from tdcd.core.objectives.base import Sums, row_losses


def ranks(objective: Objective, scores: Tensor) -> Tensor:
    """Return the rank of each row's score for every class, of all rows, from 1, ties sharing theirs: (M, E)."""
    columns = []
    for column in objective.ranked(scores).unbind(1):
        _, places, counts = torch.unique(column, return_inverse=True, return_counts=True)
        last = counts.cumsum(0)
        columns.append((last - (counts - 1).double() / 2)[places])
    return torch.stack(columns, 1)


def tally(objective: Objective, scores: Tensor, labels: Tensor, ranked: Tensor) -> Tally:
    """Add up over a client's rows: scores (n, E), prepared labels, and the ranks (n, E) of these rows among all."""
    truth = labels.double() if labels.is_floating_point() else labels
    sums = {
        "rows": torch.tensor([float(len(scores))]),
        "loss": row_losses(objective, scores.double(), truth).sum().view(1),
        **objective.sums(scores, labels, ranked),
    }
    return {name: values.double().tolist() for name, values in sums.items()}


def tally_lengths(objective: Objective, width: int) -> dict[str, int]:
    """Return the names of all sums for an objective, and how many numbers each has."""
    return {"rows": 1, "loss": 1, **objective.lengths(width)}


def why_not_tally(objective: Objective, width: int, sums: Tally, rows: int) -> str:
    """Return why sums cannot be those of so many rows, or nothing. Whoever sends them may have made them up."""
    if {key: len(values) for key, values in sums.items()} != tally_lengths(objective, width):
        return "it does not fit the loss"
    got = _arrays(sums)
    if not all(np.isfinite(values).all() for values in got.values()):
        return "it holds numbers that are not finite"
    if got["rows"][0] != rows:
        return f"it is of {got['rows'][0]:g} rows, not {rows}"
    if objective.nonnegative and got["loss"][0] < 0:
        return "its loss is negative"
    return objective.why_not(got, rows)


def added(objective: Objective, tallies: Iterable[Tally]) -> Tally:
    """Add tallies up."""
    total = reduce(objective.add, map(_arrays, tallies))
    return {name: values.tolist() for name, values in total.items()}


def measured(objective: Objective, sums: Tally) -> dict[str, float]:
    """Return the loss and the metrics of all rows that were added up. See ``measure``."""
    got = _arrays(sums)
    rows = float(got["rows"][0])
    return {"loss": float(got["loss"][0]) / rows, **objective.measure(got, rows)}


def _arrays(sums: Tally) -> Sums:
    return {name: np.array(values, dtype=np.float64) for name, values in sums.items()}
