"""A client deals values of its columns anew among its own rows, so that its hub can measure how much they matter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from tdcd.core.seeds import derive
from tdcd.data.holdout import Part
from tdcd.runs.importance import ALL
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.types import EVERY, Score
from tdcd.sites.security.identity import Identity


def deal_order(seed: int, who: Identity, column: str, repeat: int, rows: int) -> Tensor:
    """Return the row that each row takes a column's values from: (rows,), the same whenever it is asked for."""
    words = ("importance", who.silo, who.client or "", column, repeat)
    return torch.from_numpy(np.random.default_rng(derive(seed, *words)).permutation(rows))


@dataclass(frozen=True)
class Dealer:
    """What a client needs for it."""

    who: Identity
    seed: int
    repeats: int
    """How often the job measures each column; 0 if it does not."""
    columns: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The inputs of the network that each becomes, in the order of the preparation."""

    def check(self, request: Score) -> None:
        """Check that a request is one of the job's.

        Raises:
            RefusedError: it is not.
        """
        if request.column is None:
            return
        if not 0 <= request.repeat < self.repeats:
            raise RefusedError(
                f"the hub deals values of a column for the time {request.repeat}, of {self.repeats} that the job has "
                "(deployment.importance)"
            )
        if not EVERY <= request.column < len(self.columns):
            raise RefusedError(f"the hub asks for column {request.column} of {len(self.columns)}")
        if Part.TRAIN.word in request.parts:
            raise RefusedError("the hub deals values of training rows")

    def deal(self, rows: Tensor, column: int, repeat: int) -> Tensor:
        """Return rows with the values of a column dealt anew among them."""
        name = ALL if column == EVERY else list(self.columns)[column]
        order = deal_order(self.seed, self.who, name, repeat, len(rows)).to(rows.device)
        if column == EVERY:
            return rows[order]
        changed, inputs = rows.clone(), list(self.columns[name])
        changed[:, inputs] = rows[order][:, inputs]
        return changed
