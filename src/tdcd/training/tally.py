"""Loss and metrics from sums over rows, which clients whose labels are private send in place of their labels.

The sums of all clients make the measures of all rows. For the area under the ROC curve, clients receive the rank of
each row's score among all rows: the sum of the positives' ranks is enough. The area under the precision-recall curve is
no such sum, and is left out.
"""

from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from tdcd.core.objective import BinaryCrossEntropy, CrossEntropy, Objective, SquaredError
from tdcd.errors import ModelError

Tally = Mapping[str, list[float]]
"""Sums over some rows, by name; the same names for the same loss and width."""


def ranks(objective: Objective, scores: Tensor) -> Tensor:
    """Return the rank of each row's score for every class, of all rows, from 1, ties sharing theirs: (M, E)."""
    values = scores.double().softmax(-1) if isinstance(objective, CrossEntropy) else scores.double()
    columns = []
    for column in values.unbind(1):
        _, places, counts = torch.unique(column, return_inverse=True, return_counts=True)
        last = counts.cumsum(0)
        columns.append((last - (counts - 1).double() / 2)[places])
    return torch.stack(columns, 1)


def tally(objective: Objective, scores: Tensor, labels: Tensor, ranked: Tensor) -> Tally:
    """Add up over a client's rows: scores (n, E), prepared labels, and the ranks (n, E) of these rows among all."""
    if not isinstance(objective, CrossEntropy | BinaryCrossEntropy | SquaredError):
        raise ModelError(f"no metrics are known for the loss {type(objective).__name__}")
    truth = labels.double() if labels.is_floating_point() else labels
    sums = {
        "rows": torch.tensor([float(len(scores))]),
        "loss": objective.losses(scores.double(), truth).sum().view(1),
    }
    predicted = objective.predictions(scores)
    if isinstance(objective, CrossEntropy | BinaryCrossEntropy):
        classes = scores.shape[1] if isinstance(objective, CrossEntropy) else 2
        truth, said = (torch.nn.functional.one_hot(y.long(), classes).double() for y in (labels, predicted))
        if classes > 5:
            best = scores.topk(5, dim=1).indices
            sums["top5"] = (best == labels.unsqueeze(1)).any(1).double().sum().view(1)
        of_class = truth if isinstance(objective, CrossEntropy) else truth[:, 1:]
        sums |= {"both": (truth * said).sum(0), "truth": truth.sum(0), "said": said.sum(0)}
        sums["ranks"] = (of_class * ranked).sum(0)
    else:
        y = labels.double()
        mean = y.mean(0) if len(y) else y.sum(0)
        sums |= {"error": (y - predicted.double()).square().sum(0), "mean": mean, "spread": (y - mean).square().sum(0)}
    return {name: values.double().tolist() for name, values in sums.items()}


def tally_lengths(objective: Objective, width: int) -> dict[str, int]:
    """Return the names of all sums for a loss, and how many numbers each has."""
    if isinstance(objective, SquaredError):
        return {"rows": 1, "loss": 1, "error": width, "mean": width, "spread": width}
    classes = width if isinstance(objective, CrossEntropy) else 2
    sums = {"rows": 1, "loss": 1, "both": classes, "truth": classes, "said": classes, "ranks": width}
    return sums | ({"top5": 1} if classes > 5 else {})


def why_not_tally(objective: Objective, width: int, sums: Tally, rows: int) -> str:
    """Return why sums cannot be those of so many rows, or nothing. Whoever sends them may have made them up."""
    if {key: len(values) for key, values in sums.items()} != tally_lengths(objective, width):
        return "it does not fit the loss"
    got = {name: np.array(values, dtype=np.float64) for name, values in sums.items()}
    if not all(np.isfinite(values).all() for values in got.values()):
        return "it holds numbers that are not finite"
    if got["rows"][0] != rows:
        return f"it is of {got['rows'][0]:g} rows, not {rows}"
    if got["loss"][0] < 0:
        return "its loss is negative"
    if isinstance(objective, SquaredError):
        return "its squares are negative" if min(got["error"].min(), got["spread"].min()) < 0 else ""
    counts = np.concatenate([got[name] for name in ("both", "truth", "said", "top5") if name in got])
    if (counts < 0).any() or (counts != np.floor(counts)).any():
        return "its counts are not whole numbers"
    if got["truth"].sum() != rows or got["said"].sum() != rows:
        return "its classes do not add up to its rows"
    if (got["both"] > np.minimum(got["truth"], got["said"])).any():
        return "more rows are right than there are"
    if "top5" in got and got["top5"][0] > rows:
        return "more rows are right than there are"
    return "its ranks are negative" if (got["ranks"] < 0).any() else ""


def added(tallies: Iterable[Tally]) -> Tally:
    """Add tallies up; means and squared deviations from them are joined so that nothing is lost by rounding."""
    return reduce(_two, tallies)


def _two(one: Tally, two: Tally) -> Tally:
    total = {name: [a + b for a, b in zip(values, two[name], strict=True)] for name, values in one.items()}
    if "mean" in one and total["rows"][0]:
        here, there, rows = one["rows"][0], two["rows"][0], total["rows"][0]
        gaps = [b - a for a, b in zip(one["mean"], two["mean"], strict=True)]
        total["mean"] = [a + gap * there / rows for a, gap in zip(one["mean"], gaps, strict=True)]
        total["spread"] = [
            spread + gap**2 * here * there / rows for spread, gap in zip(total["spread"], gaps, strict=True)
        ]
    return total


def measured(objective: Objective, sums: Tally) -> dict[str, float]:
    """Return the loss and the metrics of all rows that were added up. See ``measure``."""
    got = {name: np.array(values) for name, values in sums.items()}
    rows = float(got["rows"][0])
    result = {"loss": float(got["loss"][0]) / rows}
    if isinstance(objective, CrossEntropy | BinaryCrossEntropy):
        both, truth, said = got["both"], got["truth"], got["said"]
        result["accuracy"] = float(both.sum()) / rows
        f1 = 2 * both / np.maximum(truth + said, 1)
        result["f1"] = float(f1[truth + said > 0].mean() if isinstance(objective, CrossEntropy) else f1[1])
        if "top5" in got:
            result["top5"] = float(got["top5"][0]) / rows
        if (truth > 0).all():
            there = truth if isinstance(objective, CrossEntropy) else truth[1:]
            areas = (got["ranks"] - there * (there + 1) / 2) / (there * (rows - there))
            result["auroc"] = float(areas.mean())
    else:
        result["mse"] = float(got["error"].mean()) / rows
        if rows > 1:
            spread = got["spread"]
            exact = got["error"] == 0
            r2 = np.where(spread > 0, 1 - got["error"] / np.where(spread > 0, spread, 1.0), np.where(exact, 1.0, 0.0))
            result["r2"] = float(r2.mean())
    return result
