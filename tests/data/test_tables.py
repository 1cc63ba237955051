"""Files that are not as they should be, told so that their owner can mend them."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.data.tables import csv_lines as lines
from tdcd.data.tables import reader as tables_module
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.columns import numbers_of, texts_of
from tdcd.data.tables.features import feature_columns
from tdcd.data.tables.preparation import fit
from tdcd.data.tables.reader import Batch, Table
from tdcd.data.tables.settings import TableSettings
from tdcd.data.tables.survey import Survey
from tdcd.errors import DataError, JobError


def table(path: Path, content: str | bytes | dict[str, Any], client: str = "north", **settings: Any) -> Table:
    """Write a file and return it as a client's table."""
    if isinstance(content, dict):
        pl.DataFrame(content).write_parquet(path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Table("bank", client, path, TableSettings(**{"id": "id", **settings}))


def values(batch: Batch, column: str) -> np.ndarray:
    numbers = numbers_of(batch, column)
    assert numbers is not None
    return numbers.values


def look(made: Table, column: str = "a") -> Survey:
    survey = Survey(made, [column])
    for batch in made.batches(["id", column]):
        survey.look(batch, np.ones(batch.frame.height, dtype=bool))
    fit([survey], [column], 1)
    return survey


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "", "the file is empty"),
        ("x.csv", "\n\n", "the file is empty"),
        ("x.csv", b"\xef\xbb\xbf", "its first line is empty"),
        ("x.csv", "id,a\r1,2\r", "its lines end in a carriage return only"),
        ("x.csv", "id,a\n", "it has a header but no rows"),
        ("x.txt", "id,a\n1,2\n", "neither a .csv nor a .parquet file"),
        ("x.parquet", "id,a\n1,2\n", "named .parquet but holds something else; is it a CSV file"),
        ("x.csv", b"PAR1....", "named .csv but holds Parquet; rename it"),
        ("x.csv", gzip.compress(b"id,a\n1,2\n" * 50, mtime=0), "no text|UTF-8"),
        ("x.csv", b"id,a\n1,\xe9t\xe9\n", "cannot be read as CSV: 'utf-8' codec"),
        ("x.csv", b"id,a\n" + b"1,2\n" * 20000 + b"1,\xe9t\xe9\n", "invalid utf-8"),
        ("x.csv", "id,a\n1,2\n2,3,4\n5,6\n", "line 3 has 3 cells, the first line 2"),
        ("x.csv", "id,a\n1,2\n2\n5,6\n", "line 3 has 1 cells, the first line 2"),
        ("x.csv", "id,a\n1,2\n\n5,6\n", "line 3 is empty; remove it"),
        ("x.csv", "id,a\n1,2\n" + "\n" * 5000, ""),
        ("x.csv", "id,a\r\n1,2\r\n\r\n\r\n", ""),
        ("x.csv", "id,a,b\n1,2,3\n2,3,", ""),
        ("x.csv", "id,a,b\n1,2,3\n2,3", "line 3 has 2 cells, the first line 3; is it cut off"),
        ("x.csv", 'id,a\n1,2\n2,"unclosed\n', "a quote that opens in line 3 is not closed"),
        ("x.csv", 'id,a\n1,2\n2,5" pipe\n3,6" pipe\n', "line 3 has a quote within a cell"),
        ("x.csv", 'id,a\n1,"x"\n2\n3,x\n', "line 3 has 1 cells, the first line 2"),
        ("x.csv", "id,a,a\n1,2,3\n", "several columns have the same name in the first line: a"),
        ("x.csv", "id,,a\n1,2,3\n", "column 2 has no name in the first line"),
        (
            "x.csv",
            "id;a\n1;2\n",
            r"no column 'id' \(silos.bank.id\); its first line is 'id;a'. Are its cells separated",
        ),
        ("x.csv", "key,a\n1,2\n", r"no column 'id' \(silos.bank.id\); there is a, key"),
        ("x.csv", "id,a\n1,2\n,3\n,4\n", "2 rows have no ID in column 'id', the first of them row 2"),
        ("x.csv", "id,a\n1,2\n  ,3\n", "1 rows have no ID in column 'id', the first of them row 2"),
        (
            "x.parquet",
            {"id": [1, None, 3], "a": [1, 2, 3]},
            "1 rows have no ID in column 'id', the first of them row 2",
        ),
        ("x.parquet", {"id": [1.5, 2.5], "a": [1, 2]}, "column 'id' holds Float64; IDs must be whole numbers or texts"),
        ("x.parquet", {"id": [2**64 - 1, 3], "a": [1, 2]}, "the ID in row 1 is too large"),
    ],
)
def test_files(tmp_path: Path, name: str, content: Any, message: str) -> None:
    made = table(tmp_path / name, content)
    if not message:
        ClientTable(made).read_keys()
        return
    with pytest.raises(DataError, match=message) as caught:
        ClientTable(made).read_keys()
    assert "silo 'bank', client 'north'" in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    made = table(tmp_path / "x.parquet", {"id": [1, 2]})
    made.path.write_bytes(made.path.read_bytes()[:-20])
    with pytest.raises(DataError, match="damaged, cannot be read as Parquet"):
        ClientTable(made).read_keys()
    with pytest.raises(DataError, match="no such file"):
        ClientTable(Table("bank", "north", tmp_path / "y.csv", TableSettings(id="id"))).read_keys()
    (tmp_path / "z.csv").mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        ClientTable(Table("bank", "north", tmp_path / "z.csv", TableSettings(id="id"))).read_keys()


