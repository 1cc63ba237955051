"""Huber loss: squared near the target, linear far from it, so that outliers pull with a bounded force."""

from dataclasses import dataclass
from math import isfinite

import torch.nn.functional as F
from torch import Tensor

from tdcd.core.objectives.regression import Regression


@dataclass(frozen=True)
class Huber(Regression):
    """½·d² where |d| ≤ δ, δ·(|d| − ½·δ) beyond, averaged over the E targets of a row, as torch has it."""

    delta: float = 1.0
    """δ, in the units of the targets."""

    nonnegative = True

    def __post_init__(self) -> None:
        if not (isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"delta: should be a number above 0 (is {self.delta!r})")

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.huber_loss(scores, labels, reduction="none", delta=self.delta).mean(-1)

    def gradient(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (scores - labels).clamp_(-self.delta, self.delta).div_(scores.shape[-1])
