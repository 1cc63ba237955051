"""The ledger: how many bytes Algorithm 1 sends in a round, message by message.

    hub → client   θ_j to every client that has rows in ζ; later its rows of Φ_{-j}
    client → hub   its rows of Φ_j; later its weights after Q steps
    hub → hub      Φ_j to each of the other N − 1 hubs

Where one silo keeps the labels, the others need answers (∂ℓ/∂z, as large as an embedding), in a round once or Q times:

    hub → client   θ_j; every time, its rows of the answers
    client → hub   every time, its rows of the newest Φ_j; its weights at the end
    hub → hub      every time, Φ_j to the hub of the labels, and the answers back

and in the silo with the labels:

    hub → client   θ_j; Φ_{-j} with the first question; later, for each silo that asks, z
    client → hub   its rows of Φ_j; the answers; its weights at the end

The numbers themselves are counted, not how a network wraps them. A mini-batch costs nothing: everybody draws it from
the seed. A client without rows in ζ sends and gets nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Sharing = Literal["shared", "exact", "stale"]
"""``shared``: every silo has the labels. ``exact`` and ``stale``: one has, and answers; see labels."""


def gradient_requests(sharing: Sharing | None, steps: int) -> int:
    """Return how often in a round of so many local steps a silo without labels asks for them, if it has to."""
    return steps if sharing == "exact" else 1


Rows = npt.NDArray[np.int64]
"""|ζ_{k,j}| for every client k of a silo; shape (K_j,)."""


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

    owners: Mapping[str, npt.NDArray[np.integer]]
    """For each silo and sample the client that holds it; shape (M,)."""
    clients: Mapping[str, int]
    """K_j."""
    blocks: Mapping[str, int]
    """Bytes of θ_j, for every silo that has features."""
    row: int
    """Bytes of one sample's embedding."""
    label_holder: str | None = None
    """The silo that keeps the labels, where it does."""
    asked: int = 1
    """How often the others ask it in a round."""

    @property
    def askers(self) -> int:
        """How many silos ask for labels."""
        return sum(silo != self.label_holder for silo in self.blocks) if self.label_holder else 0

    def rows(self, batch: npt.NDArray[np.int64]) -> dict[str, Rows]:
        """Return how many rows of a mini-batch every client has."""
        return {
            silo: np.bincount(owner[batch], minlength=self.clients[silo]).astype(np.int64)
            for silo, owner in self.owners.items()
        }

    def traffic(self, rows: Mapping[str, Rows]) -> Traffic:
        """Return what a round sends when its mini-batch falls to clients like this."""
        total = Traffic()
        for silo, block in self.blocks.items():
            embeddings, blocks = int(rows[silo].sum()) * self.row, int(np.count_nonzero(rows[silo])) * block
            if not self.askers:
                both, across = blocks + embeddings, (len(self.blocks) - 1) * embeddings
                total += Traffic(client_to_hub=both, hub_to_client=both, hub_to_hub=across)
            elif silo == self.label_holder:
                total += Traffic(client_to_hub=blocks + embeddings, hub_to_client=blocks)
            else:
                both, across = blocks + self.asked * embeddings, 2 * self.asked * embeddings
                total += Traffic(client_to_hub=both, hub_to_client=both, hub_to_hub=across)
        if self.label_holder and self.askers:
            times = self.questions * int(rows[self.label_holder].sum()) * self.row
            total += Traffic(client_to_hub=times, hub_to_client=times)
        return total

    @property
    def questions(self) -> int:
        """How many questions of a mini-batch's size a round puts to the clients with labels.

        The first is the same for all silos that ask; afterwards each has moved on by itself.
        """
        return 1 + self.askers * (self.asked - 1)