@pytest.mark.parametrize("cells", [1, 1_000_000])
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["1", "2", "x", "4"], "row 3 (is )?the text 'x'"),
        (["1", "", "x"], "row 3 (is )?the text 'x'"),
        (["S", "M", "10"], "row 3 is (the number )?'10'"),
        (["1", "inf"], "row 2 (is )?the text 'inf'"),
        (["5", "2026-01-28"], "row 2 (is )?the (date|text) '2026-01-28'"),
        (["2026-01-28", "2026-01-28 99:99"], "row 2 (is )?the text '2026-01-28 99:99'"),
    ],
)
def test_numbers_and_texts_in_one_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int, rows: list[str], message: str
) -> None:
    monkeypatch.setattr(tables_module, "CELLS", cells)
    made = table(tmp_path / "x.csv", "id,a\n" + "".join(f"{n},{cell}\n" for n, cell in enumerate(rows)))
    with pytest.raises(DataError, match=message) as caught:
        look(made)
    assert "x.csv" in str(caught.value)
    assert "silos.bank.missing" in str(caught.value)


def test_cells(tmp_path: Path) -> None:
    content = '\ufeffid, a ,b\r\n1, 2.5 ,"x, ""y"""\r\n2,1e3,  z\r\n3,NA,\r\n'
    (batch,) = table(tmp_path / "x.csv", content).batches(["a", "b"])
    assert np.array_equal(values(batch, "a"), [2.5, 1000.0, np.nan], equal_nan=True)
    assert texts_of(batch, "b").to_list() == ['x, "y"', "z", None]
    assert numbers_of(batch, "b") is None
    typed = {"id": [1, 2], "f": [1.0, None], "b": [True, False], "t": ["?", "q"], "c": [3.0, 4.5]}
    (batch,) = table(tmp_path / "x.parquet", typed, missing=["?"]).batches(list(typed))
    assert np.array_equal(values(batch, "f"), [1.0, np.nan], equal_nan=True)
    assert texts_of(batch, "b").to_list() == ["true", "false"]
    assert texts_of(batch, "t").to_list() == [None, "q"]
    assert texts_of(batch, "f").to_list() == ["1", None]
    assert texts_of(batch, "c").to_list() == ["3", "4.5"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("typed", [False, True])
def test_dates_count_in_days(tmp_path: Path, suffix: str, typed: bool) -> None:
    texts = ["1970-01-02", None, "2026-01-28"], ["1970-01-01 12:00:00", "1970-01-02 00:00:36", None]
    frame = pl.DataFrame({"id": range(3), "day": texts[0], "time": texts[1]})
    if typed:
        frame = frame.with_columns(pl.col("day").str.to_date(), pl.col("time").str.to_datetime())
    path = tmp_path / f"x.{suffix}"
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    (batch,) = Table("bank", "north", path, TableSettings(id="id")).batches(["day", "time"])
    assert np.allclose(values(batch, "day"), [1, np.nan, 20481], equal_nan=True)
    assert np.allclose(values(batch, "time"), [0.5, 1 + 36 / 86400, np.nan], equal_nan=True)


def test_what_is_neither_number_nor_text(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'a' holds List.*, which is neither a number nor a text"):
        look(table(tmp_path / "x.parquet", {"id": [1], "a": [[1, 2]]}))


def test_other_ways_to_write_numbers(tmp_path: Path) -> None:
    content = "id;a;b\n1;1.234,56;2,5\n2;-7,5;1\n3;;3\n"
    made = table(tmp_path / "x.csv", content, separator=";", decimal=",", thousands=".")
    (batch,) = made.batches(["a", "b"])
    assert np.allclose(values(batch, "a"), [1234.56, -7.5, np.nan], equal_nan=True)
    assert np.allclose(values(batch, "b"), [2.5, 1, 3])
    for cells in (["1.234,56", "2.000,00"], ["1,0", "1,5"], ["28.01.2026", "29.01.2026"], ["12%", "3%"]):
        made = table(
            tmp_path / "y.csv", "id;a\n" + "".join(f"{n};{cell}\n" for n, cell in enumerate(cells)), separator=";"
        )
        with pytest.raises(DataError, match=f"texts that look like numbers or dates, such as '{min(cells)}'.*decimal"):
            look(made)
    look(table(tmp_path / "y.csv", "id;a\n1;1,0\n2;1,5\n", separator=";", categories=["a"]))


def test_ids_of_csv_files(tmp_path: Path) -> None:
    assert ClientTable(table(tmp_path / "a.csv", "id,a\n 12,1\n-3,2\n")).read_keys().ids.to_list() == [12, -3]
    assert ClientTable(table(tmp_path / "b.csv", "id,a\n007,1\n12,2\n")).read_keys().ids.to_list() == ["007", "12"]
    assert ClientTable(table(tmp_path / "c.csv", "id,a\n7,1\nA,2\n")).read_keys().ids.to_list() == ["7", "A"]


def test_columns_of_a_silo(tmp_path: Path) -> None:
    north = table(tmp_path / "n.csv", "id,a,b,y\n1,2,3,0\n", label="y")
    south = table(tmp_path / "s.csv", "b,y,id,a\n1,0,3,0\n", "south", label="y")
    also = {"id": "the ID", "y": "the label"}
    assert feature_columns([north, south], also) == ["a", "b"]
    east = table(tmp_path / "e.csv", "id,a,c,y\n1,2,3,0\n", "east", label="y")
    with pytest.raises(
        DataError, match="client 'east' .*its columns are not those of client 'north': it lacks b and it has c"
    ):
        feature_columns([north, east], also)
    chosen = [table(made.path, made.path.read_text(), made.client, columns=["a"]) for made in (north, east)]
    assert feature_columns(chosen, also) == ["a"]
    with pytest.raises(DataError, match=r"no column 'd' \(silos.bank.columns\)"):
        feature_columns([table(tmp_path / "n.csv", "id,a\n1,2\n", columns=["d"])], also)
    with pytest.raises(DataError, match=r"no column 'd' \(silos.bank.categories\)"):
        feature_columns([table(tmp_path / "n.csv", "id,a\n1,2\n", categories=["d"])], also)
    with pytest.raises(DataError, match=r"silos.bank.columns: 'y' is the label, not a feature"):
        feature_columns([table(tmp_path / "n.csv", "id,a,y\n1,2,0\n", columns=["a", "y"])], also)
    also_out = table(tmp_path / "n.csv", "id,a,b,y\n1,2,3,0\n", exclude=["b"])
    assert feature_columns([also_out], also) == ["a"]
    with pytest.raises(DataError, match="silos.bank.exclude: columns says what is used"):
        feature_columns([table(tmp_path / "n.csv", "id,a,b\n1,2,0\n", columns=["a"], exclude=["b"])], also)
    with pytest.raises(DataError, match=r"no column 'c' \(silos.bank.exclude\)"):
        feature_columns([table(tmp_path / "n.csv", "id,a,b\n1,2,0\n", exclude=["c"])], also)
    with pytest.raises(DataError, match="it has no columns of features"):
        feature_columns([table(tmp_path / "n.csv", "id,y\n1,2\n")], also)


def read(made: Table, *columns: str) -> list[tuple[object, ...]]:
    return [
        row
        for batch in made.batches(columns)
        for row in zip(*(batch.frame.get_column(column) for column in columns), strict=True)
    ]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_names_are_names_and_no_patterns(tmp_path: Path, suffix: str) -> None:
    frame = pl.DataFrame({"id": [1], "^x.*$": ["right"], "xy": ["wrong"], "*": ["star"]})
    other = frame.with_columns(id=pl.lit(9))
    for name, content in (("a[1]", frame), ("a1", other), ("b*", frame), ("b2", other)):
        path = tmp_path / f"{name}.{suffix}"
        content.write_csv(path) if suffix == "csv" else content.write_parquet(path)
    for name in ("a[1]", "b*"):
        made = Table("bank", "north", tmp_path / f"{name}.{suffix}", TableSettings(id="id"))
        assert [str(cell) for cell in read(made, "id", "^x.*$", "*")[0]] == ["1", "right", "star"]


def test_what_means_no_value(tmp_path: Path) -> None:
    """Blanks around a cell do not count, and files of both kinds are read alike."""
    content = 'id,job,n\n1, ?, N/a \n2,  ,-999\n3,"",-999.0\n4, cook , 7\n'
    made = table(tmp_path / "x.csv", content, missing=["?", "n/A", "-999", "-999.0"])
    assert [row[1:] for row in read(made, "id", "job", "n")] == [(None, None)] * 3 + [("cook", "7")]
    typed: dict[str, Any] = {"id": [1, 2, 3, 4], "job": ["?", " ", "", "cook "], "w": [-999, 1, 2, 3]}
    typed["n"] = [None, -999.0, float("nan"), 7.0]
    made = table(tmp_path / "x.parquet", typed, missing=["?", "-999"])
    assert read(made, "job", "n", "w") == [(None, None, None), (None, None, 1), (None, None, 2), ("cook", 7.0, 3)]


@pytest.mark.parametrize("cells", [1, 4, 1_000_000])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_codes_do_not_depend_on_files_and_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int, suffix: str
) -> None:
    monkeypatch.setattr(tables_module, "CELLS", cells)
    frame = pl.DataFrame({"id": range(8), "g": [1.0, 2.0, 2.5, 1.0, None, 1e19, 12.0, -3.0]})
    path = tmp_path / f"x.{suffix}"
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    made = Table("bank", "north", path, TableSettings(id="id", categories=["g"]))
    parts = [text for batch in made.batches(["g"]) for text in texts_of(batch, "g")]
    assert parts[:5] + parts[6:] == ["1", "2", "2.5", "1", None, "12", "-3"]


@pytest.mark.parametrize("cells", [1, 1_000_000])
def test_rows_that_the_wanted_columns_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """A stray quote in a column that nobody reads must not swallow rows."""
    monkeypatch.setattr(tables_module, "CELLS", cells)
    rows = [f"{n},{n},{'5' + chr(34) + ' pipe' if n in (5, 30) else 'x'},1" for n in range(40)]
    made = table(tmp_path / "x.csv", "id,x,note,e\n" + "\n".join(rows) + "\n")
    with pytest.raises(DataError, match="line 7 has a quote within a cell"):
        read(made, "x")


def test_a_damaged_parquet_file_is_not_read_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "CELLS", 1500)
    path = tmp_path / "x.parquet"
    generator = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"id": range(4000), "a": generator.normal(size=4000), "t": generator.choice(["x", "yy"], 4000)}
    )
    frame.write_parquet(path, row_group_size=500)
    whole = path.read_bytes()
    made = Table("bank", "north", path, TableSettings(id="id"))
    for place in generator.integers(4, len(whole) - 8, 60).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            again = Table("bank", "north", path, made.settings)
            rows = sum(batch.frame.height for batch in again.batches(["id", "a", "t"]))
        except DataError:
            continue
        assert rows == 4000


