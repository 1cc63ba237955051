"""What a row of a silo looks like in a request, and how rows become the numbers of its network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol, cast

import numpy as np
import torch
from pydantic import ConfigDict, FailFast, Field, WithJsonSchema
from torch import Tensor
from typing_extensions import TypedDict

from tdcd.data.arrays import Array
from tdcd.data.tables.drift import Drift
from tdcd.data.tables.given import GivenTable
from tdcd.data.tables.preparation import Category, Number, Preparation
from tdcd.data.tables.reader import Batch
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import DataError
from tdcd.runs.records import SiloRecord
from tdcd.training.result import dtype_of

SHOWN = 20
"""Categories of a column that its description names."""
SUM = 5.0
"""Drift tells of no mean of numbers whose sum is less."""
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Prepared:
    """Rows of a silo as numbers."""

    numbers: Tensor
    """(rows, *shape of a row)."""
    drift: Drift | None = None
    """How they compare with the training, where they are of a table."""
    batch: Batch | None = None
    array: Array = field(default_factory=lambda: np.empty((0, 0)))

    def warnings(self, silo: str, start: int, stop: int) -> Iterator[str]:
        """Tell where some of the rows differ from the training, as for a table of these rows alone."""
        if self.batch is None or self.drift is None:
            return
        own, place, rows = Drift(self.drift.preparation), 0, np.arange(start, stop)
        for column in self.drift.preparation.columns:
            seen, width = self.drift.seen(column.name), len(column.outputs)
            far = isinstance(column, Number) and abs(self.array[start:stop, place].sum()) > SUM
            if far or seen.unknown or (seen.missing and len(rows) > 1):
                own.count(column.name, column.write(self.batch, rows, np.zeros((len(rows), width), np.float32)))
            place += width
        yield from own.warnings(silo)


class Inputs(Protocol):
    """The rows of one silo."""

    @property
    def row_type(self) -> Any:
        """What a row is, for pydantic."""

    @property
    def wants(self) -> Mapping[str, str]:
        """What each column holds, in a few words; nothing for a row that is an array."""

    @property
    def example(self) -> Any:
        """A row."""

    def describe(self) -> list[dict[str, Any]]:
        """Describe the columns."""

    def prepare(self, rows: Sequence[Any], *, strict: bool) -> Prepared:
        """Make numbers of rows.

        Raises:
            DataError: a cell does not fit; or, where this is ``strict``, rows cannot be prepared together.
        """

    def locate(self, rows: Sequence[Any]) -> Iterator[tuple[int, str | None, str]]:
        """Yield what is wrong with rows: the row, from 0, the column and a sentence."""


@dataclass(frozen=True)
class TableInputs:
    """Rows with the raw columns of a silo's tables."""

    table: GivenTable
    dtype: torch.dtype

    @classmethod
    def of(cls, silo: str, settings: TableSettings, preparation: Preparation, dtype: torch.dtype) -> "TableInputs":
        """Describe the rows of a silo with a preparation."""
        return cls(GivenTable.of(silo, settings, preparation), dtype)

    @property
    def preparation(self) -> Preparation:
        """How columns become numbers."""
        return self.table.preparation

    @property
    def row_type(self) -> Any:
        """See Inputs."""
        return _object(self.table.silo, {column.name: self._cell_type(column) for column in self.preparation.columns})

    def _cell_type(self, column: Number | Category) -> Any:
        absent = sorted(self.table.absent)
        if isinstance(column, Number) and not column.dates:
            schema: dict[str, Any] = {"anyOf": [{"type": ["number", "null"]}, {"type": "string", "enum": absent}]}
            return Annotated[int | Finite | _literal(absent) | None, WithJsonSchema(schema)]
        if isinstance(column, Number):
            schema = {"type": ["string", "null"], "description": self.wants[column.name]}
            return Annotated[str | None, WithJsonSchema(schema)]
        examples = {"examples": column.values[:SHOWN]}
        if column.name in self.table.settings.categories:
            return Annotated[
                str | bool | int | Finite | None,
                WithJsonSchema({"type": ["string", "number", "boolean", "null"], **examples}),
            ]
        return Annotated[str | bool | None, WithJsonSchema({"type": ["string", "boolean", "null"], **examples})]

    @cached_property
    def wants(self) -> Mapping[str, str]:
        """See Inputs."""
        form = self.table.settings.date_format
        dates = "the column holds dates, written as 2026-01-28" + (f" or as {form}" if form else "")
        texts, codes = "the column holds categories, which are texts", "the column holds categories"
        return {
            column.name: (dates if column.dates else "the column holds numbers")
            if isinstance(column, Number)
            else (codes if column.name in self.table.settings.categories else texts)
            for column in self.preparation.columns
        }

    @property
    def example(self) -> Any:
        """See Inputs. Numbers are the means of the training, to two digits."""
        return {column.name: _example(column) for column in self.preparation.columns}

    def describe(self) -> list[dict[str, Any]]:
        """See Inputs."""
        return [
            {"name": column.name, "holds": "dates" if column.dates else "numbers"}
            if isinstance(column, Number)
            else {"name": column.name, "holds": "categories", "categories": column.values[:SHOWN]}
            for column in self.preparation.columns
        ]

    def prepare(self, rows: Sequence[Any], *, strict: bool) -> Prepared:
        """See Inputs."""
        batch, drift = self.table.batch(rows, strict=strict), Drift(self.preparation)
        array = self.preparation.apply(batch, np.arange(len(rows)), drift)
        return Prepared(torch.from_numpy(array).to(self.dtype), drift, batch, array)

    def locate(self, rows: Sequence[Any]) -> Iterator[tuple[int, str | None, str]]:
        """See Inputs."""
        for column in self.preparation.columns:
            message, first, last = self._fault(column, rows), 1, len(rows)
            while message and first < last:  # the fewest rows from the start that do not fit
                middle = (first + last) // 2
                if fault := self._fault(column, rows[:middle]):
                    message, last = fault, middle
                else:
                    first = middle + 1
            if message:
                value = rows[first - 1][column.name]
                if isinstance(column, Number) and column.dates:
                    message = f"{self.wants[column.name]}; {value!r} is not"
                yield first - 1, column.name, message

    def _fault(self, column: Number | Category, rows: Sequence[Any]) -> str | None:
        out = np.zeros((len(rows), len(column.outputs)), np.float32)
        only = GivenTable.of(self.table.silo, self.table.settings, Preparation(columns=[column]))
        try:
            column.write(only.batch(rows), np.arange(len(rows)), out)
        except DataError as error:
            return str(error).removeprefix(f"{only}: ")
        return None


