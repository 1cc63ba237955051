"""A batch's columns as numbers, dates, texts or IDs."""

import numpy as np
import polars as pl

from tdcd.data.arrays import LONGEST, Array
from tdcd.data.tables.cells import (
    DAY,
    EXACT,
    as_number,
    numbers_among,
    parse_dates,
    parse_days,
    parse_numbers,
    spellings,
    write_plainly,
)
from tdcd.data.tables.missing import RAW
from tdcd.data.tables.reader import Batch, Numbers, TableHead
from tdcd.data.tables.settings import TableSettings
from tdcd.data.tables.suspects import date_spellings
from tdcd.errors import DataError

_WHOLE = r"^(0|-?[1-9][0-9]{0,18})$"
"""A whole number as nobody writes a text: 007 is a text."""


def order_of(batch: Batch, column: str) -> Array:
    """Return a column of numbers or dates that says which row is the last.

    Raises:
        DataError: it holds something else, or has no value in a row.
    """
    numbers, table = numbers_of(batch, column), batch.table
    if numbers is None:
        raise DataError(
            f"{table}: column '{column}' (silos.{table.silo}.order) holds texts; name one of numbers or dates"
        )
    unknown = np.isnan(numbers.values)
    if unknown.any():
        raise DataError(
            f"{table}: column '{column}' (silos.{table.silo}.order) has no value in row {batch.row(unknown)}; it says "
            "which row is the last, so every row needs one"
        )
    return numbers.values if numbers.whole is None else numbers.whole


def ids_of(batch: Batch, column: str) -> pl.Series:
    """Return a column of IDs: whole numbers or texts."""
    table, series = batch.table, batch.frame[column]
    if series.null_count():
        raise DataError(
            f"{table}: {series.null_count()} rows have no ID in column '{series.name}', the first of them row "
            f"{batch.row(series.is_null())}; every row needs one"
        )
    if series.dtype == pl.String:
        check_lengths(batch, series)
        return whole_or_texts(series) if table.is_csv else series
    if series.dtype.is_integer():
        numbers = series.cast(pl.Int64, strict=False)
        if numbers.null_count():
            row = batch.row(numbers.is_null())
            raise DataError(f"{table}: the ID in row {row} is too large for a whole number; write it as a text")
        return numbers
    raise DataError(f"{table}: column '{series.name}' holds {series.dtype}; IDs must be whole numbers or texts")


def whole_or_texts(texts: pl.Series) -> pl.Series:
    """Return IDs that are written as texts: as whole numbers if all of them are such."""
    numbers = texts.cast(pl.Int64, strict=False)
    whole = texts.str.contains(_WHOLE).all() and not numbers.null_count()
    return numbers if whole else texts


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


def numbers_of(batch: Batch, column: str) -> Numbers | None:
    """Return a column of numbers or dates; None if it holds texts.

    Raises:
        DataError: it holds numbers and texts, infinite numbers, or what is neither.
    """
    if column not in batch.numbers:
        batch.numbers[column] = _parse_column(batch, column)
    return batch.numbers[column]


def _parse_column(batch: Batch, column: str) -> Numbers | None:
    series, settings = batch.frame[column], batch.table.settings
    dates, written = series.dtype in (pl.Date, pl.Datetime), series
    if series.null_count() == len(series):
        return Numbers(np.full(len(series), np.nan), dates=False)
    if dates:
        values = series.cast(pl.Datetime("us")).dt.epoch("us") / DAY
    elif series.dtype == pl.String and (plain := _plain_numbers(batch, series)) is not None:
        return plain
    elif series.dtype == pl.String:
        written = write_plainly(series, settings)
        values = parse_numbers(written) if batch.table.is_csv else series.clear(len(series)).cast(pl.Float64)
        marks = numbers_among(settings.missing)
        if marks and (marked := values.is_in(marks)).any():  # a mark, perhaps written in another way
            series, values = series.set(marked, None), values.set(marked, None)
        if values.null_count() == len(values):
            values = parse_dates(series, settings.date_format)
            dates = values.null_count() < len(values)
            days = parse_days(pl.Series(settings.missing, dtype=pl.String)).drop_nulls().to_list() if dates else []
            if days and (marked := values.is_in(days)).any():  # a mark is written as 2026-01-28 in any file
                series, values = series.set(marked, None), values.set(marked, None)
        strange = values.is_null() & series.is_not_null()
        if strange.any():
            if values.null_count() == len(values):
                return None
            number, text = batch.row(values.is_not_null()), batch.row(strange)
            parts = f"row {number} is '{batch.cell(column, number)}'"
            ways = [[*date_spellings([batch.cell(column, row)])] for row in (number, text)]
            if dates and ways[1] and ways[0] != ways[1]:
                raise DataError(
                    f"{batch.table}: column '{column}' holds dates in two spellings: {parts}, row {text} "
                    f"'{batch.cell(column, text)}'. Write all of them in one, best as 2026-01-28"
                )
            raise mixed(batch.table, column, f"{parts}, row {text} the text '{batch.cell(column, text)}'")
    elif series.dtype.is_numeric():
        values = series.cast(pl.Float64)
    else:
        raise DataError(
            f"{batch.table}: column '{column}' holds {series.dtype}, which is neither a number nor a text; "
            f"write it as numbers, or leave it out with silos.{batch.table.silo}.exclude"
        )
    result = (values.fill_null(float("nan")) if values.null_count() else values).to_numpy()
    if np.isinf(result).any():
        raise DataError(f"{batch.table}: column '{column}' is infinite in row {batch.row(np.isinf(result))}")
    large = not dates and bool((np.abs(result) > EXACT).any())
    return Numbers(result, dates, _whole(written, values) if large else None)


