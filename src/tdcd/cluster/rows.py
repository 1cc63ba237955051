"""Where a bundle gets its rows from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tdcd.cluster.wire import unpack
from tdcd.data.holdout import Part
from tdcd.data.sources import StoredRows, read_stored


@dataclass(frozen=True)
class BundleRows:
    """The rows of a bundle, as they are sent to it; those of each part in the order of its place."""

    silo: str
    given: Mapping[Part, Any]
    """What the driver has and sends."""
    stored: Mapping[Part, StoredRows]
    """What the bundle reads itself."""

    def read(self) -> Mapping[Part, Tensor]:
        """Return the rows of each part."""
        read = read_stored([*self.stored.values()], f"silo '{self.silo}'")
        return {part: unpack(rows) for part, rows in self.given.items()} | dict(zip(self.stored, read, strict=True))
