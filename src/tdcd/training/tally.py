"""Loss and metrics from sums over rows, which clients whose labels are private send in place of their labels.

The sums of all clients make the measures of all rows. For the area under the ROC curve, clients receive the rank of
each row's score among all rows: the sum of the positives' ranks is enough. The area under the precision-recall curve is
no such sum; it is known up to a bound from counts of positives in bins of ranks, see rank_bins.
"""

from collections.abc import Iterable
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from tdcd.core.objectives import Objective, Tally
from tdcd.core.objectives.base import Sums, row_losses
from tdcd.core.objectives.classification import Classification
from tdcd.training.rank_bins import area_from_counts, count_in_bins, why_not_counts

BINNED = ("bin_rows", "bin_positives")
"""The names of counts in bins of ranks."""


def ranks(objective: Objective, scores: Tensor) -> Tensor:
    """Return the rank of each row's score for every class, of all rows, from 1, ties sharing theirs: (M, E)."""
    columns = []
    for column in objective.ranked(scores).unbind(1):
        _, places, counts = torch.unique(column, return_inverse=True, return_counts=True)
        last = counts.cumsum(0)
        columns.append((last - (counts - 1).double() / 2)[places])
    return torch.stack(columns, 1)


def tally(objective: Objective, scores: Tensor, labels: Tensor, ranked: Tensor, edges: Tensor | None = None) -> Tally:
    """Add up over a client's rows.

    Args:
        objective: The loss.
        scores: Of its rows, (n, E).
        labels: As ``prepare`` returned them.
        ranked: The ranks of these rows among all, (n, E).
        edges: The bins of ranks to count rows in, (E, B − 1), where there are some; see ``rank_bins``.
    """
    truth = labels.double() if labels.is_floating_point() else labels
    sums = {
        "rows": torch.tensor([float(len(scores))]),
        "loss": row_losses(objective, scores.double(), truth).sum().view(1),
        **objective.sums(scores, labels, ranked),
    }
    if bins_of(objective, edges) and edges is not None:
        width = scores.shape[1]
        one_hot = (labels.long().unsqueeze(1) == torch.arange(width)) if width > 1 else labels.unsqueeze(1) == 1
        counts = count_in_bins(ranked, one_hot, edges)
        sums |= {name: values.flatten() for name, values in zip(BINNED, counts, strict=True)}
    return {name: values.double().tolist() for name, values in sums.items()}


def bins_of(objective: Objective, edges: Tensor | None) -> int:
    """Return how many bins of ranks rows are counted in, for every class; none where counts would be of no use."""
    if edges is None or not edges.shape[1] or not isinstance(objective, Classification):
        return 0
    return edges.shape[1] + 1


def tally_lengths(objective: Objective, width: int, bins: int = 0) -> dict[str, int]:
    """Return the names of all sums for an objective, and how many numbers each has."""
    binned = dict.fromkeys(BINNED, width * bins) if bins else {}
    return {"rows": 1, "loss": 1, **objective.lengths(width), **binned}


def why_not_tally(objective: Objective, width: int, sums: Tally, rows: int, bins: int = 0) -> str:
    """Return why sums cannot be those of so many rows, or nothing. Whoever sends them may have made them up."""
    if {key: len(values) for key, values in sums.items()} != tally_lengths(objective, width, bins):
        return "it does not fit the loss"
    got = _arrays(sums)
    if not all(np.isfinite(values).all() for values in got.values()):
        return "it holds numbers that are not finite"
    if got["rows"][0] != rows:
        return f"it is of {got['rows'][0]:g} rows, not {rows}"
    if objective.nonnegative and got["loss"][0] < 0:
        return "its loss is negative"
    why = objective.why_not(got, rows)
    if why or not bins:
        return why
    there, positives = (got[name].reshape(width, bins) for name in BINNED)
    return why_not_counts(there, positives, rows, got["truth"][-width:])


def added(objective: Objective, tallies: Iterable[Tally]) -> Tally:
    """Add tallies up."""
    total = reduce(objective.add, map(_arrays, tallies))
    return {name: values.tolist() for name, values in total.items()}


def measured(objective: Objective, sums: Tally) -> dict[str, float]:
    """Return the loss and the metrics of all rows that were added up. See ``measure``."""
    got = _arrays(sums)
    rows = float(got["rows"][0])
    result = {"loss": float(got["loss"][0]) / rows, **objective.measure(got, rows)}
    if BINNED[0] in got and "auroc" in result:
        width = len(got["ranks"])
        there, positives = (got[name].reshape(width, -1) for name in BINNED)
        areas = [area_from_counts(*counts) for counts in zip(there, positives, strict=True)]
        result["auprc"] = float(np.mean([area.value for area in areas]))
        result["auprc_error"] = float(np.mean([area.error for area in areas]))
    return result


def areas_of(objective: Objective, sums: Tally) -> tuple[float, ...]:
    """Return the area under the ROC curve of each class against all others, where there are several with rows."""
    if objective.meaning != "classes" or not isinstance(objective, Classification):
        return ()
    got = _arrays(sums)
    return tuple(objective.areas(got, float(got["rows"][0])).tolist())


def _arrays(sums: Tally) -> Sums:
    return {name: np.array(values, dtype=np.float64) for name, values in sums.items()}
