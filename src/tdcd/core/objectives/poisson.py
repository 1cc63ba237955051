"""Poisson regression: counts, whose logarithm of the expectation the scores are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tdcd.core.objectives.base import some
from tdcd.core.objectives.regression import Regression
from tdcd.errors import DataError


@dataclass(frozen=True)
class Poisson(Regression):
    """exp(z) − y·z, the negative log-likelihood up to a constant, averaged over the E targets of a row.

    Predictions are expected counts exp(z).
    """

    def prepare(self, labels: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        targets = super().prepare(labels, width, dtype)
        if (targets < 0).any():
            raise DataError(f"labels out of range: {some(targets[targets < 0])}; poisson takes counts, 0 and more")
        return targets

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores.exp() - labels * scores).mean(-1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        return scores.exp().sub_(labels).div_(scores.shape[-1])

    def predictions(self, scores: Tensor) -> Tensor:
        return scores.exp()
