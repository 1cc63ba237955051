"""Tables in CSV and Parquet files: opened with care, read a batch of rows at a time.

A cell of a CSV file is a text until somebody asks for a number, so that what is wrong can be named with its row.
"""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.lines import empty_at_the_end, odd_line
from tdcd.data.tablesettings import TableSettings
from tdcd.errors import DataError, listed, nearest

T = TypeVar("T")

CELLS = 1_000_000
"""Read at a time, at most."""
_WHOLE = r"^-?(0|[1-9][0-9]{0,17})$"
"""A whole number as nobody writes a text: 007 is a text."""


@dataclass(frozen=True)
class Batch:
    """Some rows of a table."""

    table: "Table"
    first: int
    """The number of its first row in the file; rows are numbered from 1."""
    frame: pl.DataFrame

    def cell(self, column: str, row: int) -> str:
        """Return what stands in a row of the file, shortened."""
        return str(self.frame[column][row - self.first])[:40]

    def row(self, mask: pl.Series | Array) -> int:
        """Return the number of the first row for which a mask is true."""
        return self.first + int(np.argmax(np.asarray(mask)))


@dataclass(frozen=True)
class Table:
    """A client's file. ``opened`` opens one."""

    silo: str
    client: str
    path: Path
    settings: TableSettings

    def __str__(self) -> str:
        return f"silo '{self.silo}', client '{self.client}' ({self.path})"

    @cached_property
    def is_csv(self) -> bool:
        """Whether it is a CSV file, not Parquet, by its name; checked against what is in it."""
        suffix = self.path.suffix.lower()
        if suffix not in (".csv", ".parquet"):
            raise DataError(f"{self}: neither a .csv nor a .parquet file by its name")
        try:
            with self.path.open("rb") as file:
                start = file.read(4096)
        except FileNotFoundError as error:
            raise DataError(f"{self}: no such file") from error
        except OSError as error:
            raise DataError(f"{self}: cannot be read: {error.strerror}") from error
        if not start.strip():
            raise DataError(f"{self}: the file is empty")
        parquet = start.startswith(b"PAR1")
        if suffix == ".csv" and parquet:
            raise DataError(f"{self}: named .csv but holds Parquet; rename it to .parquet")
        if suffix == ".csv" and b"\0" in start:
            raise DataError(f"{self}: named .csv but is no text; is it compressed, or a spreadsheet? Save it as CSV")
        if suffix == ".parquet" and not parquet:
            raise DataError(f"{self}: named .parquet but holds something else; is it a CSV file? Rename it to .csv")
        return suffix == ".csv"

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The names of its columns."""
        if not self.is_csv:
            return tuple(self._told(lambda: pl.scan_parquet(self.path).collect_schema()).names())
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                names = tuple(name.strip() for name in next(csv.reader(file, delimiter=self.settings.separator)))
        except (OSError, ValueError, csv.Error) as error:
            raise DataError(f"{self}: cannot be read as CSV: {error}; it must be text in UTF-8") from error
        if "" in names:
            raise DataError(f"{self}: column {names.index('') + 1} has no name in the first line")
        doubles = sorted({name for name in names if names.count(name) > 1})
        if doubles:
            raise DataError(f"{self}: several columns have the same name: {listed(doubles)}")
        if odd := odd_line(self.path, self.settings.separator, len(names)):
            raise DataError(
                f"{self}: line {odd[0]} has {odd[1]} cells, the first line {len(names)}; is it cut off, or does a text "
                "in it hold the separator?"
            )
        return names

    def need(self, column: str, key: str) -> str:
        """Check that it has a column, which the job names as ``key``."""
        if column not in self.header:
            hint = nearest(column, self.header)
            if len(self.header) == 1:
                others = [mark for mark in ";\t|" if mark in self.header[0]]
                hint = f"; its first line is '{self.header[0][:60]}'"
                if others:
                    hint += f". Are its cells separated by '{others[0]}'? Set silos.{self.silo}.separator"
            raise DataError(f"{self}: it has no column '{column}' (silos.{self.silo}.{key}){hint}")
        return column

    def batches(self, columns: Sequence[str]) -> Iterator[Batch]:
        """Read some of its columns, a batch of rows at a time, in the order of the file."""
        if self.is_csv:
            frame = pl.scan_csv(
                self.path,
                has_header=False,
                skip_rows=1,
                schema=dict.fromkeys(self.header, pl.String),
                null_values=self.settings.missing,
                separator=self.settings.separator,
            )
        else:
            frame = pl.scan_parquet(self.path)
        size = max(1, CELLS // len(columns))
        pieces = self._told(lambda: iter(frame.select(columns).collect_batches(chunk_size=size, maintain_order=True)))
        first, piece = 1, self._told(lambda: next(pieces, None))
        while piece is not None:
            following = self._told(lambda: next(pieces, None))
            if following is None and self.is_csv:
                piece = piece.head(max(0, piece.height - empty_at_the_end(self.path)))
            if piece.height:
                yield Batch(self, first, piece)
            first, piece = first + piece.height, following
        if first == 1:
            raise DataError(f"{self}: it has a header but no rows")

    def _told(self, action: Callable[[], T]) -> T:
        """Read something; say what is wrong with the file if that fails."""
        try:
            return action()
        except (pl.exceptions.PolarsError, OSError) as error:
            kind = "CSV" if self.is_csv else "Parquet"
            what = (str(error).strip().splitlines() or ["?"])[0]
            if "more fields" in what:
                what = f"a row has more cells than the first line's {len(self.header)}"
            raise DataError(f"{self}: damaged, cannot be read as {kind}: {what}") from error


def ids_of(batch: Batch) -> pl.Series:
    """Return the IDs of a batch: whole numbers or texts."""
    column = batch.table.settings.id or ""
    series = batch.frame[column]
    if batch.table.is_csv:
        series = series.str.strip_chars()
        series = series.set(series == "", None)
    if series.null_count():
        raise DataError(
            f"{batch.table}: {series.null_count()} rows have no ID in column '{column}', the first of them row "
            f"{batch.row(series.is_null())}; every row needs one"
        )
    if batch.table.is_csv:
        return series.cast(pl.Int64) if series.str.contains(_WHOLE).all() else series
    if series.dtype.is_integer():
        whole = series.cast(pl.Int64, strict=False)
        if whole.null_count():
            raise DataError(
                f"{batch.table}: the ID in row {batch.row(whole.is_null())} is too large; write it as a text"
            )
        return whole
    if series.dtype in (pl.String, pl.Categorical, pl.Enum):
        return series.cast(pl.String)
    raise DataError(f"{batch.table}: column '{column}' holds {series.dtype}; IDs must be whole numbers or texts")


def numbers_of(batch: Batch, column: str) -> Array | None:
    """Return a column as float64, NaN where there is no value; None if it holds texts.

    Raises:
        DataError: it holds numbers and texts, infinite numbers, or dates and the like.
    """
    series = batch.frame[column]
    if series.dtype == pl.Null:
        return np.full(len(series), np.nan)
    if (series.dtype == pl.String and not batch.table.is_csv) or series.dtype in (pl.Categorical, pl.Enum):
        return None if texts_of(batch, column).null_count() < len(series) else np.full(len(series), np.nan)
    if series.dtype == pl.String:
        known = series.is_not_null()
        values = series.cast(pl.Float64, strict=False)
        if (strange := values.is_null() & known).any():
            values = series.str.strip_chars().cast(pl.Float64, strict=False)
            strange = values.is_null() & known
        if strange.any():
            if int(strange.sum()) == int(known.sum()):
                return None
            number, text = batch.row(~strange & known), batch.row(strange)
            told = f"row {number} is the number '{batch.cell(column, number)}'"
            raise mixed(batch.table, column, f"{told}, row {text} the text '{batch.cell(column, text)}'")
    elif series.dtype.is_numeric() or series.dtype == pl.Boolean:
        values = series.cast(pl.Float64)
    else:
        raise DataError(
            f"{batch.table}: column '{column}' holds {series.dtype}, which is neither a number nor a text; "
            f"write it as numbers, or leave it out with silos.{batch.table.silo}.columns"
        )
    found = values.fill_null(float("nan")).to_numpy()
    if np.isinf(found).any():
        raise DataError(f"{batch.table}: column '{column}' is infinite in row {batch.row(np.isinf(found))}")
    return found


def texts_of(batch: Batch, column: str) -> pl.Series:
    """Return a column as texts, null where there is no value; whole numbers without a point."""
    series = batch.frame[column]
    if series.dtype == pl.String and batch.table.is_csv:
        return series.str.strip_chars()
    if series.dtype.is_float():
        series = series.fill_nan(None)
        if ((series == series.round()) | series.is_null()).all():
            series = series.cast(pl.Int64)
    if series.dtype.is_nested() or series.dtype.is_temporal() or series.dtype == pl.Binary:
        raise DataError(f"{batch.table}: column '{column}' holds {series.dtype}, which is no category")
    texts = series.cast(pl.String)
    return texts.set(texts.is_in(batch.table.settings.missing), None)


def mixed(table: Table, column: str, told: str) -> DataError:
    """Return the error about texts among numbers, or numbers among texts."""
    return DataError(
        f"{table}: column '{column}' holds numbers and texts: {told}. Mend the file; or, if the text means 'no value', "
        f"list it in silos.{table.silo}.missing; or, if these are categories, list the column in "
        f"silos.{table.silo}.categories"
    )


def feature_columns(tables: Sequence[Table], also: Mapping[str, str]) -> list[str]:
    """Return a silo's columns of features, which all of its clients must have.

    Args:
        tables: The silo's files.
        also: Columns that are no features, and what the job calls them.
    """
    first, settings = tables[0], tables[0].settings
    for table in tables:
        for column in settings.columns or ():
            table.need(column, "columns")
        for column in settings.categories:
            table.need(column, "categories")
    if settings.columns is not None:
        for column in settings.columns:
            if column in also:
                raise DataError(f"silos.{first.silo}.columns: '{column}' is {also[column]}, not a feature")
        return list(settings.columns)
    found = [column for column in first.header if column not in also]
    for table in tables[1:]:
        other = [column for column in table.header if column not in also]
        if set(other) != set(found):
            lacks, more = sorted(set(found) - set(other)), sorted(set(other) - set(found))
            told = [f"it lacks {listed(lacks)}"] * bool(lacks) + [f"it has {listed(more)}"] * bool(more)
            raise DataError(
                f"{table}: its columns are not those of client '{first.client}': {' and '.join(told)}. Clients of a "
                f"silo need the same columns; name those to use in silos.{first.silo}.columns"
            )
    if not found:
        raise DataError(f"{first}: it has no columns of features")
    return found
