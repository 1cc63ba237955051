"""Preparation from what clients tell equals preparation of the joined table."""

from fractions import Fraction
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import examples
from tdcd.data.tables import reader as tables_module
from tdcd.data.tables.preparation import Category, Number, Preparation, fit
from tdcd.data.tables.reader import Numbers, Table
from tdcd.data.tables.settings import TableSettings
from tdcd.data.tables.survey import NumberFacts, Survey
from tdcd.errors import DataError, RunError

COLUMNS = ["n", "c"]
ROW = st.tuples(
    st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)), st.one_of(st.none(), st.sampled_from("abcd")), st.booleans()
)


def survey_table(table: Table, columns: list[str], training: list[bool]) -> Survey:
    survey, start = Survey(table, columns), 0
    for batch in table.batches(["id", *columns]):
        survey.look(batch, np.array(training[start : start + batch.frame.height]))
        start += batch.frame.height
    return survey


def applied(preparation: Preparation, table: Table) -> np.ndarray:
    columns = ["id", *(column.name for column in preparation.columns)]
    return np.concatenate([preparation.apply(batch, np.arange(batch.frame.height)) for batch in table.batches(columns)])


def table(path: Path, rows: dict[str, Any], client: str = "north", **settings: Any) -> Table:
    frame = pl.DataFrame(rows)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return Table("bank", client, path, TableSettings(**{"id": "id", **settings}))


@settings(max_examples=examples(40))
@given(st.lists(ROW, min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 60), st.integers(1, 3), st.booleans())
def test_it_is_that_of_the_joined_rows(
    rows: list[tuple[float | None, str | None, bool]], clients: int, cells: int, rare: int, csv: bool
) -> None:
    """However rows are dealt to clients and batches: what is fitted and what comes out are the same."""
    training = [row[2] for row in rows]
    known = [row[0] for row in rows if row[0] is not None and row[2]]
    texts = [row[1] for row in rows if row[1] is not None and row[2]]
    counts = {text: texts.count(text) for text in texts}
    common = sorted(text for text, count in counts.items() if count >= rare)
    if not known or not common:
        return
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_module, "CELLS", cells)
        made, flags = [], []
        for client in range(clients):
            own = list(range(client, len(rows), clients))
            if own:
                content = {
                    "id": own,
                    "n": pl.Series([rows[k][0] for k in own], dtype=pl.Float64),
                    "c": pl.Series([rows[k][1] for k in own], dtype=pl.String),
                }
                path = Path(folder) / f"{client}.{'csv' if csv else 'parquet'}"
                made.append(table(path, content, f"client {client}", rare=rare))
                flags.append([training[k] for k in own])
        preparation = fit(map(survey_table, made, [COLUMNS] * len(made), flags), COLUMNS, rare)
        numbers = np.concatenate([applied(preparation, part) for part in made])
    order = [k for client in range(clients) for k in range(client, len(rows), clients)]
    mean, deviation = np.mean(known), np.std(known) or np.inf  # a constant column tells nothing
    expected = []
    for value, text, _ in (rows[k] for k in order):
        row = [0.0 if value is None else (value - mean) / deviation]
        if any(rows[k][0] is None for k in range(len(rows)) if training[k]):
            row.append(float(value is None))
        row += [float(text == category) for category in common]
        if len(common) < len(counts):
            row.append(float(text is not None and text not in common))
        if any(rows[k][1] is None for k in range(len(rows)) if training[k]):
            row.append(float(text is None))
        expected.append(row)
    wanted = np.array(expected)
    assert numbers.shape == wanted.shape == (len(rows), len(preparation.outputs))
    assert np.allclose(numbers, wanted, atol=1e-4 * (1 + np.abs(wanted).max()))


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.integers(0, 20), st.sampled_from([0.0, 1e9]))
def test_sums_add_up_without_cancelling(values: list[float], cut: int, offset: float) -> None:
    shifted = np.array(values) + offset
    first = np.arange(len(values)) < cut
    numbers = Numbers(shifted, dates=False)
    total = NumberFacts.of(numbers, first) + NumberFacts.of(numbers, ~first)
    assert total.count == len(values)
    exact = [Fraction(value) for value in shifted.tolist()]
    mean = sum(exact, Fraction(0)) / len(exact)
    assert abs(Fraction(total.mean) + Fraction(total.rest) - mean) <= Fraction(1e-15) * max(map(abs, exact))
    squares = float(sum((value - mean) ** 2 for value in exact))
    assert np.isclose(total.spread, sqrt(squares), rtol=1e-12, atol=1e-15 * (1 + offset))


