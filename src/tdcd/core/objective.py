"""The loss ℓ(Σ_j Φ_j; y) of Equation 3, and what its scores mean.

Every objective works on any leading shape: embeddings (…, E), labels (…) or (…, E), losses (…). One client's
rows and a whole group of clients are the same to it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tdcd.errors import DataError, ModelError, join_names


class Loss(ABC):
    """What local steps descend: a number for every row, given its scores and whatever stands for its label.

    Compute paths use whichever of ``losses`` and ``gradient`` suits them, so the two must agree. A class that defines
    new ``losses`` therefore never inherits the gradient of other losses: unless it defines its own, it is derived from
    ``losses``.
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        own = vars(cls)
        if "losses" in own and "gradient" not in own:
            setattr(cls, "gradient", Loss.gradient)  # noqa: B010
        elif "gradient" in own and "losses" not in own:
            raise TypeError(f"{cls.__name__} defines a gradient without losses, which it must agree with")

    @abstractmethod
    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return ℓ for every row: scores (…, E) and prepared labels to (…)."""

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return ∂ℓ/∂scores for every row: scores (…, E) and prepared labels to (…, E)."""
        with torch.enable_grad():
            scores = scores.detach().requires_grad_()
            (result,) = torch.autograd.grad(self.losses(scores, labels).sum(), scores)
        return result


class Objective(Loss):
    """A loss of the summed embeddings against labels."""

    @abstractmethod
    def width(self, labels: Tensor) -> int:
        """Return the embedding width E that these labels call for."""

    @abstractmethod
    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        """Check the labels against the embedding width and return them as the loss wants them.

        Raises:
            DataError: a label does not fit this loss.
            ModelError: an embedding of this width does not fit this loss.
        """

    @abstractmethod
    def probabilities(self, scores: Tensor) -> Tensor:
        """Turn scores (M, E) into probabilities: (M, E) per class, (M,) of the positive class."""

    @abstractmethod
    def predictions(self, scores: Tensor) -> Tensor:
        """Turn scores (M, E) into predicted classes (M,) or values (M, E)."""


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Softmax cross-entropy over E classes; labels are class numbers 0 … E − 1."""

    def width(self, labels: Tensor) -> int:  # noqa: D102
        whole = _whole(_column(labels))
        width, distinct = int(whole.max()) + 1, len(set(whole.tolist()))
        if width > max(1000, 10 * distinct):
            raise DataError(
                f"labels out of range: the largest is {width - 1}, yet there are only {distinct} classes; "
                "number the classes 0, 1, 2, …"
            )
        return max(2, width)

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:  # noqa: ARG002, D102
        if width < 2:
            raise ModelError(
                f"cross-entropy needs an embedding of one output a class, at least 2; the models end in {width}"
            )
        whole = _whole(_column(labels))
        outside = (whole < 0) | (whole >= width)
        if outside.any():
            raise DataError(
                f"labels out of range: {_some(whole[outside])}; cross-entropy over models that end in {width} "
                f"outputs takes class numbers 0 to {width - 1}"
            )
        return whole

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        flat = F.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
        return flat.view(labels.shape)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        ones = torch.full_like(labels.unsqueeze(-1), -1, dtype=scores.dtype)
        return scores.softmax(-1).scatter_add_(-1, labels.unsqueeze(-1), ones)

    def probabilities(self, scores: Tensor) -> Tensor:  # noqa: D102
        return scores.softmax(-1)

    def predictions(self, scores: Tensor) -> Tensor:  # noqa: D102
        return scores.argmax(-1)


@dataclass(frozen=True)
class BinaryCrossEntropy(Objective):
    """Logistic loss on one logit; labels are 0 and 1. Positive rows weigh ``positive_weight`` times as much."""

    positive_weight: float = 1.0

    def width(self, labels: Tensor) -> int:  # noqa: ARG002, D102
        return 1

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:  # noqa: D102
        if width != 1:
            raise ModelError(
                f"binary cross-entropy needs an embedding of one output; the models end in {width}. "
                "For several classes use the loss cross-entropy"
            )
        column = _column(labels)
        outside = (column != 0) & (column != 1)
        if outside.any():
            raise DataError(f"labels out of range: {_some(column[outside])}; binary cross-entropy takes labels 0 and 1")
        return column.to(dtype)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        weight = None if self.positive_weight == 1 else scores.new_tensor(self.positive_weight)
        return F.binary_cross_entropy_with_logits(scores.squeeze(-1), labels, reduction="none", pos_weight=weight)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        y = labels.unsqueeze(-1)
        result = scores.sigmoid().sub_(y)
        return result if self.positive_weight == 1 else result.mul_(1 + (self.positive_weight - 1) * y)

    def probabilities(self, scores: Tensor) -> Tensor:  # noqa: D102
        return scores.squeeze(-1).sigmoid()

    def predictions(self, scores: Tensor) -> Tensor:  # noqa: D102
        return (scores.squeeze(-1) > 0).long()


@dataclass(frozen=True)
class SquaredError(Objective):
    """Squared error, averaged over the E targets of a row: linear regression when the models are linear."""

    def width(self, labels: Tensor) -> int:  # noqa: D102
        return 1 if labels.ndim == 1 else labels.shape[1]

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:  # noqa: D102
        targets = labels.unsqueeze(1) if labels.ndim == 1 else labels
        if targets.ndim != 2 or targets.shape[1] != width:
            raise ModelError(
                f"squared error needs as many outputs as targets: the labels have shape {tuple(labels.shape)}, "
                f"the models end in {width} outputs"
            )
        return targets.to(dtype)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        return (scores - labels).square().mean(-1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:  # noqa: D102
        return (scores - labels).mul_(2 / scores.shape[-1])

    def probabilities(self, scores: Tensor) -> Tensor:  # noqa: ARG002, D102
        raise ModelError("a regression has no probabilities; ask for predictions")

    def predictions(self, scores: Tensor) -> Tensor:  # noqa: D102
        return scores


def _column(labels: Tensor) -> Tensor:
    """Return labels as a vector."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"this loss takes one label a sample; the labels have shape {tuple(labels.shape)}")
    return labels


def _whole(labels: Tensor) -> Tensor:
    """Return class numbers as int64."""
    whole = labels.long()
    broken = whole != labels
    if broken.any():
        raise DataError(f"labels out of range: {_some(labels[broken])}; cross-entropy takes whole class numbers")
    return whole


def _some(labels: Tensor) -> str:
    return join_names(f"{value:g}" for value in sorted(set(labels.tolist())))
