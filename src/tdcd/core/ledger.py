"""The ledger: how many bytes a round sends, message by message.

It reads the events of the round script, so it never restates the round. The numbers themselves are counted, not how a
network wraps them. A mini-batch costs nothing: every hub and client draws it from the seed; but where not all clients
take part, a hub tells its clients which of their rows it has. A client without rows in ζ neither sends nor receives
anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tdcd.core.meter import Call, Send, round_events
from tdcd.core.script import Plan

COUNTED = ("rows_down", "rows_up", "weights_down", "weights_up", "opens")
"""What of a call takes bytes."""
NUMBER = 8
"""Bytes of a sample's number in a message."""
Counts = npt.NDArray[np.int64]
"""|ζ_{k,j}| for every client k of a silo: (K_j,), or (R, K_j) for R rounds."""


@dataclass(frozen=True)
class Traffic:
    """Bytes sent, by direction."""

    client_to_hub: int = 0
    hub_to_client: int = 0
    hub_to_hub: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.client_to_hub + other.client_to_hub,
            self.hub_to_client + other.hub_to_client,
            self.hub_to_hub + other.hub_to_hub,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.client_to_hub + self.hub_to_client + self.hub_to_hub


@dataclass(frozen=True)
class Ledger:
    """What determines the size of every message."""

    plan: Plan
    steps: Mapping[str, int]
    """Q, for every silo that has features."""
    owners: Mapping[str, npt.NDArray[np.integer]]
    """For each silo and sample the client that holds it; shape (M,)."""
    clients: Mapping[str, int]
    """K_j."""
    blocks: Mapping[str, int]
    """Bytes of θ_j, for every silo that has features."""
    row: int
    """Bytes of one sample's embedding, as it travels."""
    message: int = 0
    """Bytes of a message with embeddings besides these."""
    number: int = 0
    """Bytes of a sample's number, where hubs tell clients which rows a mini-batch has."""

    def counts(self, batch: npt.NDArray[np.int64]) -> dict[str, Counts]:
        """Return how many rows of a mini-batch every client has."""
        return {
            silo: np.bincount(owner.take(batch), minlength=self.clients[silo]) for silo, owner in self.owners.items()
        }

    @cached_property
    def _totals(self) -> dict[str, dict[str, int]]:
        """How often a silo's clients receive and return rows, weights and numbers, and how often its hub sends rows."""
        totals = {silo: dict.fromkeys((*COUNTED, "messages"), 0) for silo in self.owners}
        for event in round_events(self.plan, self.steps):
            if event.silo not in totals:  # one hub's own ledger does not know the clients of others
                continue
            if isinstance(event, Call):
                for what in COUNTED:
                    totals[event.silo][what] += getattr(event, what)
            elif isinstance(event, Send):
                totals[event.silo]["messages"] += event.messages
        return totals

    def traffic(self, counts: Mapping[str, Counts]) -> Traffic:
        """Return what a round sends if its mini-batch falls to clients like this."""
        up = down = across = 0
        for silo, times in self._totals.items():
            held, active = int(counts[silo].sum()), int(np.count_nonzero(counts[silo]))
            batch = held * self.row
            rows, weights = batch + active * self.message, active * self.blocks.get(silo, 0)
            up += times["rows_up"] * rows + times["weights_up"] * weights
            down += times["rows_down"] * rows + times["weights_down"] * weights + times["opens"] * held * self.number
            across += times["messages"] * (batch + self.message)
        return Traffic(client_to_hub=up, hub_to_client=down, hub_to_hub=across)