def test_rare_unknown_and_missing(tmp_path: Path) -> None:
    rows = {"id": range(8), "job": ["cook"] * 3 + ["nurse"] * 3 + ["smith", None]}
    trained = table(tmp_path / "a.csv", rows, rare=2)
    preparation = fit([survey_table(trained, ["job"], [True] * 8)], ["job"], 2)
    assert preparation.outputs == ["job = cook", "job = nurse", "job other", "job missing"]
    new = table(tmp_path / "b.csv", {"id": range(4), "job": ["nurse", "smith", "astronaut", ""]})
    assert applied(preparation, new).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    none_rare = fit([survey_table(trained, ["job"], [True] * 6 + [False] * 2)], ["job"], 2)
    assert none_rare.outputs == ["job = cook", "job = nurse"]
    assert applied(none_rare, new).tolist() == [[0, 1], [0, 0], [0, 0], [0, 0]]


def test_codes_are_categories_when_the_job_says_so(tmp_path: Path) -> None:
    north = table(tmp_path / "a.csv", {"id": range(4), "region": [1, 2, 1, 2]}, categories=["region"])
    south = table(tmp_path / "b.parquet", {"id": range(3), "region": [2.0, 3.0, 3.0]}, "south", categories=["region"])
    surveys = [survey_table(north, ["region"], [True] * 4), survey_table(south, ["region"], [True] * 3)]
    preparation = fit(surveys, ["region"], 1)
    assert preparation.outputs == ["region = 1", "region = 2", "region = 3"]
    assert applied(preparation, south).tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_numbers_that_are_too_large(tmp_path: Path) -> None:
    huge = table(tmp_path / "a.csv", {"id": range(2), "a": [1.7e308, -1.7e308]})
    with pytest.raises(DataError, match="silo 'bank': column 'a' holds numbers too large to be standardised"):
        fit([survey_table(huge, ["a"], [True] * 2)], ["a"], 1)
    usual = table(tmp_path / "b.csv", {"id": range(2), "a": [1, 2]})
    preparation = fit([survey_table(usual, ["a"], [True] * 2)], ["a"], 1)
    with pytest.raises(DataError, match="a.csv.*column 'a' holds a number too large in row 1"):
        applied(preparation, huge)


def test_columns_with_too_many_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcd.data.tables.survey.MOST_CATEGORIES", 10)
    made = table(tmp_path / "a.csv", {"id": range(20), "a": [f"name {n}" for n in range(20)]})
    with pytest.raises(DataError, match="column 'a' holds more than 10 different texts; leave it out"):
        fit([survey_table(made, ["a"], [True] * 20)], ["a"], 1)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    rows = {"id": range(3), "a": ["1", "x", "2"], "b": ["1,5", "2,5", "3,5"], "c": [1, 2, 3], "d": ["p", "q", "r"]}
    made = table(tmp_path / "a.csv", rows)
    with pytest.raises(DataError) as caught:
        fit([survey_table(made, ["a", "b", "c", "d"], [True] * 3)], ["a", "b", "c", "d"], 2)
    result = str(caught.value).splitlines()
    assert [line.split("column '")[1][0] for line in result] == ["a", "b", "d"]


def test_a_constant_column_is_zero_but_for_rounding(tmp_path: Path) -> None:
    made = table(tmp_path / "a.csv", {"id": range(30), "a": [0.1] * 29 + [0.2]})
    preparation = fit([survey_table(made, ["a"], [True] * 29 + [False])], ["a"], 1)
    assert np.abs(applied(preparation, made)).max() < 0.2


def test_dates_and_numbers_do_not_mix(tmp_path: Path) -> None:
    numbers = table(tmp_path / "n.csv", {"id": range(2), "a": [5, 6]})
    dates = table(tmp_path / "d.csv", {"id": range(2), "a": ["2026-01-28", "2026-01-30"]}, "south")
    with pytest.raises(DataError, match="column 'a' holds dates at client 'south' .* and numbers at 'north'"):
        fit([survey_table(made, ["a"], [True] * 2) for made in (numbers, dates)], ["a"], 1)
    preparation = fit([survey_table(numbers, ["a"], [True] * 2)], ["a"], 1)
    with pytest.raises(DataError, match="d.csv.*row 1 is the date '2026-01-28', unlike others"):
        applied(preparation, dates)
    dated = fit([survey_table(dates, ["a"], [True] * 2)], ["a"], 1)
    assert dated.columns[0].describe() == "dates, 2026-01-29 ± 1 days"
    assert applied(dated, dates).tolist() == [[-1], [1]]


