"""The paper's network for CIFAR-10 and ModelNet: ResNet18 in its form for small images."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from tdcd.models.base import ModelSpec, Shape, image


class ResNet18(ModelSpec):
    """3×3 stem without max-pool, four stages of two residual blocks, average-pool 2, linear."""

    kind: Literal["resnet18"] = "resnet18"
    width: Annotated[int, Field(gt=0)] = 64
    """Channels of the first stage; the others have 2, 4 and 8 times as many. The paper's is 64."""

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        incoming, height, width = image("ResNet18", shape)
        return ResNet(incoming, (height, width), self.width, outputs)


class ResNet(nn.Module):
    """Images (n, C, H, W) to embeddings (n, E)."""

    def __init__(self, incoming: int, size: tuple[int, int], width: int, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(incoming, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.Sequential(
            Residual(width, width, 1), Residual(width, width, 1),
            Residual(width, 2 * width, 2), Residual(2 * width, 2 * width, 1),
            Residual(2 * width, 4 * width, 2), Residual(4 * width, 4 * width, 1),
            Residual(4 * width, 8 * width, 2), Residual(8 * width, 8 * width, 1),
        )  # fmt: skip
        # Three stages halve the image, rounding up; the pool halves once more, rounding up at the edge of 1.
        height, across = (max(1, -(-edge // 8) // 2) for edge in size)
        window = tuple(min(2, -(-edge // 8)) for edge in size)
        self.pool = nn.AvgPool2d((window[0], window[1]))
        self.linear = nn.Linear(8 * width * height * across, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images."""
        embedding: Tensor = self.linear(self.pool(self.stages(self.stem(images))).flatten(1))
        return embedding


class Residual(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    def __init__(self, incoming: int, outgoing: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(incoming, outgoing, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outgoing),
            nn.ReLU(),
            nn.Conv2d(outgoing, outgoing, 3, padding=1, bias=False),
            nn.BatchNorm2d(outgoing),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or incoming != outgoing:
            self.shortcut = nn.Sequential(
                nn.Conv2d(incoming, outgoing, 1, stride, bias=False), nn.BatchNorm2d(outgoing)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return ReLU(body + shortcut)."""
        result: Tensor = (self.body(images) + self.shortcut(images)).relu()
        return result
