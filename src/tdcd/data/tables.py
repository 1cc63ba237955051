"""Tables in CSV and Parquet files: opened with care, read a batch of rows at a time.

Whatever the file, a batch has columns of numbers or of texts; texts are stripped, and what means "no value" is null. A
cell of a CSV file stays a text until somebody asks for a number, so that what is wrong can be named with its row.
"""

import csv
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from polars import selectors as cs

from tdcd.data.arrays import NUMBER, Array
from tdcd.data.lines import LineError, count_rows
from tdcd.data.tablesettings import TableSettings
from tdcd.errors import DataError, join_names, nearest

T = TypeVar("T")

CELLS = 2_000_000
"""Read at a time, at most."""
PEEK = 1000
"""Rows that are looked at to guess which columns hold numbers."""
_UTF8 = "it must be text in UTF-8: save it so, or convert it with: iconv -f cp1252 -t utf-8"
LONGEST = 256
"""Characters of an ID or a label."""
_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""A whole number as nobody writes a text: 007 is a text."""
_DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?Z?)?$"
_DAY = 24 * 3600 * 1_000_000
"""Microseconds."""
_INDEX = re.compile(r"__index_level_\d+__|")
"""What data frames call their index in Parquet files: nothing that a person would measure."""


@dataclass(frozen=True)
class Batch:
    """Some rows of a table."""

    table: "Table"
    first: int
    """The number of its first row in the file; rows are numbered from 1."""
    frame: pl.DataFrame

    def cell(self, column: str, row: int) -> str:
        """Return what stands in a row of the file, shortened."""
        value = self.frame[column][row - self.first]
        return (f"{value:.15g}" if isinstance(value, float) else str(value))[:40]

    def row(self, mask: pl.Series | Array) -> int:
        """Return the number of the first row for which a mask is true."""
        return self.first + int(np.argmax(np.asarray(mask)))


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

    def need(self, column: str, key: str) -> str:
        """Check that it has a column, which the job names as ``key``."""
        if column not in self.header:
            hint = nearest(column, self.header)
            if len(self.header) == 1:
                (only,) = self.header
                others = [mark for mark in ";\t|," if mark in only]
                hint = f"; its first line is '{only[:60]}'"
                if others:
                    hint += f". Are its cells separated by '{others[0]}'? Set silos.{self.silo}.separator"
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
        except (OSError, ValueError) as error:
            raise DataError(f"{self}: cannot be read: {getattr(error, 'strerror', error)}") from error
        if not start.strip():
            raise DataError(f"{self}: the file is empty")
        parquet = start.startswith(b"PAR1")
        if suffix == ".csv" and parquet:
            raise DataError(f"{self}: named .csv but holds Parquet; rename it to .parquet")
        if suffix == ".csv" and b"\0" in start:
            raise DataError(f"{self}: named .csv but is no text; is it compressed, or a spreadsheet? Save it as CSV")
        if suffix == ".csv" and b"\r" in start and b"\n" not in start:
            raise DataError(f"{self}: its lines end in a carriage return only; save it with usual line ends")
        if suffix == ".parquet" and not parquet:
            raise DataError(f"{self}: named .parquet but holds something else; is it a CSV file? Rename it to .csv")
        return suffix == ".csv"

    @cached_property
    def header(self) -> KeysView[str]:
        """The names of its columns, in order."""
        if not self.is_csv:
            return dict.fromkeys(self._guarded(lambda: self._scanned().collect_schema()).names()).keys()
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                first = next(csv.reader(file, delimiter=self.settings.separator), [])
        except (OSError, ValueError, csv.Error) as error:
            raise DataError(f"{self}: cannot be read as CSV: {error}; {_UTF8}") from error
        names = [name.strip() for name in first]
        if not names:
            raise DataError(f"{self}: its first line is empty; it must name the columns")
        if "" in names:
            raise DataError(f"{self}: column {names.index('') + 1} has no name in the first line")
        doubles = [name for name, count in Counter(names).items() if count > 1]
        if doubles:
            raise DataError(f"{self}: several columns have the same name: {join_names(doubles)}")
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

    def _check_unchanged(self) -> None:
        """Rows are known by their number from one pass to the next, so the file must stay what it was."""
        if self._stamp != self._look_at_file():
            raise DataError(f"{self}: it has changed while it was being read; start again when it is complete")

    @cached_property
    def rows(self) -> int:
        """The number of its rows, counted without reading them; every line of a CSV file is checked."""
        if not self.is_csv:
            return int(self._guarded(lambda: self._scanned().select(pl.len()).collect().item()))
        try:
            return count_rows(self.path, self.settings.separator, len(self.header))
        except LineError as error:
            raise DataError(f"{self}: {error}") from error

    def batches(self, columns: Sequence[str], *, typed: bool = False) -> Iterator[Batch]:
        """Read some of its columns, a batch of rows at a time, in the order of the file.

        Args:
            columns: Their names.
            typed: Read columns of a CSV file that seem to hold plain numbers as such, which is faster. From the first
                cell on that is none, whatever it is, all cells are read as texts.
        """
        self._check_unchanged()
        if not self.rows:
            raise DataError(f"{self}: it has a header but no rows")
        names, done = list(dict.fromkeys(columns)), 0
        numeric = self._numeric & set(names) if typed and self.is_csv else frozenset()
        for piece in self._pieces(names, numeric) if numeric else ():
            yield Batch(self, done + 1, piece)
            done += piece.height
        if done < self.rows:
            for piece in self._pieces(names, frozenset(), done):
                yield Batch(self, done + 1, piece)
                done += piece.height
        self._check_unchanged()
        if done < self.rows:
            raise DataError(f"{self}: damaged: {done} of its {self.rows} rows can be read; get it again")

    def _pieces(self, names: list[str], numeric: frozenset[str], skip: int = 0) -> Iterator[pl.DataFrame]:
        """Yield rows; where columns are read as numbers, only up to the first piece that holds something else."""
        cleaned = self._scanned(numeric).select(cs.by_name(*names)).with_columns(*self._no_values())
        cleaned = cleaned.slice(skip) if skip else cleaned
        size = max(1, CELLS // len(names))
        try:
            pieces = iter(cleaned.collect_batches(chunk_size=size, maintain_order=True))
            while skip < self.rows and (piece := next(pieces, None)) is not None:
                piece = piece.head(self.rows - skip)  # a CSV file may end in empty lines
                if numeric and not _all_plain(piece.select(sorted(numeric))):
                    return
                yield piece
                skip += piece.height
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            if not numeric:
                raise self._damaged(error) from error

    @cached_property
    def _numeric(self) -> frozenset[str]:
        """The columns of a CSV file that hold plain numbers in its first rows, and can mean nothing else."""
        settings = self.settings
        if (settings.decimal, settings.thousands) != (".", "") or _numbers(settings.missing):
            return frozenset()
        first = self._guarded(lambda: self._scanned().head(PEEK).with_columns(*self._no_values()).collect())
        taken = {settings.id, settings.label, *settings.categories}
        return frozenset(
            name
            for name in first.columns
            if name not in taken and 0 < first[name].cast(pl.Float64, strict=False).count() == first[name].count()
        )

    def _scanned(self, numeric: frozenset[str] = frozenset()) -> pl.LazyFrame:
        if not self.is_csv:
            return pl.scan_parquet(self.path, glob=False)
        return pl.scan_csv(
            self.path,
            has_header=False,
            skip_rows=1,
            schema={name: pl.Float64 if name in numeric else pl.String for name in self.header},
            separator=self.settings.separator,
            null_values=sorted({"", *_spellings(self.settings.missing)}) if numeric else None,
            glob=False,
        )

    def _no_values(self) -> Iterator[pl.Expr]:
        """Say how cells become null: texts once they are stripped, numbers by their value."""
        texts = (cs.string() | cs.categorical() | cs.enum() | cs.boolean()).cast(pl.String).str.strip_chars()
        yield pl.when(~texts.is_in(sorted({"", *_spellings(self.settings.missing)}))).then(texts)
        if not self.is_csv:
            marks = _numbers(self.settings.missing)
            whole = [int(mark) for mark in marks if mark.is_integer()]
            integer, single, double = cs.integer(), cs.by_dtype(pl.Float32), cs.by_dtype(pl.Float64)
            yield pl.when(~integer.cast(pl.Int64, strict=False).is_in(whole).fill_null(value=False)).then(integer)
            for kind, values in ((single, [float(np.float32(mark)) for mark in marks]), (double, marks)):
                yield pl.when(~(kind.is_nan() | kind.cast(pl.Float64).is_in(values))).then(kind)
            yield pl.when(~cs.decimal().cast(pl.Float64).is_in(marks)).then(cs.decimal())
            days = _days(pl.Series(self.settings.missing, dtype=pl.String)).drop_nulls().to_list()
            dates = cs.date() | cs.datetime()
            yield pl.when(~(dates.cast(pl.Datetime("us")).dt.epoch("us") / _DAY).is_in(days)).then(dates)

    def _guarded(self, action: Callable[[], T]) -> T:
        """Read something; say what is wrong with the file if that fails."""
        try:
            return action()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DataError:
        kind = "CSV" if self.is_csv else "Parquet"
        what = (str(error).strip().splitlines() or ["?"])[0]
        what += f"; {_UTF8}" if "utf-8" in what else ""
        return DataError(f"{self}: damaged, cannot be read as {kind}: {what}")


def _all_plain(numbers: pl.DataFrame) -> bool:
    """Tell whether columns of float64 hold finite numbers of ordinary size: the same however they are written."""
    largest = numbers.select(pl.all().abs().max()).row(0)
    return not any(map(any, numbers.select(pl.all().is_nan().any()).rows())) and all(
        one is None or one <= EXACT for one in largest
    )


def ids_of(batch: Batch) -> pl.Series:
    """Return the IDs of a batch: whole numbers or texts."""
    table, series = batch.table, batch.frame[batch.table.identity]
    if series.null_count():
        raise DataError(
            f"{table}: {series.null_count()} rows have no ID in column '{series.name}', the first of them row "
            f"{batch.row(series.is_null())}; every row needs one"
        )
    if series.dtype == pl.String:
        check_lengths(batch, series)
        numbers = series.cast(pl.Int64, strict=False)
        whole = table.is_csv and series.str.contains(_WHOLE).all() and not numbers.null_count()
        return numbers if whole else series
    if series.dtype.is_integer():
        numbers = series.cast(pl.Int64, strict=False)
        if numbers.null_count():
            row = batch.row(numbers.is_null())
            raise DataError(f"{table}: the ID in row {row} is too large for a whole number; write it as a text")
        return numbers
    raise DataError(f"{table}: column '{series.name}' holds {series.dtype}; IDs must be whole numbers or texts")


def check_lengths(batch: Batch, texts: pl.Series) -> None:
    """Check that IDs or labels are short, and without NUL: numpy gives every one the room of the longest, and NULs."""
    null = texts.str.contains("\0", literal=True)
    if null.any():
        raise DataError(
            f"{batch.table}: column '{texts.name}' holds the character NUL in row {batch.row(null)}; remove it"
        )
    long = texts.str.len_chars() > LONGEST
    if long.any():
        raise DataError(
            f"{batch.table}: column '{texts.name}' has more than {LONGEST} characters in row {batch.row(long)}; "
            "is it the right column?"
        )


EXACT = 2.0**53
"""Up to here float64 holds every whole number."""


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
        most, least = int(self.whole[known].max()), int(self.whole[known].min())
        if max(most - base, base - least) >= 2**63:
            return self.values - shift
        return np.where(known, (self.whole - base).astype(np.float64) - (shift - base), np.nan)


def numbers_of(batch: Batch, column: str) -> Numbers | None:
    """Return a column of numbers or dates; None if it holds texts.

    Raises:
        DataError: it holds numbers and texts, infinite numbers, or what is neither.
    """
    series, settings = batch.frame[column], batch.table.settings
    dates, written = series.dtype in (pl.Date, pl.Datetime), series
    if series.null_count() == len(series):
        return Numbers(np.full(len(series), np.nan), dates=False)
    if dates:
        values = series.cast(pl.Datetime("us")).dt.epoch("us") / _DAY
    elif series.dtype == pl.String and (plain := _plain_numbers(batch, series)) is not None:
        return plain
    elif series.dtype == pl.String:
        written = _plainly(series, settings)
        values = _parsed(written) if batch.table.is_csv else series.clear(len(series)).cast(pl.Float64)
        if (marked := values.is_in(_numbers(settings.missing))).any():  # a mark, perhaps written in another way
            series, values = series.set(marked, None), values.set(marked, None)
        if values.null_count() == len(values):
            values = _days(series)
            dates = values.null_count() < len(values)
        strange = values.is_null() & series.is_not_null()
        if strange.any():
            if values.null_count() == len(values):
                return None
            number, text = batch.row(values.is_not_null()), batch.row(strange)
            parts = f"row {number} is '{batch.cell(column, number)}'"
            raise mixed(batch.table, column, f"{parts}, row {text} the text '{batch.cell(column, text)}'")
    elif series.dtype.is_numeric():
        values = series.cast(pl.Float64)
    else:
        raise DataError(
            f"{batch.table}: column '{column}' holds {series.dtype}, which is neither a number nor a text; "
            f"write it as numbers, or leave it out with silos.{batch.table.silo}.exclude"
        )
    result = values.fill_null(float("nan")).to_numpy()
    if np.isinf(result).any():
        raise DataError(f"{batch.table}: column '{column}' is infinite in row {batch.row(np.isinf(result))}")
    large = not dates and bool((np.abs(result) > EXACT).any())
    return Numbers(result, dates, _whole(written, values) if large else None)


def _plain_numbers(batch: Batch, series: pl.Series) -> Numbers | None:
    """Return a column of a CSV file that holds nothing but finite numbers of ordinary size; None if it may not.

    Most columns do: this takes a third of the time of looking at every case.
    """
    settings = batch.table.settings
    if not batch.table.is_csv or (settings.decimal, settings.thousands) != (".", "") or _numbers(settings.missing):
        return None
    values, missing = series.cast(pl.Float64, strict=False), series.null_count()
    if values.null_count() != missing:
        return None
    array = values.fill_null(float("nan")).to_numpy()
    known = array[~np.isnan(array)] if missing else array
    if len(known) != len(array) - missing or not np.isfinite(known).all() or (np.abs(known) > EXACT).any():
        return None
    return Numbers(array, dates=False)


def _whole(written: pl.Series, values: pl.Series) -> Array | None:
    """Return numbers as int64, if all of them are whole as they are written, and small enough."""
    numbers = written.set(values.is_null(), None).cast(pl.Int64, strict=False)
    exact = written.dtype == pl.String or written.dtype.is_integer()
    return numbers.fill_null(0).to_numpy() if exact and numbers.null_count() == values.null_count() else None


def _plainly(texts: pl.Series, settings: TableSettings) -> pl.Series:
    """Write numbers with a decimal point and nothing between digits; null where a text is no number."""
    decimal, thousands = re.escape(settings.decimal), re.escape(settings.thousands)
    if (settings.decimal, settings.thousands) != (".", ""):
        groups = rf"[0-9]{{1,3}}({thousands}[0-9]{{3}})+|" if thousands else ""
        written = texts.str.contains(rf"^[+-]?({groups}[0-9]+)({decimal}[0-9]*)?([eE][+-]?[0-9]+)?$")
        texts = texts.set(~written, None)
        if settings.thousands:
            texts = texts.str.replace_all(settings.thousands, "", literal=True)
        texts = texts.str.replace(settings.decimal, ".", literal=True)
    return texts


def _parsed(texts: pl.Series) -> pl.Series:
    """Read numbers that are written plainly; null where a text is none."""
    values = texts.cast(pl.Float64, strict=False)
    return values.set(values.is_nan() | values.is_infinite(), None)  # "nan" and "inf" are texts


def _days(texts: pl.Series) -> pl.Series:
    """Read dates such as 2026-01-28 or 2026-01-28 12:30:00 as days; null where a text is none."""
    dates = texts.set(~texts.str.contains(_DATE), None)
    if dates.null_count() == len(dates):
        return dates.cast(pl.Float64)
    dates = dates.str.replace("T", " ", literal=True).str.strip_suffix("Z")
    dates = dates.str.replace("^(.{10})$", "$1 00:00").str.replace("^(.{16})$", "$1:00")
    return dates.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("us") / _DAY


def texts_of(batch: Batch, column: str) -> pl.Series:
    """Return a column as texts, null where there is no value; codes of categories in one way of writing."""
    series = batch.frame[column]
    if series.dtype.is_nested() or series.dtype.is_temporal() or series.dtype == pl.Binary:
        raise DataError(f"{batch.table}: column '{column}' holds {series.dtype}, which is no category")
    if series.dtype != pl.String or column in batch.table.settings.categories:
        series = codes(series, batch.table)
    if marks := [mark for mark in batch.table.settings.missing if _number(mark) is not None]:
        written = codes(pl.Series(marks, dtype=pl.String), batch.table)
        series = series.set(codes(series, batch.table).is_in(written), None)
    truths = series.is_in(sorted(_spellings(["true", "false"])))
    return series.set(truths, None).fill_null(series.str.to_lowercase()) if truths.any() else series


def codes(series: pl.Series, table: Table, *, names: bool = False) -> pl.Series:
    """Write numbers in one way, 1 for 1.0 and 1e0; leave other texts, and whole numbers such as 007, as they are.

    Where texts may be ``names``, 1e0 stays as it is, too.
    """
    texts = series.cast(pl.String)
    if series.dtype.is_integer():
        return texts
    if series.dtype == pl.String:
        texts = _plainly(texts, table.settings if table.is_csv else TableSettings()).fill_null(texts)
    exponent = r"" if names else r"([eE][+-]?[0-9]+)?"
    decimals = texts.set(~texts.str.contains(rf"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+){exponent}$"), None)
    decimals = decimals.set(decimals.str.contains(r"^-?[0-9]+$"), None)
    numbers = series.cast(pl.Float64) if series.dtype.is_float() else decimals.cast(pl.Float64, strict=False)
    if numbers.null_count() == len(numbers):
        return texts
    whole = (numbers == numbers.round()) & (numbers.abs() < 2.0**63)
    written = numbers.set(~whole, None).cast(pl.Int64).cast(pl.String).fill_null(numbers.cast(pl.String))
    return written.fill_null(texts).alias(series.name)


def mixed(table: TableHead, column: str, cells: str) -> DataError:
    """Return the error about texts among numbers, or numbers among texts."""
    return DataError(
        f"{table}: column '{column}' holds numbers and texts: {cells}. Mend the file; or, if the text means 'no "
        f"value', list it in silos.{table.silo}.missing; or, if these are categories, list the column in "
        f"silos.{table.silo}.categories"
    )


def _spellings(words: Iterable[str]) -> set[str]:
    """Return words as people write them, in large and small letters; to compare all cells in small ones is slow."""
    return {how(word.strip()) for word in words for how in (str, str.lower, str.upper, str.title, str.capitalize)}


def _number(text: str) -> float | None:
    """Return a text as a number, if it is a finite one; Python takes 1_10 for one, too."""
    if not NUMBER.fullmatch(text.strip()):
        return None
    result = float(text)
    return result if isfinite(result) else None


def _numbers(texts: Iterable[str]) -> list[float]:
    """Return those of some texts that are numbers."""
    return [number for text in texts if (number := _number(text)) is not None]


def feature_columns(tables: Sequence[TableHead], also: Mapping[str, str], *, none: bool = False) -> list[str]:
    """Return a silo's columns of features, if any, which all of its clients must have.

    Args:
        tables: The silo's files.
        also: Columns that are no features, and what the job calls them.
        none: Whether there may be none.
    """
    first, settings = tables[0], tables[0].settings
    named = {"columns": settings.columns or (), "categories": settings.categories, "exclude": settings.exclude}
    for key, wanted in named.items():
        for column in wanted:
            if column in also and key != "exclude":
                raise DataError(f"silos.{first.silo}.{key}: '{column}' is {also[column]}, not a feature")
            for table in tables:
                table.need(column, key)
    if settings.columns is not None:
        if settings.exclude:
            raise DataError(f"silos.{first.silo}.exclude: columns says what is used; leave one of them out")
        doubles = [column for column, count in Counter(settings.columns).items() if count > 1]
        if doubles:
            raise DataError(f"silos.{first.silo}.columns: named twice: {join_names(doubles)}")
        return list(settings.columns)
    also = {**also, **dict.fromkeys(settings.exclude, "excluded")}
    result = [column for column in first.header if column not in also]
    for table in tables[1:]:
        other = [column for column in table.header if column not in also]
        if set(other) != set(result):
            lacks, more = sorted(set(result) - set(other)), sorted(set(other) - set(result))
            parts = [f"it lacks {join_names(lacks)}"] * bool(lacks) + [f"it has {join_names(more)}"] * bool(more)
            raise DataError(
                f"{table}: its columns are not those of client '{first.client}': {' and '.join(parts)}. Clients of a "
                f"silo need the same columns; name those to use in silos.{first.silo}.columns"
            )
    if strange := [column for column in result if _INDEX.fullmatch(column)]:
        raise DataError(
            f"{first}: the column '{strange[0]}' is the index of a data frame; leave it out with "
            f"silos.{first.silo}.exclude, or write the file without it"
        )
    if not result and not none:
        raise DataError(f"{first}: it has no columns of features")
    order = min(tables, key=lambda table: table.client).header  # the same one wherever and however clients are listed
    return [column for column in order if column in set(result)]
