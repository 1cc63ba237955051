"""Rows in memory in place of a file: typed cells, as those of a Parquet file are."""

from collections.abc import KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from tdcd.data.tables.cells import EXACT
from tdcd.data.tables.missing import RAW, absent_texts, no_values
from tdcd.data.tables.preparation import Number, Preparation
from tdcd.data.tables.reader import Batch, TableHead
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import DataError

Cell = str | bool | int | float | None
"""What a cell holds: as JSON has it."""
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class GivenTable(TableHead):
    """A silo's rows that are given one by one, to be prepared as the rows of its files are."""

    preparation: Preparation

    @classmethod
    def of(cls, silo: str, settings: TableSettings, preparation: Preparation) -> "GivenTable":
        """Make one for the columns of a preparation."""
        return cls(silo, "", Path(), settings, preparation)

    def __str__(self) -> str:
        return f"silo '{self.silo}'"

    @property
    def is_csv(self) -> bool:
        """Never: numbers and texts are told apart by their type, not by how they are written."""
        return False

    @cached_property
    def header(self) -> KeysView[str]:
        """The names of its columns, in order."""
        return dict.fromkeys(column.name for column in self.preparation.columns).keys()

    @cached_property
    def numeric(self) -> frozenset[str]:
        """The columns whose cells are numbers; those of others are texts, or codes as either."""
        columns = self.preparation.columns
        return frozenset(column.name for column in columns if isinstance(column, Number) and not column.dates)

    @cached_property
    def absent(self) -> frozenset[str]:
        """The texts that mean that there is no value."""
        return frozenset(absent_texts(self.settings))

    @cached_property
    def _cleaning(self) -> list[pl.Expr]:
        return [*no_values(self.settings, csv=False)]

    def batch(self, rows: Sequence[Mapping[str, Cell]], *, strict: bool = False) -> Batch:
        """Return rows as a batch. In columns of numbers, a text means that there is no value.

        Args:
            rows: Cells by column.
            strict: Refuse columns of large whole numbers and decimals, where one kind rounds the other.

        Raises:
            DataError: there is such a column.
        """
        cells = {name: [row[name] for row in rows] for name in self.header}
        frame = pl.DataFrame([_series(name, values, name in self.numeric, strict) for name, values in cells.items()])
        frame = frame.with_columns(*self._cleaning)
        if self.settings.missing_flags:
            frame = frame.with_columns(pl.Series(RAW + name, _texts(values)) for name, values in cells.items())
        return Batch(self, np.arange(1, len(rows) + 1), frame)


def _series(name: str, cells: Sequence[Cell], numeric: bool, strict: bool) -> pl.Series:
    if not numeric:
        return pl.Series(name, _texts(cells), dtype=pl.String)
    numbers = [None if isinstance(cell, str) else cell for cell in cells]
    if all(type(number) is int and number in _INT64 for number in numbers if number is not None):
        return pl.Series(name, numbers, dtype=pl.Int64)
    if strict and any(type(number) is int and abs(number) > EXACT for number in numbers):
        raise DataError(f"column '{name}' holds large whole numbers and others")
    try:
        return pl.Series(name, [None if number is None else float(number) for number in numbers], dtype=pl.Float64)
    except OverflowError as error:
        raise DataError(f"column '{name}' holds a number too large") from error


def _texts(cells: Sequence[Cell]) -> list[str | None]:
    """Write cells as texts: true and false in small letters, numbers as JSON does."""
    return [cell if isinstance(cell, str) or cell is None else str(cell).lower() for cell in cells]
