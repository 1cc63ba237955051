"""A small convolutional network for small images and halves of them."""

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from tdcd.models.base import ModelSpec, Shape, image


class CNN(ModelSpec):
    """3×3 convolutions, each with ReLU and a halving max-pool while the image allows it, then a linear layer."""

    kind: Literal["cnn"] = "cnn"
    channels: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1, strict=False)] = [16, 32]
    """Channels of each convolution."""
    batch_norm: bool = False
    """Normalise after each convolution over the client's rows of the batch."""

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        incoming, height, width = image("CNN", shape)
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers.append(nn.Conv2d(incoming, channels, 3, padding=1, bias=not self.batch_norm))
            if self.batch_norm:
                layers.append(nn.BatchNorm2d(channels))
            layers.append(nn.ReLU())
            if height > 1 and width > 1:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
            incoming = channels
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(incoming * height * width, outputs))