def test_many_columns(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(5000)]
    made = table(tmp_path / "x.csv", "id," + ",".join(names) + "\n" + ",".join(["1"] * 5001) + "\n")
    assert feature_columns([made], {"id": "the ID"}) == names


def test_numbers_are_read_as_the_file_writes_them(tmp_path: Path) -> None:
    """What is not written so is a text, and no number that happens to look like one."""
    german = {"separator": ";", "decimal": ",", "thousands": "."}
    for cells, settings, expected in (
        (["1.234,5", "1.234.567"], german, [1234.5, 1234567]),
        (["-7", "+0,5"], german, [-7, 0.5]),
        (["28.01.2026", "01.02.2026"], german, None),
        (["1.5", "2.25"], german, None),
        (["10.0.0.1", "1.2.3"], german, None),
        (["1.234", "2.5"], {"separator": ";", "decimal": ","}, None),
        (["1,5", "12,34"], {"separator": ";", "thousands": ","}, None),
        (["1,500", "12,340.5"], {"separator": ";", "thousands": ","}, [1500, 12340.5]),
        (["nan", "inf"], {"separator": ";", "missing": []}, None),
    ):
        rows = "".join(f"{n};{cell}\n" for n, cell in enumerate(cells))
        (batch,) = table(tmp_path / "x.csv", f"id;a\n{rows}", **settings).batches(["a"])
        result = numbers_of(batch, "a")
        assert (None if result is None else result.values.tolist()) == expected, cells
    with pytest.raises(JobError, match="thousands and decimal are the same"):
        TableSettings(id="id", decimal=",", thousands=",")


