"""A network of your own: a factory that takes the shape of a row and the width of the embedding."""

from torch import Tensor, nn


class Gated(nn.Module):
    """A layer whose every unit is switched by another."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.value = nn.Linear(features, hidden)
        self.gate = nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Embed rows (n, features) as (n, outputs)."""
        embedding: Tensor = self.out(self.value(rows).tanh() * self.gate(rows).sigmoid())
        return embedding


def gated(shape: tuple[int, ...], outputs: int, hidden: int = 16) -> nn.Module:
    """Build the network; ``hidden`` comes from the job file's options."""
    return Gated(shape[0], hidden, outputs)