def test_columns_of_too_many_categories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcd.data.tables.preparation.MOST_INPUTS", 3)
    made = table(tmp_path / "a.csv", {"id": range(8), "a": list("aabbccdd")})
    with pytest.raises(DataError, match="column 'a' holds 4 categories that occur in 2 training rows"):
        fit([survey_table(made, ["a"], [True] * 8)], ["a"], 2)
    empty = table(tmp_path / "b.csv", {"id": range(2), "a": [None, None]}, categories=["a"])
    with pytest.raises(DataError, match="column 'a' has no value in any training row"):
        fit([survey_table(empty, ["a"], [True] * 2)], ["a"], 2)


def test_a_constant_column_is_zero(tmp_path: Path) -> None:
    made = table(tmp_path / "a.csv", {"id": range(3), "a": [7, 7, 7]})
    preparation = fit([survey_table(made, ["a"], [True] * 3)], ["a"], 1)
    assert applied(preparation, made).tolist() == [[0], [0], [0]]


def test_a_column_that_one_client_lacks_values_of(tmp_path: Path) -> None:
    empty = table(tmp_path / "a.csv", {"id": range(2), "a": [None, None]})
    full = table(tmp_path / "b.csv", {"id": range(2), "a": ["x", "y"]}, "south")
    preparation = fit([survey_table(empty, ["a"], [True] * 2), survey_table(full, ["a"], [True] * 2)], ["a"], 1)
    assert preparation.outputs == ["a = x", "a = y", "a missing"]
    assert applied(preparation, empty).tolist() == [[0, 0, 1], [0, 0, 1]]


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    def fit_blocks(*tables: Table, rare: int = 1) -> Preparation:
        return fit([survey_table(one, ["a"], [True] * 3) for one in tables], ["a"], rare)

    ids = {"id": range(3)}
    numbers = table(tmp_path / "n.csv", ids | {"a": [1, 2, 3]})
    texts = table(tmp_path / "t.csv", ids | {"a": ["x", "y", "z"]}, "south")
    with pytest.raises(DataError, match=r"column 'a' holds numbers at client 'north' \(.*n.csv\) and texts at 'south'"):
        fit_blocks(numbers, texts)
    with pytest.raises(DataError, match="column 'a' has no value in any row; leave it out with silos.bank.exclude"):
        fit_blocks(table(tmp_path / "e.csv", ids | {"a": [None] * 3}))
    with pytest.raises(DataError, match="3 different texts .x, y, z., and none occurs in 2 training rows"):
        fit_blocks(texts, rare=2)
    with pytest.raises(DataError, match="no value in any training row"):
        fit([survey_table(numbers, ["a"], [False] * 3)], ["a"], 1)
    with pytest.raises(DataError, match="t.csv.*column 'a' holds numbers and texts: row 1 is the text 'x'"):
        applied(fit_blocks(numbers), texts)


def test_it_is_written_down(tmp_path: Path) -> None:
    preparation = Preparation(
        columns=[
            Number(name="age", mean=40.1, deviation=11.3, flagged=True),
            Category(name="job", values=["cook", "été"], other=True, flagged=False),
        ]
    )
    path = tmp_path / "bank.json"
    path.write_text(preparation.to_json())
    assert Preparation.from_file(path) == preparation
    path.write_text(preparation.to_json().replace("11.3", "-1"))
    with pytest.raises(RunError, match=r"bank.json: damaged: columns.0.number.deviation"):
        Preparation.from_file(path)
    path.write_text("nonsense")
    with pytest.raises(RunError, match=r"bank.json: damaged"):
        Preparation.from_file(path)
    with pytest.raises(RunError, match=r"none.json: cannot be read"):
        Preparation.from_file(tmp_path / "none.json")


def test_a_number_that_means_no_value_does_so_among_texts(tmp_path: Path) -> None:
    made = Preparation(columns=[Category(name="c", values=["a"], other=True, flagged=True)])
    given = table(tmp_path / "north.csv", {"id": [1, 2, 3, 4], "c": ["a", "-99", "-99.0", "b"]}, missing=["-99"])
    assert applied(made, given).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]]