def _plain_numbers(batch: Batch, series: pl.Series) -> Numbers | None:
    """Return a column of a CSV file that holds nothing but finite numbers of ordinary size; None if it may not.

    Most columns do: this takes a third of the time of looking at every case.
    """
    settings = batch.table.settings
    if not batch.table.is_csv or (settings.decimal, settings.thousands) != (".", "") or numbers_among(settings.missing):
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


def texts_of(batch: Batch, column: str) -> pl.Series:
    """Return a column as texts, null where there is no value; codes of categories in one way of writing."""
    if column not in batch.texts:
        surveyed = column not in batch.frame.columns  # and found without any value, or its texts would be here
        batch.texts[column] = (
            pl.Series(column, [None] * len(batch), dtype=pl.String) if surveyed else _parse_texts(batch, column)
        )
    return batch.texts[column]


def _parse_texts(batch: Batch, column: str) -> pl.Series:
    series = batch.frame[column]
    if series.dtype.is_nested() or series.dtype.is_temporal() or series.dtype == pl.Binary:
        raise DataError(f"{batch.table}: column '{column}' holds {series.dtype}, which is no category")
    if series.dtype != pl.String or column in batch.table.settings.categories:
        series = codes(series, batch.table)
    if marks := [mark for mark in batch.table.settings.missing if as_number(mark) is not None]:
        written = codes(pl.Series(marks, dtype=pl.String), batch.table).to_list()
        series = series.set(codes(series, batch.table).is_in(written), None)
    truths = series.is_in(sorted(spellings(["true", "false"])))
    return series.set(truths, None).fill_null(series.str.to_lowercase()) if truths.any() else series


def marks_of(batch: Batch, column: str) -> Array | None:
    """Return which mark of ``missing_flags`` stands in each row, from 1, or 0; None where there are no such marks."""
    if not batch.table.settings.missing_flags:
        return None
    if column not in batch.marks:
        batch.marks[column] = _find_marks(batch, column)
    return batch.marks[column]


def _find_marks(batch: Batch, column: str) -> Array:
    raw, settings = batch.frame[RAW + column], batch.table.settings
    texts = raw.cast(pl.String).str.strip_chars()
    if raw.dtype.is_numeric():
        numbers = raw.cast(pl.Float64)
    else:
        numbers = parse_numbers(write_plainly(texts, settings if batch.table.is_csv else TableSettings()))
    result = np.zeros(len(raw), dtype=np.int8)
    for place, mark in enumerate(settings.missing_flags, start=1):
        here = texts.is_in(sorted(spellings([mark])))
        if (number := as_number(mark)) is not None:
            here = here | (numbers == number)
        result[here.fill_null(value=False).to_numpy()] = place
    return result


def codes(series: pl.Series, table: TableHead, *, names: bool = False) -> pl.Series:
    """Write numbers in one way, 1 for 1.0 and 1e0; leave other texts, and whole numbers such as 007, as they are.

    Where texts may be ``names``, 1e0 stays as it is, too.
    """
    texts = series.cast(pl.String)
    if series.dtype.is_integer():
        return texts
    if series.dtype == pl.String:
        texts = write_plainly(texts, table.settings if table.is_csv else TableSettings()).fill_null(texts)
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
        f"{table}: column '{column}' holds numbers and texts: {cells}. Fix the file; or, if the text means 'no "
        f"value', list it in silos.{table.silo}.missing; or, if these are categories, list the column in "
        f"silos.{table.silo}.categories"
    )
