"""A silo's preparation as a part of an ONNX graph: cells as a CSV file holds them in, a network's numbers out.

It does what ``Preparation.apply`` does, cell by cell and to the bit, for cells that are written plainly. What ``tdcd
predict`` refuses, such as a text among numbers, makes its row unreadable, and the graph names the column: a batch with
one bad row still has an answer for all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan

import numpy as np
import polars as pl
from onnx import TensorProto

from tdcd.data.arrays import NUMBER
from tdcd.data.tables.cells import as_number, numbers_among, spellings
from tdcd.data.tables.preparation import Category, Number, Preparation
from tdcd.data.tables.settings import TableSettings
from tdcd.serving.export.graph import Graph

_SPACE = r"[\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]"
_PADDED = rf"(?s){_SPACE}.*|.*{_SPACE}"
_ORDINARY = (
    r"[+-]?(([0-9]{1,100}(\.[0-9]{0,100})?|\.[0-9]{1,100})"
    r"|([0-9]{1,50}(\.[0-9]{0,50})?|\.[0-9]{1,50})[eE][+-]?0*(1?[0-9]{1,2}|2[0-4][0-9]))"
)
"""Numbers that float64 certainly holds: runtimes fail on a batch with 1e999 or 1e-320."""
_WHOLE = r"-?[0-9]+"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?Z?)?"
_LARGE = 2.0**52
"""From here on, a number less a mean may need more than float64."""
_FARTHEST = float(np.finfo(np.float32).max)


def why_not(preparation: Preparation, settings: TableSettings) -> str:
    """Tell what of a preparation no graph can do, or nothing."""
    if settings.decimal != "." or settings.thousands:
        between = f" and '{settings.thousands}' between digits" if settings.thousands else ""
        return f"its numbers are written with '{settings.decimal}' before decimals{between}"
    if settings.date_format is not None:
        return f"its dates are written as {settings.date_format}"
    for column in preparation.columns:
        if isinstance(column, Number) and column.dates:
            return f"column '{column.name}' holds dates"
        if isinstance(column, Number) and abs(column.mean) > _LARGE:
            return f"column '{column.name}' holds numbers too large for float64"
        if isinstance(column, Category) and column.name not in settings.categories:
            strange = next((text for text in column.values if _reads_otherwise(text)), None)
            if strange is not None:
                return f"column '{column.name}' holds the text '{strange}', which is a number or a date in a CSV file"
    return ""


def _reads_otherwise(text: str) -> bool:
    return as_number(text) is not None or bool(pl.Series([text]).str.contains(f"^(?:{_DATE})$").item())


@dataclass(frozen=True)
class Prepared:
    """What a graph makes of cells."""

    rows: str
    """The numbers (batch, inputs), float32."""
    unreadable: str
    """The first column that could not be read in each row, (batch,); an empty text where all could."""


@dataclass
class PreparationGraph:
    """A silo's cells, read for all columns together: tensors are (batch, columns) unless said otherwise."""

    graph: Graph
    cells: str
    preparation: Preparation
    settings: TableSettings

    def build(self) -> Prepared:
        """Add it to the graph."""
        graph, known, pieces = self.graph, self.settings.missing_flags, list[str]()
        for number, column in enumerate(self.preparation.columns):
            if isinstance(column, Number):
                pieces.append(graph.columns(self._scaled, [number]))
                flags = [graph.columns(self._missing, [number])] if column.flagged else []
            else:
                flags = self._categories(number, column)
            for mark in column.marks:
                place = graph.numbers(known.index(mark) + 1, np.int64)
                flags.append(graph.add("Equal", graph.columns(self._marks, [number]), place))
            pieces += [graph.add("Cast", flag, to=TensorProto.FLOAT) for flag in flags]
        return Prepared(graph.add("Concat", *pieces, axis=1), self._unreadable())

    def _where(self, truths: Sequence[bool]) -> str:
        """Return a truth for each column."""
        return self.graph.constant(np.array(truths, dtype=np.bool_))

    @cached_property
    def _blank(self) -> str:
        """Where a cell is empty, or a word that means so."""
        return self.graph.is_one_of(self.cells, ["", *spellings(self.settings.missing)])

    @cached_property
    def _numeric(self) -> str:
        """Where a cell is a number of ordinary size."""
        return self.graph.add("RegexFullMatch", self.cells, pattern=_ORDINARY)

    @cached_property
    def _value(self) -> str:
        """The numbers, 0 where there is none."""
        numbers = self.graph.add("Where", self._numeric, self.cells, self.graph.texts("0"))
        return self.graph.add("Cast", numbers, to=TensorProto.DOUBLE)

    def _equals(self, numbers: Sequence[float]) -> str:
        """Where a cell is one of some numbers, however it is written."""
        same = [self.graph.add("Equal", self._value, self.graph.numbers(one)) for one in numbers]
        return self.graph.all_of([self._numeric, self.graph.any_of(same)])

    @cached_property
    def _missing(self) -> str:
        """Where a column of numbers has no value: also where a number means so."""
        marks = numbers_among(self.settings.missing)
        return self.graph.any_of([self._blank, *([self._equals(marks)] if marks else [])])

    @cached_property
    def _present(self) -> str:
        return self.graph.is_not(self._missing)

    @cached_property
    def _distance(self) -> str:
        """(value − mean − rest) / deviation in float64; 0 where there is none, or the column tells nothing."""
        graph, columns = self.graph, self.preparation.columns
        numbers = [column if isinstance(column, Number) else None for column in columns]
        result = self._value
        for operator, with_ in (
            ("Sub", [column.mean if column else 0.0 for column in numbers]),
            ("Sub", [column.rest if column else 0.0 for column in numbers]),
            ("Div", [(column.deviation or 1.0) if column else 1.0 for column in numbers]),
        ):
            result = graph.add(operator, result, graph.numbers(with_))
        telling = self._where([isinstance(column, Number) and not column.constant for column in columns])
        usable = graph.all_of([self._numeric, self._present, telling])
        return graph.add("Where", usable, result, graph.numbers(0.0))

    @cached_property
    def _scaled(self) -> str:
        return self.graph.add("Cast", self._distance, to=TensorProto.FLOAT)

    @cached_property
    def _marks(self) -> str:
        """Which mark of ``missing_flags`` stands in each cell, from 1, or 0; the last one counts."""
        graph, result = self.graph, self.graph.numbers(0, np.int64)
        for place, mark in enumerate(self.settings.missing_flags, start=1):
            here = graph.is_one_of(self.cells, spellings([mark]))
            if (number := as_number(mark)) is not None:
                here = graph.any_of([here, self._equals([number])])
            result = graph.add("Where", here, graph.numbers(place, np.int64), result)
        return result

    def _categories(self, number: int, column: Category) -> list[str]:
        """Return where a column holds each category (batch, categories), and others and nothing (batch, 1)."""
        graph = self.graph
        matched = self._matches(number, column.values)
        missing = graph.columns(self._blank, [number])
        if marks := [_code(mark) for mark in self.settings.missing if as_number(mark) is not None]:
            missing = graph.any_of([missing, graph.any_along(self._matches(number, marks))])
        present = graph.is_not(missing)
        result = [graph.all_of([matched, present])]
        if column.other:
            result.append(graph.all_of([graph.is_not(graph.any_along(matched)), present]))
        return result + [missing] * column.flagged

    def _matches(self, number: int, values: Sequence[str]) -> str:
        """Tell which of some texts or codes a column holds, (batch, values): 1.0 is the code 1, but 007 is not 7."""
        graph, cell = self.graph, self.graph.columns(self.cells, [number])
        places = {value: place for place, value in enumerate(values)}
        for truth in ("true", "false"):
            if truth in places:
                places |= dict.fromkeys(sorted(spellings([truth])), places[truth])
        result = graph.add("Equal", graph.look_up(cell, places, -1), graph.numbers(range(len(values)), np.int64))
        if any(_code_value(value) is not None for value in values):
            whole = graph.add("RegexFullMatch", cell, pattern=_WHOLE)
            decimal = graph.all_of([graph.columns(self._numeric, [number]), graph.is_not(whole)])
            codes = graph.numbers([nan if (code := _code_value(value)) is None else code for value in values])
            same = graph.add("Equal", graph.columns(self._value, [number]), codes)
            result = graph.any_of([result, graph.all_of([decimal, same])])
        return result

    def _unreadable(self) -> str:
        """Name the first column of each row that could not be read."""
        graph, columns = self.graph, self.preparation.columns
        bad = [graph.add("RegexFullMatch", self.cells, pattern=_PADDED)]
        numbers = [isinstance(column, Number) for column in columns]
        if any(numbers):
            far = graph.add("Greater", graph.add("Abs", self._distance), graph.numbers(_FARTHEST))
            text = graph.all_of([graph.is_not(self._numeric), self._present, self._where(numbers)])
            bad += [far, text]
        texts = [isinstance(column, Category) and column.name not in self.settings.categories for column in columns]
        if any(texts):
            other = graph.add("RegexFullMatch", self.cells, pattern=f"{NUMBER.pattern}|{_DATE}")
            bad.append(graph.all_of([other, self._present, self._where(texts)]))
        there = graph.add("Cast", graph.any_of(bad), to=TensorProto.INT32)
        first = graph.add("ArgMax", there, axis=1, keepdims=0)
        names = graph.add("Gather", graph.texts([column.name for column in columns]), first, axis=0)
        most = graph.add("ReduceMax", there, graph.numbers([1], np.int64), keepdims=0)
        return graph.add("Where", graph.add("Cast", most, to=TensorProto.BOOL), names, graph.texts(""))


def _code(text: str) -> str:
    """Write a code in one way, as ``columns.codes`` does: 1 for 1.0 and 1e0; 007 stays."""
    number = as_number(text)
    if number is None or pl.Series([text]).str.contains(f"^{_WHOLE}$").item():
        return text
    if number.is_integer() and abs(number) < 2.0**63:
        return str(int(number))
    return str(pl.Series([number]).cast(pl.String).item())


def _code_value(text: str) -> float | None:
    """Return the number that a code stands for; None for a text, which other ways of writing a number are not."""
    number = as_number(text)
    return number if number is not None and text == _code(repr(number)) else None
