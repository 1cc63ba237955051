"""From tables to rows, against a reference of a few lines that shares nothing with the reader.

The reference reads cells as Python texts and counts in fractions, so that no sum is ever rounded.
"""

import csv
import re
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from math import sqrt
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcd
from support import examples
from tdcd.data.holdout import Part
from tdcd.data.label_encoding import encode_labels
from tdcd.jobs.data import JobData
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import Job

MARKS = ["NA", "-999"]
PEOPLE = 40


def job(folder: Path, files: dict[str, dict[str, str]], **more: Any) -> Job:
    silos: dict[str, dict[str, Any]] = {
        silo: {"id": "id", "rare": 2, "missing": MARKS, "clients": {c: str(folder / f) for c, f in own.items()}}
        for silo, own in files.items()
    }
    silos["bank"] |= {"label": "y"}
    for silo, own in more.pop("silos", {}).items():
        silos[silo] |= own
    table = {
        "data": {"source": "tables", "test_fraction": 0.2},
        "labels": {"silo": "bank", "sharing": "shared", **more.pop("labels", {})},
        "silos": silos,
        "model": {"kind": "linear"},
        "training": {"loss": "cross-entropy", "rounds": 1, "rate": 0.1, **more.pop("training", {})},
    }
    return parse_job(table, "job")


