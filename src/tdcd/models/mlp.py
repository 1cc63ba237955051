"""Fully connected layers."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from tdcd.models.base import ModelSpec, Shape, size

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


class MLP(ModelSpec):
    """Fully connected layers with an activation between them."""

    kind: Literal["mlp"] = "mlp"
    hidden: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1, strict=False)] = [64]
    """Width of each hidden layer."""
    activation: Literal["relu", "tanh", "sigmoid", "gelu", "silu"] = "relu"
    """What follows each hidden layer."""

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        layers: list[nn.Module] = [nn.Flatten()]
        for width, following in pairwise([size(shape), *self.hidden]):
            layers += [nn.Linear(width, following), ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers, nn.Linear(self.hidden[-1], outputs))
