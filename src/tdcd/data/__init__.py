"""From arrays, tables and published data sets to a federation: alignment by ID, preparation, splits."""

from tdcd.data.federation import Federation, Silo, samples

__all__ = ["Federation", "Silo", "samples"]
