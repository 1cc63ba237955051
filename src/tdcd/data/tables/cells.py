"""Cells of CSV files: numbers, dates, and what means that there is no value."""

import re
from collections.abc import Iterable
from math import isfinite

import polars as pl

from tdcd.data.arrays import NUMBER
from tdcd.data.tables.settings import TableSettings

EXACT = 2.0**53
"""Up to here float64 holds every whole number."""
DAY = 24 * 3600 * 1_000_000
"""Microseconds."""
_DATE = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?Z?)?$"


def write_plainly(texts: pl.Series, settings: TableSettings) -> pl.Series:
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


def parse_numbers(texts: pl.Series) -> pl.Series:
    """Read numbers that are written plainly; null where a text is none."""
    values = texts.cast(pl.Float64, strict=False)
    return values.set(values.is_nan() | values.is_infinite(), None)  # "nan" and "inf" are texts


_PATTERNS = {"Y": r"\d{4}", "y": r"\d{2}", "b": r"[A-Za-z]{3}", "B": r"[A-Za-z]{3,9}"}
"""What a directive of a date format takes; the others take a digit or two. Polars takes the year 26 for %Y, too."""


def parse_dates(texts: pl.Series, date_format: str | None) -> pl.Series:
    """Read dates as days: all in one's own format, or else all such as 2026-01-28; null where a text is none."""
    if date_format is not None:
        pattern = re.sub(
            "%(.)", lambda directive: _PATTERNS.get(directive[1], r"\d{1,2}"), pl.escape_regex(date_format)
        )
        dates = texts.set(~texts.str.contains(f"^{pattern}$"), None)
        if dates.null_count() < len(dates):
            return dates.str.to_datetime(date_format, strict=False, time_unit="us").dt.epoch("us") / DAY
    return parse_days(texts)


def parse_days(texts: pl.Series) -> pl.Series:
    """Read dates such as 2026-01-28 or 2026-01-28 12:30:00 as days; null where a text is none."""
    dates = texts.set(~texts.str.contains(_DATE), None)
    if dates.null_count() == len(dates):
        return dates.cast(pl.Float64)
    dates = dates.str.replace("T", " ", literal=True).str.strip_suffix("Z")
    dates = dates.str.replace("^(.{10})$", "$1 00:00").str.replace("^(.{16})$", "$1:00")
    return dates.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", strict=False, time_unit="us").dt.epoch("us") / DAY


def spellings(words: Iterable[str]) -> set[str]:
    """Return words as people write them, in large and small letters; to compare all cells in small ones is slow."""
    return {how(word.strip()) for word in words for how in (str, str.lower, str.upper, str.title, str.capitalize)}


def as_number(text: str) -> float | None:
    """Return a text as a number, if it is a finite one; Python takes 1_10 for one, too."""
    if not NUMBER.fullmatch(text.strip()):
        return None
    result = float(text)
    return result if isfinite(result) else None


def numbers_among(texts: Iterable[str]) -> list[float]:
    """Return those of some texts that are numbers."""
    return [number for text in texts if (number := as_number(text)) is not None]