def test_numbers_that_mean_no_value(tmp_path: Path) -> None:
    made = table(tmp_path / "x.csv", "id;a\n1;-999,00\n2;1,5\n3;-999\n", separator=";", decimal=",", missing=["-999"])
    (batch,) = made.batches(["a"])
    assert np.array_equal(values(batch, "a"), [np.nan, 1.5, np.nan], equal_nan=True)
    typed: dict[str, Any] = {"id": [2**53, 2**53 + 1], "f": pl.Series([99.99, 1.0], dtype=pl.Float32)}
    typed["u"] = pl.Series([2**64 - 1, 99], dtype=pl.UInt64)
    made = table(tmp_path / "x.parquet", typed, missing=["99.99", "99", str(2**53)])
    assert read(made, "id", "f", "u") == [(None, None, 2**64 - 1), (2**53 + 1, 1.0, None)]


def test_truth_values_and_codes_are_written_in_one_way(tmp_path: Path) -> None:
    made = table(tmp_path / "x.csv", "id,b,c\n1,True,1.0\n2,FALSE,1e0\n3,true,007\n4,,1.50\n", categories=["c"])
    (batch,) = made.batches(["b", "c"])
    assert texts_of(batch, "b").to_list() == ["true", "false", "true", None]
    assert texts_of(batch, "c").to_list() == ["1", "1", "007", "1.5"]
    typed = {"id": [1, 2], "b": [True, False], "c": [1.0, 1e16]}
    (batch,) = table(tmp_path / "x.parquet", typed, categories=["c"]).batches(["b", "c"])
    assert texts_of(batch, "b").to_list() == ["true", "false"]
    assert texts_of(batch, "c").to_list() == ["1", "10000000000000000"]


