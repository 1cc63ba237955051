"""How many rows an evaluation measured."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """How many rows of a part were measured, and how many it has. At sites, those of absent clients are missing."""

    measured: int
    every: int
