"""What means that there is no value: how cells become null, for files and for rows in memory alike."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from polars import selectors as cs

from tdcd.data.tables.cells import DAY, numbers_among, parse_days, spellings
from tdcd.data.tables.settings import TableSettings

RAW = "\0"
"""Begins the name of a column of cells as they are written."""


def absent_texts(settings: TableSettings) -> list[str]:
    """Return the texts that mean that there is no value."""
    return sorted({"", *spellings(settings.missing)})


def no_values(settings: TableSettings, *, csv: bool) -> Iterator[pl.Expr]:
    """Say how cells become null: texts once they are stripped, numbers by their value."""
    texts = (cs.string() | cs.categorical() | cs.enum() | cs.boolean()).cast(pl.String).str.strip_chars()
    yield pl.when(~texts.is_in(absent_texts(settings))).then(texts)
    if not csv:
        marks = numbers_among(settings.missing)
        whole = [int(mark) for mark in marks if mark.is_integer()]
        integer, single, double = cs.integer(), cs.by_dtype(pl.Float32), cs.by_dtype(pl.Float64)
        yield pl.when(~integer.cast(pl.Int64, strict=False).is_in(whole).fill_null(value=False)).then(integer)
        for kind, values in ((single, [float(np.float32(mark)) for mark in marks]), (double, marks)):
            yield pl.when(~(kind.is_nan() | kind.cast(pl.Float64).is_in(values))).then(kind)
        yield pl.when(~cs.decimal().cast(pl.Float64).is_in(marks)).then(cs.decimal())
        days = parse_days(pl.Series(settings.missing, dtype=pl.String)).drop_nulls().to_list()
        dates = cs.date() | cs.datetime()
        yield pl.when(~(dates.cast(pl.Datetime("us")).dt.epoch("us") / DAY).is_in(days)).then(dates)


def raw_cells(settings: TableSettings, names: Sequence[str]) -> Iterator[pl.Expr]:
    """Keep cells also as they are written, where it counts which mark of no value stood there."""
    if settings.missing_flags:
        yield cs.by_name(*names).as_expr().name.prefix(RAW)
