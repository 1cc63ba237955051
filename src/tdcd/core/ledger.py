"""The ledger: how many bytes Algorithm 1 sends in a round, message by message.

    hub → client   θ_j to every client that has rows in ζ; later its rows of Φ_{-j}
    client → hub   its rows of Φ_j; later its weights after Q steps
    hub → hub      Φ_j to each of the other N − 1 hubs

The numbers themselves are counted, not how a network wraps them. A mini-batch costs nothing: everybody draws it from
the seed. A client without rows in ζ sends and gets nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    """Bytes of θ_j."""
    row: int
    """Bytes of one sample's embedding."""

    def rows(self, batch: npt.NDArray[np.int64]) -> dict[str, Rows]:
        """Return how many rows of a mini-batch every client has."""
        return {
            silo: np.bincount(owner[batch], minlength=self.clients[silo]).astype(np.int64)
            for silo, owner in self.owners.items()
        }

    def traffic(self, rows: Mapping[str, Rows]) -> Traffic:
        """Return what a round sends when its mini-batch falls to clients like this."""
        total = Traffic()
        for silo, own in rows.items():
            embeddings, blocks = int(own.sum()) * self.row, int(np.count_nonzero(own)) * self.blocks[silo]
            total += Traffic(
                client_to_hub=embeddings + blocks,
                hub_to_client=blocks + embeddings,
                hub_to_hub=(len(rows) - 1) * embeddings,
            )
        return total
