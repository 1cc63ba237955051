"""Logistic loss on one logit."""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tdcd.core.objectives.base import column, some
from tdcd.core.objectives.classification import Classification
from tdcd.errors import DataError, ModelError


@dataclass(frozen=True)
class BinaryCrossEntropy(Classification):
    """Logistic loss on one logit; labels are 0 and 1. Positive rows weigh ``positive_weight`` times as much."""

    positive_weight: float = 1.0
    """What a positive row weighs."""

    meaning = "binary"
    metrics = ("loss", "accuracy", "f1", "auroc", "auprc")
    primary = "auroc"

    def __post_init__(self) -> None:
        if not (isfinite(self.positive_weight) and self.positive_weight > 0):
            raise ValueError(f"positive_weight: should be a number above 0 (is {self.positive_weight!r})")

    def classes(self, width: int) -> int:
        return 2

    def class_weights(self, classes: int) -> npt.NDArray[np.float64]:
        return np.array([1.0, self.positive_weight])

    def width(self, labels: Tensor) -> int:
        return 1

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        if width != 1:
            raise ModelError(
                f"binary cross-entropy needs an embedding of one output; the models end in {width}. "
                "For several classes use the loss cross-entropy"
            )
        values = column(labels)
        outside = (values != 0) & (values != 1)
        if outside.any():
            raise DataError(f"labels out of range: {some(values[outside])}; binary cross-entropy takes labels 0 and 1")
        return values.to(dtype)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        weight = None if self.positive_weight == 1 else scores.new_tensor(self.positive_weight)
        return F.binary_cross_entropy_with_logits(scores.squeeze(-1), labels, reduction="none", pos_weight=weight)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        y = labels.unsqueeze(-1)
        result = scores.sigmoid().sub_(y)
        return result if self.positive_weight == 1 else result.mul_(1 + (self.positive_weight - 1) * y)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.squeeze(-1).sigmoid()

    def predictions(self, scores: Tensor) -> Tensor:
        return (scores.squeeze(-1) > 0).long()
