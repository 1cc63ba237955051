"""What classifications have in common: counts of classes, and ranks of scores."""

from abc import abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.core.objectives.base import NULL_LOSS, Objective, Sums


class Classification(Objective):
    """A loss over classes. The area under the ROC curve is made of the ranks of the positive rows."""

    nonnegative = True

    @abstractmethod
    def classes(self, width: int) -> int:
        """Return how many classes there are."""

    def sums(self, scores: Tensor, labels: Tensor, ranks: Tensor) -> dict[str, Tensor]:
        classes = self.classes(scores.shape[1])
        one_hot = torch.nn.functional.one_hot
        truth, said = (one_hot(y.long(), classes).double() for y in (labels, self.predictions(scores)))
        sums = {"both": (truth * said).sum(0), "truth": truth.sum(0), "said": said.sum(0)}
        sums["ranks"] = (truth[:, -ranks.shape[1] :] * ranks).sum(0)  # of one logit: the rank of the positive class
        if classes > 5:
            best = scores.topk(5, dim=1).indices
            sums["top5"] = (best == labels.unsqueeze(1)).any(1).double().sum().view(1)
        return sums

    def lengths(self, width: int) -> dict[str, int]:
        classes = self.classes(width)
        sums = {"both": classes, "truth": classes, "said": classes, "ranks": width}
        return sums | ({"top5": 1} if classes > 5 else {})

    def why_not(self, sums: Sums, rows: int) -> str:
        counts = np.concatenate([sums[name] for name in ("both", "truth", "said", "top5") if name in sums])
        if (counts < 0).any() or (counts != np.floor(counts)).any():
            return "its counts are not whole numbers"
        if sums["truth"].sum() != rows or sums["said"].sum() != rows:
            return "its classes do not add up to its rows"
        if (sums["both"] > np.minimum(sums["truth"], sums["said"])).any():
            return "more rows are right than there are"
        if "top5" in sums and sums["top5"][0] > rows:
            return "more rows are right than there are"
        return "its ranks are negative" if (sums["ranks"] < 0).any() else ""

    def measure(self, sums: Sums, rows: float) -> dict[str, float]:
        both, truth, said = sums["both"], sums["truth"], sums["said"]
        f1 = 2 * both / np.maximum(truth + said, 1)
        single = len(sums["ranks"]) < len(truth)
        result = {
            "accuracy": float(both.sum()) / rows,
            "f1": float(f1[1] if single else f1[truth + said > 0].mean()),
        }
        if "top5" in sums:
            result["top5"] = float(sums["top5"][0]) / rows
        if len(areas := self.areas(sums, rows)):
            result["auroc"] = float(areas.mean())
        return result | {NULL_LOSS: self.null_loss(truth / rows)}

    def class_weights(self, classes: int) -> npt.NDArray[np.float64]:
        """Return what a row of each class weighs in the loss."""
        return np.ones(classes)

    def null_loss(self, shares: npt.NDArray[np.float64]) -> float:
        """Return the lowest loss of a constant prediction, given the share of each class."""
        weighed = (shares * self.class_weights(len(shares)))[shares > 0]
        return -float((weighed * np.log(weighed / weighed.sum())).sum())

    def areas(self, sums: Sums, rows: float) -> npt.NDArray[np.float64]:
        """Return the area under the ROC curve of each class against all others, of one logit of the positive class.

        None if a class has no rows.
        """
        if not (sums["truth"] > 0).all():
            return np.empty(0)
        there = sums["truth"][-len(sums["ranks"]) :]
        areas: npt.NDArray[np.float64] = (sums["ranks"] - there * (there + 1) / 2) / (there * (rows - there))
        return areas
