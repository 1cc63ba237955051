"""The paper's network for MIMIC-III: an LSTM and a linear layer on its last hidden state."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from tdcd.errors import ModelError
from tdcd.models.base import ModelSpec, Shape


class LSTM(ModelSpec):
    """An LSTM over rows of shape (time steps, features). The paper's hidden size is 64 / N."""

    kind: Literal["lstm"] = "lstm"
    hidden: Annotated[int, Field(gt=0)] = 16

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        if len(shape) != 2:
            raise ModelError(f"an LSTM takes sequences (time steps, features); the rows have shape {shape}")
        return LSTMNetwork(shape[1], self.hidden, outputs)


class LSTMNetwork(nn.Module):
    """Rows (n, T, D) to embeddings (n, E)."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Read the sequence, keep the last hidden state."""
        _, (last, _) = self.lstm(rows)
        embedding: Tensor = self.linear(last[-1])
        return embedding
