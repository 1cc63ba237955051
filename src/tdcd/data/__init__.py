"""From arrays, tables and published data sets to a federation: alignment by ID, preparation, splits."""

from tdcd.data.federation import Federation, Silo
from tdcd.data.samples import Samples

__all__ = ["Federation", "Samples", "Silo"]
