"""How a silo's tables are read: kept apart from their reading, so that other jobs do without polars."""

import codecs
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from tdcd.strict import Strict, matching

_DIRECTIVES = frozenset("dmYybBHMS")


def _encoding(value: Any) -> Any:
    try:
        "id".encode(str(value))
        codecs.lookup(str(value))
    except (LookupError, ValueError) as error:
        raise ValueError(f'is no encoding of texts, such as "utf-8", "cp1252" or "utf-16" (is {value!r})') from error
    return value


def _date_format(value: Any) -> Any:
    used = re.findall("%(.?)", value) if isinstance(value, str) else []
    year, month = {"Y", "y"} & {*used}, {"m", "b", "B"} & {*used}
    twice, run_together = len({*used}) < len(used), re.search("%.%", str(value))
    if {*used} - _DIRECTIVES or "d" not in used or len(year) != 1 or len(month) != 1 or twice or run_together:
        raise ValueError(
            'writes a date with %d, %m (or the month\'s English name, %b or %B) and %Y (or %y), such as "%d.%m.%Y", '
            f"and a time with %H, %M and %S: each once, with a sign between two of them (is {value!r})"
        )
    return value


Aggregation = Literal["last", "mean", "sum", "count"]
ALL_OTHERS = "*"
"""Stands for the columns that ``aggregate`` does not name."""


def _aggregate(value: Any) -> Any:
    rules = value.values() if isinstance(value, dict) else [value]
    if value is not None and (not rules or any(rule not in get_args(Aggregation) for rule in rules)):
        raise ValueError(
            'is "last", "mean", "sum" or "count", for all columns or by column: { balance = "sum", "*" = "last" } '
            f"(is {value!r})"
        )
    return value


class TableFormat(Strict):
    """How a client's file is written; what a client does not say is as its silo says."""

    separator: Annotated[
        str, matching(r"[\t !#-/:-@\[-`{-~]", 'is one sign, such as "," or ";", or "\\t" for a tab')
    ] = ","
    """What separates the cells of a CSV file."""
    encoding: Annotated[str, BeforeValidator(_encoding)] = "utf-8"
    """How a CSV file writes characters as bytes. A file that begins with a mark of UTF-8 or UTF-16 is read as that."""
    decimal: Literal[".", ","] = "."
    """What stands before the decimals of numbers in a CSV file."""
    thousands: Annotated[str, matching("[., ']?", 'is ".", ",", "\'" or " ", or "" for nothing')] = ""
    """What groups the digits of numbers in a CSV file."""
    date_format: Annotated[str, BeforeValidator(_date_format)] | None = None
    """How dates are written besides 2026-01-28: "%d.%m.%Y" for 28.01.2026."""


class TableSettings(TableFormat):
    """How to read a silo's tables."""

    id: str | None = None
    """The column of IDs, by which rows are matched to those of other silos."""
    row_id: str | None = None
    """The column that tells apart rows with the same ID, such as the number of an account or a visit; no feature."""
    aggregate: Annotated[Aggregation | dict[str, Aggregation] | None, BeforeValidator(_aggregate)] = None
    """How rows with the same ID become one, for all columns or by column; "*" stands for the others. Default: an ID
    may have one row."""
    order: str | None = None
    """The column of numbers or dates by which "last" is the last."""
    label: str | None = None
    """The column of labels, where the silo has them."""
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    """The columns of features; default: all others."""
    exclude: list[str] = []
    """Columns that are no features, where ``columns`` does not say which are."""
    categories: list[str] = []
    """Columns whose numbers are codes of categories. Columns of texts are categories by themselves."""
    rare: Annotated[int, Field(ge=1)] = 10
    """A category in fewer training rows than this counts as "other"."""
    missing: list[str] = ["NA", "N/A", "#N/A", "NaN", "null"]
    """What means that there is no value, in large or small letters; an empty cell always does."""
    missing_flags: list[str] = []
    """Those of ``missing`` that mean different things: each gets an input that says where it stood."""

    @model_validator(mode="after")
    def _different(self) -> "TableSettings":
        if strange := [mark for mark in self.missing_flags if mark not in self.missing]:
            raise ValueError(f"missing_flags: '{strange[0]}' is not listed in missing")
        if self.thousands == self.decimal:
            raise ValueError("thousands and decimal are the same; numbers would be ambiguous")
        last = "last" in self._rules.values()
        if last and not self.order:
            raise ValueError('aggregate = "last": name the column that says which row is the last, order')
        if self.order and not last:
            raise ValueError('order goes with aggregate = "last"')
        for column in self.categories if self.aggregate else ():
            if self._rules.get(column, self._rules.get(ALL_OTHERS)) not in ("last", None):
                raise ValueError(f"categories: '{column}' holds categories, which only have a last: set aggregate so")
        return self

    @property
    def _rules(self) -> Mapping[str, Aggregation]:
        if isinstance(self.aggregate, str):
            return {ALL_OTHERS: self.aggregate}
        return self.aggregate or {}

    @property
    def aggregated(self) -> list[str]:
        """The columns that ``aggregate`` names."""
        return [column for column in self._rules if column != ALL_OTHERS]

    def has_rule(self, column: str) -> bool:
        """Tell whether it is known how rows with the same ID become one, in a column."""
        return column in self._rules or ALL_OTHERS in self._rules

    def rule(self, column: str) -> Aggregation:
        """Return how rows with the same ID become one, in a column of features."""
        return self._rules[column if column in self._rules else ALL_OTHERS]

    def fact_rule(self, column: str) -> Aggregation | None:
        """Return how rows with the same ID become one in a column of labels or the like: by the last, or not at all."""
        rule = self._rules.get(column, self._rules.get(ALL_OTHERS))
        return rule if rule == "last" else None

    def with_formats(self, *formats: TableFormat) -> "TableSettings":
        """Return these settings for one client: each format replaces what it says, the last one counts.

        Raises:
            JobError: what comes out contradicts itself.
        """
        values = {name: getattr(self, name) for name in TableSettings.model_fields}
        for own in formats:
            said = own.model_fields_set & TableFormat.model_fields.keys()
            values |= {name: getattr(own, name) for name in said}
        return TableSettings(**values)
