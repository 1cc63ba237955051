"""Squared error."""

from dataclasses import dataclass

from torch import Tensor

from tdcd.core.objectives.regression import Regression


@dataclass(frozen=True)
class SquaredError(Regression):
    """Squared error, averaged over the E targets of a row: linear regression when the models are linear."""

    nonnegative = True

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels).square().mean(-1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels).mul_(2 / scores.shape[-1])