def test_the_index_of_a_data_frame_is_no_feature(tmp_path: Path) -> None:
    frame = {"id": [1], "x": [2], "__index_level_0__": [7]}
    with pytest.raises(DataError, match="'__index_level_0__' is the index of a data frame; leave it out"):
        feature_columns([table(tmp_path / "x.parquet", frame)], {"id": "the ID"})
    assert feature_columns([table(tmp_path / "x.parquet", frame, exclude=["__index_level_0__"])], {"id": "it"}) == ["x"]


def test_a_file_that_changes_between_two_passes_is_refused(tmp_path: Path) -> None:
    """Rows are known by their number from one pass to the next."""
    path = tmp_path / "a.csv"
    made = table(path, "id,a\n1,1\n2,2\n")
    assert ClientTable(made).read_keys().ids.to_list() == [1, 2]
    path.write_text("id,a\n2,1\n1,22\n")
    with pytest.raises(DataError, match="it has changed while it was being read"):
        list(made.batches(["a"]))


@given(
    st.lists(st.tuples(st.text('a"\n, é', min_size=1, max_size=4), st.floats(-9, 9, width=16)), min_size=1),
    st.sampled_from([("rows.csv", "utf-8"), ("rows.csv", "latin-1"), ("rows.parquet", "utf-8")]),
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(0, 30),
    st.integers(0, 3),
    st.booleans(),
)
def test_any_rows_are_read_in_any_pieces(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, float]],
    file: tuple[str, str],
    cells: int,
    span: int,
    after: int,
    empty: int,
    typed: bool,
) -> None:
    """Also from some row on, before empty lines, of a quoted text over several lines, and in another encoding."""
    (name, encoding), (texts, numbers) = file, zip(*rows, strict=True)
    path = tmp_path_factory.mktemp("pieces") / name
    frame = pl.DataFrame({"id": [f"{k}" for k in range(len(rows))], "t": texts, "x": numbers})
    if path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=7)
    else:
        path.write_bytes((frame.write_csv(quote_style="non_numeric") + empty * "\n").encode(encoding))
    made = Table("bank", "north", path, TableSettings(id="id", encoding=encoding))
    after = min(after, len(rows) - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables_module, "CELLS", cells)
        patch.setattr(lines, "SPAN", span)
        patch.setattr(lines, "CHUNK", 16)
        batches = list(made.batches(["id", "t", "x"], typed=typed, after=after))
    assert [int(number) for batch in batches for number in batch.rows] == list(range(after + 1, len(rows) + 1))
    assert [str(one) for batch in batches for one in batch.frame["id"]] == frame["id"].to_list()[after:]
    read = [one for batch in batches for one in batch.frame["t"]]
    assert read == [text.strip() or None for text in texts[after:]]
    assert [float(one) for batch in batches for one in batch.frame["x"]] == list(numbers[after:])
