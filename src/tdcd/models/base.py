"""What a model specification is."""

from abc import abstractmethod
from math import prod

from torch import nn

from tdcd.errors import ModelError
from tdcd.strict import Strict

Shape = tuple[int, ...]


class ModelSpec(Strict):
    """Settings from which a silo's network is built."""

    @abstractmethod
    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """Build the network for rows of this shape that ends in ``outputs`` numbers, with fresh random weights.

        Raises:
            ModelError: rows of this shape do not fit this kind of network.
        """

    def describe(self) -> str:
        """Describe the network in a few words: ``mlp, hidden 64 32, activation relu``."""
        options = self.model_dump()
        words = [str(options.pop("kind"))]
        for name, value in options.items():
            if value not in ({}, False):
                words.append(
                    f"{name.replace('_', ' ')} {' '.join(map(str, value)) if isinstance(value, list) else value}"
                )
        return ", ".join(words)


def image(kind: str, shape: Shape) -> tuple[int, int, int]:
    """Check that rows are images and return channels, height and width."""
    if len(shape) != 3:
        raise ModelError(f"a {kind} takes images (channels, height, width); the rows have shape {shape}")
    return shape[0], shape[1], shape[2]


def size(shape: Shape) -> int:
    """Return how many numbers a row has."""
    return prod(shape)
