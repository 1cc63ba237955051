"""What a model's scores are worth, as fits the loss. Metrics that are undefined on a set are left out."""

import torch
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.core.objectives.classification import Classification
from tdcd.training.tally import areas_of, measured, ranks, tally


def measure(objective: Objective, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the loss and the metrics of scores (M, E) against prepared labels.

    They are made of the sums that clients whose labels are private send; only the area under the precision-recall curve
    needs the rows themselves to be exact.
    """
    scores, labels = scores.cpu(), labels.cpu()
    ranked = ranks(objective, scores)
    result = measured(objective, tally(objective, scores, labels, ranked))
    if "auroc" in result and isinstance(objective, Classification):
        width = scores.shape[1]
        classes = range(width) if objective.classes(width) == width else (1,)
        areas = [_average_precision(rank, labels == k) for k, rank in zip(classes, ranked.unbind(1), strict=True)]
        result["auprc"] = float(torch.stack(areas).mean())
    return result


def class_areas(objective: Objective, scores: Tensor, labels: Tensor) -> tuple[float, ...]:
    """Return the area under the ROC curve of each class against all others, where there are several with rows."""
    scores, labels = scores.cpu(), labels.cpu()
    return areas_of(objective, tally(objective, scores, labels, ranks(objective, scores)))


def _average_precision(ranked: Tensor, positive: Tensor) -> Tensor:
    """Return the mean, over positive rows, of the precision among all rows that rank at least as high."""
    _, places, counts = torch.unique(ranked, return_inverse=True, return_counts=True)
    positives = torch.bincount(places, positive.double(), minlength=len(counts))
    at_least, hits = (count.flip(0).cumsum(0).flip(0) for count in (counts, positives))
    return (positives * hits / at_least).sum() / positives.sum()
