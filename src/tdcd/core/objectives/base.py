"""The loss ℓ(Σ_j Φ_j; y) of Equation 3, what its scores mean, and how good they are.

Every objective works on any leading shape: embeddings (…, E), labels (…) or (…, E), losses (…). One client's
rows and a whole group of clients are the same to it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tdcd.core.parts import calling, check_tensors, is_foreign
from tdcd.errors import DataError, join_names

NULL_LOSS = "null_loss"
"""The name of the loss of the best constant prediction, which a model has to beat; it is the same in all rounds."""
Meaning = Literal["classes", "binary", "numbers"]
"""What labels are: names of classes, one of two, or numbers."""
Tally = Mapping[str, list[float]]
"""Sums over some rows, by name; the same names for the same objective and width."""
Sums = Mapping[str, npt.NDArray[np.float64]]
"""A tally, as arrays."""


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
            (result,) = torch.autograd.grad(row_losses(self, scores, labels).sum(), scores)
        return result


class Objective(Loss):
    """A loss of the summed embeddings against labels.

    Metrics are made of sums over rows, so that clients whose labels are private can send sums in place of labels.
    """

    meaning: Meaning = "numbers"
    """What its labels are."""
    metrics: tuple[str, ...] = ("loss",)
    """The names of all that is measured, where it is defined."""
    primary: str = "loss"
    """The metric that stands for all in displays."""
    falling: tuple[str, ...] = ("loss",)
    """Those of the metrics that are better when they are lower."""
    nonnegative: bool = False
    """Whether no row has a loss below 0."""

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

    def oriented(self, name: str, value: float) -> float:
        """Return a metric's value so that lower is better; twice, it is as it was."""
        return value if name in self.falling else -value

    def ranked(self, scores: Tensor) -> Tensor:
        """Return the values (M, E) whose ranks among all rows a tally may use."""
        return scores.double()

    def sums(self, scores: Tensor, labels: Tensor, ranks: Tensor) -> dict[str, Tensor]:
        """Add up over a client's rows what metrics are made of, each as a vector; besides rows and their losses.

        Args:
            scores: Of the rows, (n, E).
            labels: As ``prepare`` returned them.
            ranks: Of each row's values among all rows, from 1, ties sharing theirs: (n, E).
        """
        return {}

    def lengths(self, width: int) -> dict[str, int]:
        """Return the names of these sums, and how many numbers each has."""
        return {}

    def why_not(self, sums: Sums, rows: int) -> str:
        """Return why finite sums of the right lengths cannot be those of so many rows, or nothing."""
        return ""

    def add(self, one: Sums, two: Sums) -> Sums:
        """Add two clients' sums, rows and losses among them."""
        return {name: values + two[name] for name, values in one.items()}

    def measure(self, sums: Sums, rows: float) -> dict[str, float]:
        """Return the metrics of all rows that were added up, besides the loss."""
        return {}


def row_losses(objective: Loss, scores: Tensor, labels: Tensor) -> Tensor:
    """Return ℓ of every row; what an objective that a user has written returns is checked.

    Raises:
        ModelError: it fails, or returns anything but a number for each row.
    """
    if not is_foreign(objective):
        return objective.losses(scores, labels)
    with calling("objective", objective):
        losses = objective.losses(scores, labels)
    check_tensors({"losses": losses}, {"losses": scores[..., 0]}, "objective", objective, finite=False)
    return losses


def logit_gradient(objective: Loss, scores: Tensor, labels: Tensor) -> Tensor:
    """Return ∂ℓ/∂scores; that of an objective which a user has written is checked.

    Raises:
        ModelError: it fails, or returns what is no gradient.
    """
    if not is_foreign(objective):
        return objective.gradient(scores, labels)
    with calling("objective", objective):
        gradient = objective.gradient(scores, labels)
    check_tensors({"gradient": gradient}, {"gradient": scores}, "objective", objective, finite=True)
    return gradient


def column(labels: Tensor) -> Tensor:
    """Return labels as a vector."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return labels[:, 0]
    if labels.ndim != 1:
        raise DataError(f"this loss takes one label a sample; the labels have shape {tuple(labels.shape)}")
    return labels


def whole_numbers(labels: Tensor) -> Tensor:
    """Return class numbers as int64."""
    whole = labels.long()
    broken = whole != labels
    if broken.any():
        raise DataError(f"labels out of range: {some(labels[broken])}; cross-entropy takes whole class numbers")
    return whole


def some(labels: Tensor) -> str:
    """Name a few labels, in an error."""
    return join_names(f"{value:g}" for value in sorted(set(labels.tolist())))
