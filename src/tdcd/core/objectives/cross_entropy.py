"""Softmax cross-entropy over several classes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tdcd.core.objectives.base import column, some, whole_numbers
from tdcd.core.objectives.classification import Classification
from tdcd.errors import DataError, ModelError


@dataclass(frozen=True)
class CrossEntropy(Classification):
    """Softmax cross-entropy over E classes; labels are class numbers 0 … E − 1."""

    meaning = "classes"
    metrics = ("loss", "accuracy", "f1", "top5", "auroc", "auprc")
    primary = "accuracy"

    def classes(self, width: int) -> int:
        return width

    def ranked(self, scores: Tensor) -> Tensor:
        return scores.double().softmax(-1)

    def width(self, labels: Tensor) -> int:
        whole = whole_numbers(column(labels))
        width, distinct = int(whole.max()) + 1, len(set(whole.tolist()))
        if width > max(1000, 10 * distinct):
            raise DataError(
                f"labels out of range: the largest is {width - 1}, yet there are only {distinct} classes; "
                "number the classes 0, 1, 2, …"
            )
        return max(2, width)

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        if width < 2:
            raise ModelError(
                f"cross-entropy needs an embedding of one output a class, at least 2; the models end in {width}"
            )
        whole = whole_numbers(column(labels))
        outside = (whole < 0) | (whole >= width)
        if outside.any():
            raise DataError(
                f"labels out of range: {some(whole[outside])}; cross-entropy over models that end in {width} "
                f"outputs takes class numbers 0 to {width - 1}"
            )
        return whole

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        flat = F.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
        return flat.view(labels.shape)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        ones = torch.full_like(labels.unsqueeze(-1), -1, dtype=scores.dtype)
        return scores.softmax(-1).scatter_add_(-1, labels.unsqueeze(-1), ones)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def predictions(self, scores: Tensor) -> Tensor:
        return scores.argmax(-1)
