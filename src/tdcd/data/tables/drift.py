"""How new rows differ from those of the training: counted while they are prepared, column by column."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING

from tdcd.errors import join_names

if TYPE_CHECKING:
    from tdcd.data.tables.preparation import Preparation

FAR = 0.5
"""A mean is far from that of the training if it differs by more than so many of its standard deviations,"""
CHANCE = 5.0
"""and by more than so many standard errors of a mean of so many rows."""
KEPT = 1000
"""Unknown categories of a column that are kept apart; more than these are counted only."""


@dataclass
class Seen:
    """What a column of some rows holds."""

    rows: int = 0
    missing: int = 0
    total: float = 0.0
    """Sum of the standardised numbers; where there is none, the mean of the training stands, which is 0."""
    unknown: int = 0
    """Rows with a category that has no input of its own."""
    values: Counter[str] = field(default_factory=Counter)
    """The first of these categories."""

    def add(self, other: "Seen") -> None:
        """Add what other rows hold."""
        self.rows += other.rows
        self.missing += other.missing
        self.total += other.total
        self.unknown += other.unknown
        for value, count in other.values.items():
            if value in self.values or len(self.values) < KEPT:
                self.values[value] += count


@dataclass(frozen=True)
class ColumnDrift:
    """How a column compares with the training."""

    column: str
    rows: int
    missing: int
    """Rows without a value."""
    unknown: int
    """Rows with a category that was rare or did not occur in training."""
    shift: float | None
    """For numbers: how many standard deviations of the training their mean is from that of the training."""


class Drift:
    """What all columns of a silo hold, as far as rows have been prepared."""

    def __init__(self, preparation: "Preparation") -> None:
        self.preparation = preparation
        self._seen = {column.name: Seen() for column in preparation.columns}

    def seen(self, column: str) -> Seen:
        """Return what a column of the rows holds."""
        return self._seen[column]

    def count(self, column: str, seen: Seen) -> None:
        """Count some rows of a column."""
        self._seen[column].add(seen)

    def add(self, other: "Drift") -> None:
        """Add what was counted elsewhere."""
        for column, seen in other._seen.items():
            self._seen[column].add(seen)

    def columns(self) -> tuple[ColumnDrift, ...]:
        """Return how each column compares with the training."""
        return tuple(
            ColumnDrift(name, seen.rows, seen.missing, seen.unknown, self._shift(name, seen))
            for name, seen in self._seen.items()
        )

    def _shift(self, column: str, seen: Seen) -> float | None:
        prepared = next(one for one in self.preparation.columns if one.name == column)
        known = seen.rows - seen.missing
        return seen.total / known if prepared.kind == "number" and not prepared.constant and known else None

    def warnings(self, silo: str) -> Iterator[str]:
        """Tell where columns differ so much that predictions may not be trusted."""
        others = {column.name: column.kind == "category" and column.other for column in self.preparation.columns}
        for name, seen in self._seen.items():
            where = f"silo '{silo}', column '{name}'"
            if seen.unknown:
                some = join_names((f"'{value}'" for value, _ in seen.values.most_common()), 3)
                what = "are rare or unknown in training, and count as 'other'"
                what = what if others[name] else "are unknown in training"
                yield f"{where}: {seen.unknown:,} of {seen.rows:,} rows hold categories that {what}: {some}"
            if seen.rows > 1 and seen.missing == seen.rows:  # a single row may well have none
                yield f"{where}: no row of {seen.rows:,} has a value"
            shift, known = self._shift(name, seen), seen.rows - seen.missing
            if shift is not None and abs(shift) > max(FAR, CHANCE / sqrt(known)):
                way = "above" if shift > 0 else "below"
                yield f"{where}: its mean is {abs(shift):.1f} standard deviations {way} that of the training rows"