def write(path: Path, columns: dict[str, list[Any]]) -> None:
    if path.suffix == ".parquet":
        pl.DataFrame(columns).write_parquet(path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def exact(cell: str) -> Fraction:
    """Return a number as a file holds it: whole numbers as they are, all others as float64 reads them."""
    return Fraction(int(cell)) if re.fullmatch("-?[0-9]+", cell) else Fraction(float(cell))


def reference(columns: list[list[str]], kinds: list[str], training: list[bool]) -> list[list[float]]:
    """Turn columns of cells into inputs: numbers by their mean and deviation, categories as 0 and 1."""
    rows: list[list[float]] = [[] for _ in training]
    for cells, kind in zip(columns, kinds, strict=True):
        values: list[Any] = [None if cell.strip() in ("", "NA") else cell.strip() for cell in cells]
        if kind == "number":
            values = [None if v is None or exact(v) == -999 else exact(v) for v in values]
            known = [v for v, train in zip(values, training, strict=True) if train and v is not None]
            mean = sum(known, Fraction(0)) / len(known)
            variance = sum(((v - mean) ** 2 for v in known), Fraction(0)) / len(known)
            scale = max((abs(v - mean) for v in known), default=Fraction(0)) or Fraction(1)
            deviation = float(scale) * sqrt(float(variance / scale**2))
            for row, v in zip(rows, values, strict=True):
                row.append(0.0 if v is None or not variance else float((v - mean) / scale) * float(scale) / deviation)
        else:
            values = [None if v in ("-999", "-999.0") else v for v in values]
            counts = Counter(v for v, train in zip(values, training, strict=True) if train and v is not None)
            common = sorted(v for v, count in counts.items() if count >= 2)
            for row, v in zip(rows, values, strict=True):
                row += [float(v == name) for name in common]
                row += [float(v is not None and v not in common)] if len(common) < len(counts) else []
        if any(v is None and train for v, train in zip(values, training, strict=True)):
            for row, v in zip(rows, values, strict=True):
                row.append(float(v is None))
    return rows


def number_cells() -> st.SearchStrategy[list[str]]:
    """Draw columns of numbers: small and large, constant, sequential, tiny, with gaps in several spellings."""
    some = st.lists(st.floats(-1e6, 1e6).map(repr), min_size=PEOPLE, max_size=PEOPLE)
    tiny = st.lists(st.floats(1e-190, 1e-180).map(repr), min_size=PEOPLE, max_size=PEOPLE)
    start = st.integers(10**17, 9 * 10**17)
    sequential = start.map(lambda n: [str(n + k) for k in range(PEOPLE)])
    constant = st.one_of(start, st.just(1700000000123456789), st.integers(-9, 9)).map(lambda n: [str(n)] * PEOPLE)
    near = st.integers(1, 10**9).map(lambda n: [f"{n}.{k:03}" for k in range(PEOPLE)])
    gaps = st.lists(st.sampled_from(["", "", "", "NA", "-999", "-999.0", "-9.99e2"]), min_size=1, max_size=6)
    return st.tuples(st.one_of(some, tiny, sequential, constant, near), gaps, st.booleans()).map(
        lambda drawn: [*drawn[1], *drawn[0][len(drawn[1]) :]] if drawn[2] else drawn[0]
    )


CATEGORIES = st.lists(
    st.sampled_from(["north", "south", "east", "", "NA", "-999.0", "-999"]), min_size=PEOPLE, max_size=PEOPLE
)


@settings(max_examples=examples(15), deadline=None)
@given(number_cells(), number_cells(), CATEGORIES, st.integers(1, 3), st.randoms(use_true_random=False))
def test_rows_are_those_of_the_reference(
    one: list[str], two: list[str], words: list[str], clients: int, random: Random
) -> None:
    order = list(range(PEOPLE))
    random.shuffle(order)
    with TemporaryDirectory() as name:
        folder = Path(name)
        files: dict[str, dict[str, str]] = {"bank": {}, "shop": {"all": "shop.csv"}}
        for client in range(clients):
            mine = order[client::clients]
            columns: dict[str, list[Any]] = {"id": mine, "y": [k % 2 for k in mine], "one": [one[k] for k in mine]}
            write(folder / f"{client}.csv", columns | {"word": [words[k] for k in mine]})
            files["bank"][f"c{client}"] = f"{client}.csv"
        write(folder / "shop.csv", {"id": list(range(PEOPLE)), "two": two})
        wanted = job(folder, files)
        parts = split(wanted)
        training = [k in parts[Part.TRAIN] for k in range(PEOPLE)]
        try:
            expected = {
                "bank": reference([one, words], ["number", "category"], training),
                "shop": reference([two], ["number"], training),
            }
        except ZeroDivisionError:
            with pytest.raises(tdcd.DataError):
                tdcd.load_data(wanted)
            return
        if not any(w.strip() not in ("", "NA", "-999", "-999.0") for w, t in zip(words, training, strict=True) if t):
            return
        result = tdcd.load_data(wanted)
    for silo, rows in expected.items():
        for part, numbers in parts.items():
            got = rows_of(result, part, silo)
            assert got.shape == (len(numbers), len(rows[0]))
            want = np.array([rows[k] for k in numbers], dtype=np.float64)
            assert np.allclose(got, want, rtol=3e-7, atol=3e-7), (silo, part)


def split(wanted: Job) -> dict[Part, list[int]]:
    """Return who is held out, from a table that has nothing in it."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        ids = list(range(PEOPLE))
        write(folder / "a.csv", {"id": ids, "y": [k % 2 for k in ids], "x": ids})
        write(folder / "b.csv", {"id": ids, "x": ids})
        data = tdcd.load_data(job(folder, {"bank": {"a": "a.csv"}, "shop": {"b": "b.csv"}}))
        del wanted
        return {part: [int(i) for i in result] for part, result in data.ids.items()}


def rows_of(data: JobData, part: Part, silo: str) -> Any:
    return data.parts[part].features[silo].numpy()


def single(folder: Path, columns: dict[str, list[Any]], kind: str = "csv", **more: Any) -> JobData:
    """Load a federation of one silo with these columns."""
    people = len(next(iter(columns.values())))
    write(folder / f"a.{kind}", {"id": list(range(people)), "y": [k % 2 for k in range(people)], **columns})
    return tdcd.load_data(job(folder, {"bank": {"a": f"a.{kind}"}}, **more))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_constant_column_of_large_numbers_is_left_out(tmp_path: Path, kind: str) -> None:
    data = single(tmp_path, {"n": [1700000000123456789] * 30, "x": list(range(30))}, kind)
    assert not rows_of(data, Part.TRAIN, "bank")[:, 0].any()
    assert any("left out, as all training rows hold the same: n" in note for note in data.federation.notes)
    (column, _) = data.federation.preparations["bank"].columns
    assert column.describe() == "numbers, all 1700000000123456789: left out"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_sequential_numbers_of_eighteen_digits(tmp_path: Path, kind: str) -> None:
    start = 123456789012345678
    numbers = [start + k for k in range(1000)]
    data = single(tmp_path, {"n": numbers}, kind)
    ids = [int(i) for i in data.ids[Part.TRAIN]]
    deviation = np.std(np.array(ids, dtype=np.float64))
    made = data.federation.preparations["bank"].columns[0]
    assert getattr(made, "deviation") == pytest.approx(deviation, rel=1e-12)  # noqa: B009
    want = (np.array(ids) - np.mean(ids)) / deviation
    assert np.allclose(rows_of(data, Part.TRAIN, "bank")[:, 0], want, atol=1e-6)


def test_tiny_numbers_are_not_lost(tmp_path: Path) -> None:
    data = single(tmp_path, {"n": [1e-180 * k for k in range(1, 31)], "m": [1e200 * k for k in range(30)]})
    rows = rows_of(data, Part.TRAIN, "bank")
    assert np.allclose(rows.std(0), 1, atol=1e-5)
    assert np.allclose(rows.mean(0), 0, atol=1e-5)


def test_marks_of_no_value_in_parquet(tmp_path: Path) -> None:
    """Decimals, dates, times, integers and floats alike."""
    day, base = timedelta(days=1), datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    columns: dict[str, list[Any]] = {
        "decimal": [Decimal("-999.00") if k % 5 == 0 else Decimal(50 + k) / 4 for k in range(40)],
        "day": [date(1900, 1, 1) if k % 5 == 0 else date(2020, 1, 1) + k * day for k in range(40)],
        "time": [datetime(1900, 1, 1) if k % 5 == 0 else base + k * day for k in range(40)],
        "integer": [-999 if k % 5 == 0 else k for k in range(40)],
        "float": [-999.0 if k % 5 == 0 else k / 7 for k in range(40)],
    }
    marks = {"bank": {"missing": ["-999", "1900-01-01"]}}
    data = single(tmp_path, columns, "parquet", silos=marks)
    ids = data.ids[Part.TRAIN].astype(int)
    rows = rows_of(data, Part.TRAIN, "bank")
    assert rows.shape[1] == 10
    known = ids % 5 != 0
    want = (ids[known] - ids[known].mean()) / ids[known].std()
    for column in range(5):
        assert np.allclose(rows[known, 2 * column], want, atol=1e-5)
        assert not rows[~known, 2 * column].any()
        assert np.array_equal(rows[:, 2 * column + 1], ~known)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("spelling", ["-999", "-999.0", "-999.00"])
def test_a_mark_in_labels_is_no_label(tmp_path: Path, spelling: str, kind: str) -> None:
    people = 20
    labels = [spelling if k == 7 else str(k % 2) for k in range(people)]
    write(tmp_path / f"a.{kind}", {"id": list(range(people)), "y": labels, "x": list(range(people))})
    with pytest.raises(tdcd.DataError, match="column 'y' has no value in 1 rows, the first of them row 8"):
        tdcd.load_data(job(tmp_path, {"bank": {"a": f"a.{kind}"}}))


def test_a_mark_in_categories_is_no_category(tmp_path: Path) -> None:
    words = ["-999.0" if k % 4 == 0 else "ab"[k % 2] for k in range(40)]
    codes = ["-999.00" if k % 4 == 0 else str(k % 3) for k in range(40)]
    data = single(tmp_path, {"word": words, "code": codes}, silos={"bank": {"categories": ["code"]}})
    outputs = data.federation.preparations["bank"].outputs
    assert outputs == ["word = a", "word = b", "word missing", "code = 0", "code = 1", "code = 2", "code missing"]


def files_in(folder: Path, order: list[str]) -> dict[str, dict[str, str]]:
    """Write two clients whose columns stand in different orders."""
    rng = np.random.default_rng(4)
    for number, (client, names) in enumerate({"zoe": ["a", "b", "c"], "adam": ["c", "a", "b"]}.items()):
        ids = list(range(number * 20, number * 20 + 20))
        values = {name: rng.normal(k, k + 1, 20).round(3).tolist() for k, name in enumerate("abc")}
        columns = {"id": ids, "y": [i % 2 for i in ids]} | {name: values[name] for name in names}
        write(folder / f"{client}.csv", columns)
    return {"bank": {client: f"{client}.csv" for client in order}}


def test_the_order_of_clients_and_columns_changes_nothing(tmp_path: Path) -> None:
    """Nor whether a hub lists them or a job file."""
    import asyncio

    from sites.memory import Federation

    record = {}
    for order in (["zoe", "adam"], ["adam", "zoe"]):
        wanted = job(tmp_path, files_in(tmp_path, order))
        data = tdcd.load_data(wanted)
        record[tuple(order)] = data.federation.preparations["bank"].to_json(), rows_of(data, Part.TRAIN, "bank")
    (one, rows), (two, again) = record.values()
    assert one == two
    assert np.array_equal(rows, again)

    async def run() -> str:
        federation = Federation(job(tmp_path, files_in(tmp_path, ["zoe", "adam"])), tmp_path / "hubs")
        await federation.start()
        preparation = federation.hubs["bank"].setup.preparation
        await federation.stop()
        assert preparation is not None
        return preparation.to_json()

    assert asyncio.run(run()) == one


LOOKS = [
    "1\u00a0234", "1\u202f234", "\u22125", "$1", "€1", "1 €", ",5", ".5,", "-$1", "(1,234)", "1'234", "1’234",
    "2026-01-28T12:00:00+01:00", "2026-01-28 12:00:00-0500", "28.01.2026", "50 %",
]  # fmt: skip


@pytest.mark.parametrize("text", LOOKS)
def test_texts_that_look_like_numbers_or_dates_are_refused(tmp_path: Path, text: str) -> None:
    digits = [text.replace("1", str(k % 8 + 1), 1) for k in range(40)]
    with pytest.raises(tdcd.DataError, match="column 'n' holds texts that look like numbers or dates"):
        single(tmp_path, {"n": digits, "x": list(range(40))})
    listed = single(tmp_path, {"n": digits, "x": list(range(40))}, silos={"bank": {"categories": ["n"]}})
    assert rows_of(listed, Part.TRAIN, "bank").shape[1] > 1


@pytest.mark.parametrize("text", ["a1", "1a", "route 66", "T1", "x", "1T", "2 b"])
def test_other_texts_are_categories(tmp_path: Path, text: str) -> None:
    assert rows_of(single(tmp_path, {"n": [text, "other"] * 20}), Part.TRAIN, "bank").shape[1] == 2


def test_labels_that_are_texts_are_taken_as_they_are_written() -> None:
    texts = pl.Series(["1E5", "100000", "beta", "1E5"])
    assert encode_labels(texts, "classes")[1] == ("100000", "1E5", "beta")
    labels, classes = encode_labels(pl.Series(["1E5", "100000", "7"]), "classes")
    assert (labels.tolist(), classes) == ([1, 1, 0], ("7", "100000"))
    with pytest.raises(tdcd.DataError, match="squared-error wants numbers, not texts such as '1_10'"):
        encode_labels(pl.Series(["1_10", "2"]), "numbers")
    assert encode_labels(pl.Series(["1_10", "110"]), "classes")[1] == ("110", "1_10")


def test_labels_beside_texts_are_told_apart_in_tables(tmp_path: Path) -> None:
    people = 30
    labels = [["1E5", "100000", "beta"][k % 3] for k in range(people)]
    write(tmp_path / "a.csv", {"id": list(range(people)), "y": labels, "x": list(range(people))})
    data = tdcd.load_data(job(tmp_path, {"bank": {"a": "a.csv"}}))
    assert data.federation.classes == ("100000", "1E5", "beta")
    assert any("100000 and 1E5 are two classes" in note for note in data.federation.notes)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_and_labels_with_nul_are_refused(tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"a.{kind}", {"id": ["a", "b\0", "c"], "y": [0, 1, 0], "x": [1, 2, 3]})
    with pytest.raises(tdcd.DataError, match=r"column 'id' holds the character NUL in row 2|is no text"):
        tdcd.load_data(job(tmp_path, {"bank": {"a": f"a.{kind}"}}))
    with pytest.raises(tdcd.DataError, match="an ID holds the character NUL"):
        tdcd.Federation.from_silos([tdcd.Silo("a", np.ones((2, 1)), [["x", "y\0"]], ["x", "y\0"])], [0, 1], ["x", "y"])


def trained(folder: Path, columns: dict[str, list[Any]]) -> Path:
    people = len(next(iter(columns.values())))
    write(folder / "a.csv", {"id": list(range(people)), "y": [k % 2 for k in range(people)], **columns})
    run = folder / "run"
    tdcd.run_job(job(folder, {"bank": {"a": "a.csv"}}), run)
    return run


def test_numbers_in_a_column_of_categories_are_refused_when_predicting(tmp_path: Path) -> None:
    run = tdcd.load_model(trained(tmp_path, {"word": ["a", "b"] * 20}))
    for kind in ("csv", "parquet"):
        write(tmp_path / f"new.{kind}", {"id": [1, 2], "word": [7, 8]})
        with pytest.raises(tdcd.DataError, match="column 'word' holds numbers and texts: row 1 is the number '7'"):
            run.predict_tables({"bank": [tmp_path / f"new.{kind}"]})


def test_unknown_categories_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support import run_command

    words = [["a", "b", "a", "b", "seldom"][k % 5] if k < 5 else "ab"[k % 2] for k in range(40)]
    path = trained(tmp_path, {"word": ["a", "b"] * 20, "rare": words})
    write(tmp_path / "new.csv", {"id": [1, 2, 3], "word": ["c", "a", "c"], "rare": ["a", "new", ""]})
    result = tdcd.load_model(path).predict_tables({"bank": [tmp_path / "new.csv"]})
    assert result.warnings == (
        "silo 'bank', column 'word': 2 of 3 rows hold categories that are unknown in training: 'c'",
        "silo 'bank', column 'rare': 1 of 3 rows hold categories that are rare or unknown in training, and count as 'other': 'new'",  # noqa: E501
    )
    out = tmp_path / "out.csv"
    assert run_command("predict", path, "--table", f"bank={tmp_path / 'new.csv'}", "-o", out) == 0
    assert "warning: silo 'bank', column 'word': 2 of 3 rows" in capsys.readouterr().err
