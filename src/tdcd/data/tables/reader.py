"""Tables in CSV and Parquet files: opened with care, read a batch of rows at a time.

Whatever the file, a batch has columns of numbers or of texts; texts are stripped, and what means "no value" is null. A
cell of a CSV file stays a text until somebody asks for a number, so that what is wrong can be named with its row.
"""

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, KeysView, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import polars as pl
from polars import selectors as cs

from tdcd.data.arrays import Array
from tdcd.data.tables.cells import EXACT, numbers_among, spellings
from tdcd.data.tables.csv_lines import LineError, Span, find_spans
from tdcd.data.tables.encodings import EncodingError, find_encoding, open_utf8
from tdcd.data.tables.missing import no_values, raw_cells
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import DataError, join_names, nearest

T = TypeVar("T")

CELLS = 1_000_000
"""Read at a time, at most."""
AHEAD = 4
"""Batches of a Parquet file that may be read ahead."""
PEEK = 1000
"""Rows that are looked at to guess which columns hold numbers."""


class Numbers(NamedTuple):
    """A column of numbers."""

    values: Array
    """As float64, NaN where there is no value; dates count in days."""
    dates: bool
    whole: Array | None = None
    """As int64, where some are whole numbers that float64 does not hold; 0 where there is no value."""

    def less(self, shift: float) -> Array:
        """Return the differences from a number, exact also for large whole numbers; NaN where there is no value."""
        if self.whole is None:
            return self.values - shift
        base = int(shift)
        known = ~np.isnan(self.values)
        if not known.any():
            return self.values.copy()
        most, least = int(self.whole[known].max()), int(self.whole[known].min())
        if max(most - base, base - least) >= 2**63:
            return self.values - shift
        return np.where(known, (self.whole - base).astype(np.float64) - (shift - base), np.nan)

    def at(self, rows: Array) -> "Numbers":
        """Return those in some rows."""
        return Numbers(self.values[rows], self.dates, None if self.whole is None else self.whole[rows])


@dataclass(frozen=True)
class Batch:
    """Some rows of a table."""

    table: "TableHead"
    rows: Array
    """Their numbers in the file, ascending, from 1."""
    frame: pl.DataFrame
    numbers: dict[str, Numbers | None] = field(default_factory=dict)
    """Columns that were parsed as numbers, or are known to hold texts (None)."""
    texts: dict[str, pl.Series] = field(default_factory=dict)
    """Columns that were parsed as texts."""
    marks: dict[str, Array] = field(default_factory=dict)
    """Columns in which marks of ``missing_flags`` were looked for: the number of the mark in each row, from 1, or 0."""

    def __len__(self) -> int:
        return len(self.rows)

    def cell(self, column: str, row: int) -> str:
        """Return what stands in a row of the file, shortened."""
        value = self.frame[column][int(np.searchsorted(self.rows, row))]
        return (f"{value:.15g}" if isinstance(value, float) else str(value))[:40]

    def row(self, mask: pl.Series | Array) -> int:
        """Return the number of the first row for which a mask is true."""
        return int(self.rows[np.argmax(np.asarray(mask))])

    @property
    def nbytes(self) -> int:
        """The memory that its parsed columns take."""
        arrays = [array for column in self.numbers.values() if column for array in (column.values, column.whole)]
        return sum(array.nbytes for array in arrays if array is not None) + int(
            sum(series.estimated_size() for series in self.texts.values())
        )

    def parsed_at(self, places: Array) -> "Batch":
        """Return what was parsed of some rows, without the cells it was parsed from."""
        texts = {name: series.gather(places) for name, series in self.texts.items()}
        numbers = {name: None if column is None else column.at(places) for name, column in self.numbers.items()}
        marks = {name: column[places] for name, column in self.marks.items()}
        return Batch(self.table, self.rows[places], pl.DataFrame(), numbers, texts, marks)


@dataclass(frozen=True)
class TableHead(ABC):
    """What can be known of a client's file without reading its rows."""

    silo: str
    client: str
    path: Path
    settings: TableSettings

    def __str__(self) -> str:
        return f"silo '{self.silo}', client '{self.client}' ({self.path})"

    @property
    @abstractmethod
    def is_csv(self) -> bool:
        """Whether it is a CSV file, not Parquet."""

    @property
    @abstractmethod
    def header(self) -> KeysView[str]:
        """The names of its columns, in order."""

    @property
    def identity(self) -> str:
        """The column of IDs, which it must have."""
        return self.need(self.settings.id or "", "id")

    def advise(self, key: str) -> str:
        """Say where to say how its file is written."""
        return f"Set silos.{self.silo}.{key}, or {key} for client '{self.client}' alone"

    def need(self, column: str, key: str) -> str:
        """Check that it has a column, which the job names as ``key``."""
        if column not in self.header:
            hint = nearest(column, self.header)
            if len(self.header) == 1:
                (only,) = self.header
                others = [mark for mark in ";\t|," if mark in only]
                hint = f"; its first line is {only[:60]!r}"
                if others:
                    hint += f". Are its cells separated by {others[0]!r}? {self.advise('separator')}"
            raise DataError(f"{self}: it has no column '{column}' (silos.{self.silo}.{key}){hint}")
        return column


