"""Fully connected layers."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from tdcd.models.base import ModelSpec, Shape, size


class MLP(ModelSpec):
    """Fully connected layers with ReLU between them."""

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1, strict=False)] = [64]
    """Width of each hidden layer."""

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise([size(shape), *self.hidden]):
            layers += [nn.Linear(width, following), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(self.hidden[-1], outputs))
