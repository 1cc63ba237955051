"""From arrays and data sets to a federation: alignment by ID, splits, built-in sources."""

from tdcd.data.federation import Federation, Silo, samples

__all__ = ["Federation", "Silo", "samples"]
