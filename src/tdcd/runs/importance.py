"""How much silos and columns matter to a model, as a record: importance.json."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ALL = ""
"""Stands for all columns of a silo together."""


@dataclass(frozen=True)
class Importance:
    """How much a metric falls, or the loss rises, where the values of a column are dealt anew."""

    silo: str
    column: str
    """``ALL`` for all columns of the silo together."""
    mean: float
    deviation: float
    """Over the repeats."""
    classes: Mapping[str, float] = field(default_factory=dict)
    """How much the area under the ROC curve of each class against all others falls, where there are several."""


@dataclass(frozen=True)
class Importances:
    """The importance of all silos and columns; at a hub, of its own silo's."""

    metric: str
    score: float
    """The metric where nothing is dealt anew."""
    rows: int
    """How many were measured."""
    repeats: int
    entries: tuple[Importance, ...]
    within_clients: bool = False
    """Whether each client dealt its values among its own rows only."""
    notes: tuple[str, ...] = ()
    """What a reader should know."""

    def sorted(self) -> list[Importance]:
        """Return the columns, the most important one first."""
        return sorted((one for one in self.entries if one.column), key=lambda one: -one.mean)

    def silos(self) -> list[Importance]:
        """Return the silos, the most important one first."""
        return sorted((one for one in self.entries if not one.column), key=lambda one: -one.mean)
