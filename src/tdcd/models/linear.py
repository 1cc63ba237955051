"""One linear layer: linear, logistic and softmax regression, split over the silos."""

from typing import Literal

from torch import nn

from tdcd.models.base import ModelSpec, Shape, size


class Linear(ModelSpec):
    """A weight for each number of a row and each output, and a bias."""

    kind: Literal["linear"] = "linear"

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        return nn.Sequential(nn.Flatten(), nn.Linear(size(shape), outputs))
