"""The graph of a preparation reads cells as tdcd reads them from a CSV file: to the bit, and whatever they hold."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from support import examples
from tdcd.data.tables.preparation import Category, Number, Preparation
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import DataError
from tdcd.serving.export.inputs import prepare_cells

pytest.importorskip("onnx", reason="needs pip install 'tdcd[export]'")
ort = pytest.importorskip("onnxruntime", reason="needs pip install 'tdcd[export]'")
Cells = list[list[str]]
Rows = npt.NDArray[np.float32]

PREPARATION = Preparation(
    columns=[
        Number(name="age", mean=40.1, rest=-3e-15, deviation=11.3, flagged=True),
        Number(name="limit", mean=5e3, rest=2e-13, deviation=2e3, flagged=False, marks=["-99", "refused"]),
        Number(name="same", mean=7.0, deviation=0.0, flagged=True),
        Number(name="tiny", mean=1e-9, deviation=3e-11, flagged=False),
        Category(name="job", values=["cook", "nurse", 'O\'Hara, "Müller"', "two  words"], other=True, flagged=True),
        Category(name="owns", values=["true", "false"], other=False, flagged=False, marks=["refused"]),
        Category(name="code", values=["1", "2", "007", "1.5", "x", "-3"], other=True, flagged=True, marks=["-99"]),
        Category(name="area", values=["10", "1e-7"], other=False, flagged=True),
    ]
)
SETTINGS = TableSettings(
    id="id",
    categories=["code", "area"],
    missing=["NA", "n/a", "-99", "refused", "1.50"],
    missing_flags=["-99", "refused"],
)
NUMBERS = [
    "0",
    "-1",
    "40.25",
    "+12",
    "1e3",
    "1E+2",
    ".5",
    "5.",
    "007",
    "-0",
    "4503599627370497",
    "1e-249",
    "-99.0",
    "-099",
    "1.5",
]
BLANKS = ["", "NA", "na", "Na", "n/a", "N/A", "-99", "Refused", "refused", "1.50"]
READABLE = {
    "age": [*NUMBERS, *BLANKS],
    "limit": [*NUMBERS, *BLANKS],
    "same": [*NUMBERS, *BLANKS],
    "tiny": [*NUMBERS, *BLANKS],
    "job": [
        "cook",
        "nurse",
        'O\'Hara, "Müller"',
        "two  words",
        "two words",
        "COOK",
        "smith",
        "inf",
        "nan",
        *BLANKS,
    ],
    "owns": ["true", "false", "True", "FALSE", "yes", *BLANKS],
    "code": [
        "1",
        "1.0",
        "1e0",
        "+1",
        "2",
        "2.",
        "007",
        "7",
        "7.0",
        "1.5",
        "x",
        "X",
        "-3",
        "-3.0",
        "2026-01-28",
        *NUMBERS,
        *BLANKS,
    ],
    "area": ["10", "10.0", "1e1", "1e-7", "1e-07", "0.0000001", "11", *NUMBERS, *BLANKS],
}
STRANGE = [
    "x", "inf", "-inf", "nan", "Infinity", "1e999", "1_000", "1,5", "0x10", "12abc", "--1", "1e", ".", "+", "1 000",
    "١", "2026-01-28", "2026-01-28T12:30Z", "true", "1e5.", "1d5", "1e39", "-1e300", "½",
]  # fmt: skip


EXTREME = ["1e999", "-1e250", "1e-320", "0e1000", "1" * 101, f"0.{'3' * 101}", f"{'1' * 51}e0"]
"""Numbers that a graph does not read, whatever tdcd makes of them."""


def session_of(preparation: Preparation, settings: TableSettings) -> Callable[[Cells], tuple[Rows, list[str]]]:
    """Return the graph of a preparation alone, as a function."""
    from onnx import TensorProto

    from tdcd.serving.export.graph import TEXT, Graph
    from tdcd.serving.export.preparation_graph import PreparationGraph

    graph = Graph()
    cells = graph.take_input("cells", TEXT, ["batch", len(preparation.columns)])
    made = PreparationGraph(graph, cells, preparation, settings).build()
    graph.give_output("rows", made.rows, TensorProto.FLOAT, ["batch", len(preparation.outputs)])
    graph.give_output("unreadable", made.unreadable, TEXT, ["batch"])
    session: Any = ort.InferenceSession(graph.model("preparation", {}).SerializeToString())

    def run(given: Cells) -> tuple[Rows, list[str]]:
        array = np.array(given, dtype=object).reshape(len(given), len(preparation.columns))
        rows, unreadable = session.run(None, {"cells": array})
        return rows, list(unreadable)

    return run


@pytest.fixture(scope="module")
def run() -> Callable[[Cells], tuple[Rows, list[str]]]:
    return session_of(PREPARATION, SETTINGS)


def in_tdcd(cells: Cells) -> Rows:
    return prepare_cells("bank", np.array(cells, dtype=object), PREPARATION, SETTINGS)


ROW = st.tuples(*(st.sampled_from(READABLE[column.name]) for column in PREPARATION.columns))


@settings(max_examples=examples(25))
@given(rows=st.lists(ROW, min_size=1, max_size=40))
def test_readable_cells_make_the_same_numbers(
    run: Callable[[Cells], tuple[Rows, list[str]]], rows: list[tuple[str, ...]]
) -> None:
    cells = [list(row) for row in rows]
    made, unreadable = run(cells)
    assert unreadable == [""] * len(rows)
    assert np.array_equal(made, in_tdcd(cells))


CELL = st.one_of(
    st.sampled_from([*STRANGE, *EXTREME, *{cell for cells in READABLE.values() for cell in cells}]),
    st.floats(-1e240, 1e240, allow_subnormal=False).filter(lambda x: not 0 < abs(x) < 1e-240).map(repr),
    st.text("0123456789+-.eE_", max_size=8).filter(lambda text: not re.search("[eE].*[0-9]{3}", text)),
    st.text(max_size=6),
)


@settings(max_examples=examples(100))
@given(place=st.integers(0, len(PREPARATION.columns) - 1), cell=CELL)
def test_any_cell_is_read_as_tdcd_reads_it_or_named(
    run: Callable[[Cells], tuple[Rows, list[str]]], place: int, cell: str
) -> None:
    """What tdcd refuses is unreadable, and only that is; and cells with spaces around them, which tdcd strips."""
    assume("\0" not in cell and "\r" not in cell and cell.isprintable())
    column = PREPARATION.columns[place]
    cells = [""] * len(PREPARATION.columns)
    cells[place] = cell
    made, (unreadable,) = run([cells])
    if cell != cell.strip() or (cell in EXTREME and column.name not in SETTINGS.categories):
        assert unreadable == column.name
        return
    try:
        expected = in_tdcd([cells])
    except DataError as error:
        event(str(error)[-40:])
        assert unreadable == column.name
    else:
        assert not unreadable
        assert np.array_equal(made, expected)


@pytest.mark.parametrize("cell", [" 1", "1 ", "\t", "x\n", "\u00a0", "a\u3000"])
def test_spaces_around_a_cell_make_it_unreadable(run: Callable[[Cells], tuple[Rows, list[str]]], cell: str) -> None:
    cells = [""] * len(PREPARATION.columns)
    for place, column in enumerate(PREPARATION.columns):
        assert run([[*cells[:place], cell, *cells[place + 1 :]]])[1] == [column.name]


def test_the_first_column_of_a_row_is_named_and_other_rows_are_not_affected(
    run: Callable[[Cells], tuple[Rows, list[str]]],
) -> None:
    good = ["40", "1", "7", "0", "cook", "true", "1", "10"]
    made, unreadable = run([good, ["x", "y", *good[2:]], good, [*good[:4], "12", *good[5:]]])
    assert unreadable == ["", "age", "", "job"]
    assert np.array_equal(made[0], made[2])
    assert np.array_equal(made[:1], in_tdcd([good]))


def test_no_rows_make_no_numbers(run: Callable[[Cells], tuple[Rows, list[str]]]) -> None:
    made, unreadable = run([])
    assert made.shape == (0, len(PREPARATION.outputs))
    assert unreadable == []


COLUMNS: list[Number | Category] = [
    Number(name="a", mean=1.0, deviation=1.0, flagged=False),
    Number(name="b", mean=1.0, deviation=1.0, flagged=True),
    Number(name="c", mean=1.0, deviation=0.0, flagged=False, marks=["?"]),
    Category(name="d", values=["u"], other=False, flagged=False),
    Category(name="e", values=["1", "2"], other=True, flagged=True, marks=["?"]),
]


@settings(max_examples=examples(15))
@given(columns=st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=5, unique_by=lambda column: column.name))
@example(columns=COLUMNS[:1])
@example(columns=COLUMNS[3:4])
def test_any_columns_in_any_order(columns: list[Number | Category]) -> None:
    preparation = Preparation(columns=columns)
    settings = TableSettings(id="id", categories=["e"], missing=["?"], missing_flags=["?"])
    cells = [["2" if column.name != "d" else "u" for column in columns], ["?"] * len(columns), [""] * len(columns)]
    made, unreadable = session_of(preparation, settings)(cells)
    assert unreadable == ["", "", ""]
    assert np.array_equal(made, prepare_cells("bank", np.array(cells, dtype=object), preparation, settings))


NUMBER = Number(name="since", mean=1.0, deviation=1.0, flagged=False)


@pytest.mark.parametrize(
    ("column", "options", "why"),
    [
        (NUMBER.model_copy(update={"dates": True}), {}, "column 'since' holds dates"),
        (NUMBER.model_copy(update={"mean": 2.0**60}), {}, "column 'since' holds numbers too large for float64"),
        (
            NUMBER,
            {"decimal": ",", "thousands": "."},
            "its numbers are written with ',' before decimals and '.' between digits",
        ),
        (NUMBER, {"decimal": ","}, "its numbers are written with ',' before decimals"),
        (NUMBER, {"date_format": "%d.%m.%Y"}, "its dates are written as %d.%m.%Y"),
        (
            Category(name="zip", values=["4051"], other=True, flagged=False),
            {},
            "column 'zip' holds the text '4051', which is a number or a date in a CSV file",
        ),
        (Category(name="zip", values=["4051"], other=True, flagged=False), {"categories": ["zip"]}, ""),
        (NUMBER, {}, ""),
    ],
)
def test_what_a_graph_cannot_do_is_known(column: Number | Category, options: dict[str, Any], why: str) -> None:
    from tdcd.serving.export.preparation_graph import why_not

    assert why_not(Preparation(columns=[column]), TableSettings(**options)) == why