@dataclass(frozen=True)
class RemoteTable(TableHead):
    """A file at another site, as its client describes it."""

    csv: bool
    columns: tuple[str, ...]

    @property
    def is_csv(self) -> bool:
        """Whether it is a CSV file, not Parquet."""
        return self.csv

    @property
    def header(self) -> KeysView[str]:
        """The names of its columns, in order."""
        return dict.fromkeys(self.columns).keys()


@dataclass(frozen=True)
class Table(TableHead):
    """A client's file."""

    def __getstate__(self) -> dict[str, Any]:
        """Elsewhere it must be the same file: not looked at again, but compared with what it looked like here."""
        own = {"path": self.path.absolute(), "_stamp": self._stamp, "rows": self.rows, "_spans": self._spans}
        return {field.name: getattr(self, field.name) for field in fields(self)} | own

    @cached_property
    def is_csv(self) -> bool:
        """Whether it is a CSV file, not Parquet, by its name; checked against what is in it."""
        suffix = self.path.suffix.lower()
        if suffix not in (".csv", ".parquet"):
            raise DataError(f"{self}: neither a .csv nor a .parquet file by its name")
        start = self._start
        if not start.strip():
            raise DataError(f"{self}: the file is empty")
        parquet = start.startswith(b"PAR1")
        if suffix == ".csv" and parquet:
            raise DataError(f"{self}: named .csv but holds Parquet; rename it to .parquet")
        if suffix == ".csv" and b"\0" in start and not self.encoding.startswith(("utf-16", "utf-32")):
            raise DataError(
                f"{self}: named .csv but is no text; is it compressed, or a spreadsheet? Save it as CSV. If it is in "
                f'UTF-16 without a mark, say so: encoding = "utf-16-le". {self.advise("encoding")}'
            )
        if suffix == ".csv" and b"\r" in start and b"\n" not in start:
            raise DataError(f"{self}: its lines end in a carriage return only; save it with usual line ends")
        if suffix == ".parquet" and not parquet:
            raise DataError(f"{self}: named .parquet but holds something else; is it a CSV file? Rename it to .csv")
        return suffix == ".csv"

    @cached_property
    def _start(self) -> bytes:
        """Its first bytes."""
        try:
            with self.path.open("rb") as file:
                return file.read(4096)
        except FileNotFoundError as error:
            raise DataError(f"{self}: no such file") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self}: cannot be read: {getattr(error, 'strerror', error)}") from error

    @property
    def encoding(self) -> str:
        """The encoding of a CSV file."""
        return find_encoding(self._start, self.settings.encoding)

    @cached_property
    def header(self) -> KeysView[str]:
        """The names of its columns, in order."""
        if not self.is_csv:
            return dict.fromkeys(
                self._guarded(lambda: pl.scan_parquet(self.path, glob=False).collect_schema()).names()
            ).keys()
        try:
            with TextIOWrapper(self._open(), encoding="utf-8-sig", newline="") as file:
                first = next(csv.reader(file, delimiter=self.settings.separator), [])
        except (OSError, ValueError, csv.Error) as error:
            raise DataError(f"{self}: cannot be read as CSV: {error}. {self._other_encoding}") from error
        names = [name.strip() for name in first]
        if not names:
            raise DataError(f"{self}: its first line is empty; it must name the columns")
        if "" in names:
            raise DataError(f"{self}: column {names.index('') + 1} has no name in the first line")
        doubles = [name for name, count in Counter(names).items() if count > 1]
        if doubles:
            raise DataError(f"{self}: several columns have the same name in the first line: {join_names(doubles)}")
        return dict.fromkeys(names).keys()

    @cached_property
    def _stamp(self) -> tuple[int, int]:
        """What the file looked like when it was first read."""
        return self._look_at_file()

    def _look_at_file(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except OSError as error:
            raise DataError(f"{self}: cannot be read: {error.strerror}") from error
        return status.st_size, status.st_mtime_ns

    @property
    def changed(self) -> bool:
        """Whether the file does not look as it did when it was first read."""
        return self._stamp != self._look_at_file()

    def check_unchanged(self) -> None:
        """Rows are known by their number from one pass to the next, so the file must stay what it was."""
        if self.changed:
            raise DataError(f"{self}: it has changed while it was being read; start again when it is complete")

    @cached_property
    def rows(self) -> int:
        """The number of its rows, counted without reading them; every line of a CSV file is checked."""
        if self.is_csv:
            return sum(span.rows for span in self._spans)
        return int(self._guarded(lambda: pl.scan_parquet(self.path, glob=False).select(pl.len()).collect().item()))

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        """Where the rows of a CSV file lie."""
        if not self.is_csv:
            return ()
        try:
            with self._open() as file:
                return find_spans(file, self.settings.separator, len(self.header))
        except LineError as error:
            raise DataError(f"{self}: {error}") from error

    def batches(self, columns: Sequence[str], *, typed: bool = False, after: int = 0) -> Iterator[Batch]:
        """Read some of its columns, a batch of rows at a time, in the order of the file.

        Args:
            columns: Their names.
            typed: Read columns of a CSV file that seem to hold plain numbers as such, which is faster. From the first
                cell on that is none, whatever it is, all cells are read as texts.
            after: Leave out so many rows.
        """
        self.check_unchanged()
        if not self.rows:
            raise DataError(f"{self}: it has a header but no rows")
        names, done = list(dict.fromkeys(columns)), after
        numeric = self._numeric & set(names) if typed and self.is_csv else frozenset()
        for piece in self._pieces(names, numeric, done) if numeric and done < self.rows else ():
            yield Batch(self, np.arange(done + 1, done + 1 + piece.height), piece)
            done += piece.height
        if done < self.rows:
            for piece in self._pieces(names, frozenset(), done):
                yield Batch(self, np.arange(done + 1, done + 1 + piece.height), piece)
                done += piece.height
        self.check_unchanged()
        if done < self.rows:
            raise DataError(f"{self}: damaged: {done} of its {self.rows} rows can be read; get it again")

    def _pieces(self, names: list[str], numeric: frozenset[str], skip: int = 0) -> Iterator[pl.DataFrame]:
        """Yield rows; where columns are read as numbers, only up to the first piece that holds something else."""
        cleaning = (*no_values(self.settings, csv=self.is_csv), *raw_cells(self.settings, names))
        size = max(1, CELLS // len(names))
        try:
            for scanned in self._scans(numeric, skip, AHEAD * size):
                cleaned = scanned.select(cs.by_name(*names)).with_columns(*cleaning)
                for piece in cleaned.collect_batches(chunk_size=size, maintain_order=True):
                    if numeric and not all_plain(piece.select(sorted(numeric))):
                        return
                    yield piece
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            if not numeric:
                raise self._damaged(error) from error

    def _scans(self, numeric: frozenset[str], skip: int, ahead: int) -> Iterator[pl.LazyFrame]:
        """Yield the rows after some of them, a few at a time: polars reads ahead as far as it may."""
        if not self.is_csv:
            for begin in range(skip, self.rows, ahead):
                yield pl.scan_parquet(self.path, glob=False).slice(begin, ahead)
            return
        done = 0
        with self._open() as file:
            for span in self._spans:
                if done + span.rows > skip:
                    file.seek(span.begin)
                    scanned = self._scanned_csv(file.read(span.end - span.begin), numeric)
                    within = max(0, skip - done)
                    yield scanned.slice(within, span.rows - within)  # a file may end in empty lines
                done += span.rows

    @cached_property
    def _numeric(self) -> frozenset[str]:
        """The columns of a CSV file that hold plain numbers in its first rows, and can mean nothing else."""
        settings = self.settings
        plain = (settings.decimal, settings.thousands) == (".", "")
        if not plain or settings.missing_flags or numbers_among(settings.missing):
            return frozenset()
        cleaning = [*no_values(settings, csv=True)]
        scanned = next(self._scans(frozenset(), 0, PEEK))
        first = self._guarded(lambda: scanned.head(PEEK).with_columns(*cleaning).collect())
        taken = {settings.id, settings.label, *settings.categories}
        return frozenset(
            name
            for name in first.columns
            if name not in taken and 0 < first[name].cast(pl.Float64, strict=False).count() == first[name].count()
        )

    def _scanned_csv(self, rows: bytes, numeric: frozenset[str]) -> pl.LazyFrame:
        return pl.scan_csv(
            rows,
            has_header=False,
            schema={name: pl.Float64 if name in numeric else pl.String for name in self.header},
            separator=self.settings.separator,
            null_values=sorted({"", *spellings(self.settings.missing)}) if numeric else None,
        )

    def _open(self) -> BinaryIO:
        """Open a CSV file as text in UTF-8."""
        try:
            return open_utf8(self.path, self.encoding)
        except EncodingError as error:
            raise DataError(f"{self}: {error}. {self._other_encoding}") from error
        except OSError as error:
            raise DataError(f"{self}: cannot be read: {error.strerror}") from error

    @property
    def _other_encoding(self) -> str:
        """What to do about a file in another encoding."""
        return f'Save it in UTF-8, or name its encoding, such as "cp1252". {self.advise("encoding")}'

    def _guarded(self, action: Callable[[], T]) -> T:
        """Read something; say what is wrong with the file if that fails."""
        try:
            return action()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        kind = "CSV" if self.is_csv else "Parquet"
        what = (str(error).strip().splitlines() or ["?"])[0]
        what += f". {self._other_encoding}" if "utf-8" in what else ""
        return DataError(f"{self}: damaged, cannot be read as {kind}: {what}")


def all_plain(numbers: pl.DataFrame) -> bool:
    """Tell whether columns of float64 hold finite numbers of ordinary size: the same however they are written."""
    largest = numbers.select(pl.all().abs().max()).row(0)
    return not any(map(any, numbers.select(pl.all().is_nan().any()).rows())) and all(
        one is None or one <= EXACT for one in largest
    )