@dataclass(frozen=True)
class ArrayInputs:
    """Rows of numbers: lists in the shape of a row, or the columns of the data frame that was trained on."""

    silo: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    columns: tuple[str, ...]

    @classmethod
    def of(cls, silo: SiloRecord) -> "ArrayInputs":
        """Describe the rows of a silo that was trained on arrays."""
        return cls(silo.name, silo.row_shape, dtype_of(silo.row_type), silo.frame_columns)

    @property
    def row_type(self) -> Any:
        """See Inputs."""
        number: Any = Finite if self.dtype.is_floating_point else int
        if self.columns:
            return _object(self.silo, dict.fromkeys(self.columns, number))
        for size in reversed(self.shape):
            number = Annotated[list[number], FailFast(), Field(min_length=size, max_length=size)]
        return number

    @property
    def wants(self) -> Mapping[str, str]:
        """See Inputs."""
        return dict.fromkeys(self.columns, "the column holds numbers")

    @property
    def example(self) -> Any:
        """See Inputs."""
        return dict.fromkeys(self.columns, 0) if self.columns else np.zeros(self.shape, int).tolist()

    def describe(self) -> list[dict[str, Any]]:
        """See Inputs."""
        return [{"name": column, "holds": "numbers"} for column in self.columns]

    def prepare(self, rows: Sequence[Any], *, strict: bool) -> Prepared:  # noqa: ARG002 - rows never mix
        """See Inputs."""
        given = [[row[column] for column in self.columns] for row in rows] if self.columns else rows
        try:
            numbers = torch.tensor(given, dtype=self.dtype).reshape(len(rows), *self.shape)
        except (OverflowError, RuntimeError) as error:
            raise DataError(f"silo '{self.silo}': a number is too large") from error
        if self.dtype.is_floating_point and not numbers.isfinite().all():
            raise DataError(f"silo '{self.silo}': a number is too large")
        return Prepared(numbers)

    def locate(self, rows: Sequence[Any]) -> Iterator[tuple[int, str | None, str]]:
        """See Inputs."""
        for place, row in enumerate(rows):
            try:
                self.prepare([row], strict=False)
            except DataError:
                yield place, None, f"a number is too large for {str(self.dtype).removeprefix('torch.')}"
                return


def _object(silo: str, cells: Mapping[str, Any]) -> Any:
    made = cast(Any, TypedDict)(f"{silo}_row", dict(cells))  # names of columns need not be identifiers
    made.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    return made


def _literal(values: Sequence[str]) -> Any:
    return Literal.__getitem__(tuple(values))


def _example(column: Number | Category) -> Any:
    if isinstance(column, Category):
        return column.values[0] if column.values else None
    if column.dates:
        return column.shown_mean
    rounded = float(f"{column.mean:.2g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
