"""IDs that are too many for memory: matched a part at a time, with the same outcome as all at once."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from serving.models import new_tables, train_tables
from tdcd.cli.main import app
from tdcd.data.tables import reader
from tdcd.data.tables.client import ClientTable
from tdcd.data.tables.reader import Table
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import DataError
from tdcd.serving import opened as opened_module
from tdcd.serving.model import Model, load_model
from tdcd.serving.opened import Matched, Opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("parts")
    train_tables(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder / "run")


@pytest.fixture
def small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened_module, "PART", 50)
        patch.setattr(reader, "CELLS", 40)
        yield


def read(path: Path) -> pl.DataFrame:
    return pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_parts_come_to_what_the_whole_comes_to(
    model: Model, folder: Path, tmp_path: Path, suffix: str, request: pytest.FixtureRequest
) -> None:
    whole = model.predict_tables(new_tables(folder), shares=True, shapley=True, without=())
    request.getfixturevalue("small_parts")
    parts = model.predict_tables(new_tables(folder), shares=True, shapley=True)
    assert parts.count == whole.count == whole.frame.height > 100, "several parts"
    assert parts.frame["id"].equals(whole.frame["id"])
    numbers = [name for name, kind in whole.frame.schema.items() if kind.is_float()]
    assert len(numbers) > 5
    for name in numbers:
        assert np.allclose(parts.frame[name], whole.frame[name], atol=1e-6), name
    assert parts.frame["prediction"].equals(whole.frame["prediction"])
    assert parts.measures == pytest.approx(whole.measures, abs=1e-6)
    assert set(parts.measures) >= {"auroc", "loss"}, "the tables have labels"
    assert (parts.note, parts.drift) == (whole.note, whole.drift)
    out = tmp_path / f"out.{suffix}"
    written = model.predict_tables(new_tables(folder), shares=True, shapley=True, out=out)
    assert (written.count, written.frame.height) == (whole.count, 0)
    assert written.frame.columns == whole.frame.columns
    frame = read(out)
    assert frame["id"].equals(whole.frame["id"])
    assert np.allclose(frame["probability of 1"], whole.frame["probability of 1"], atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == [out.name], "nothing is left beside it"


def test_the_command_counts_and_replaces(model: Model, folder: Path, tmp_path: Path, small_parts: None) -> None:
    out = tmp_path / "out.csv"
    out.write_text("old")
    tables = [f"--table={silo}={path}" for silo, paths in new_tables(folder).items() for path in paths]
    run = [str(model.path), *tables, "--out", str(out), "--force"]
    result = CliRunner().invoke(app, ["predict", *run])
    count = model.predict_tables(new_tables(folder)).count
    assert f"{out}: {count} predictions" in result.output
    assert pl.read_csv(out).height == count
    broken = [text for text in run if "shop" not in text]
    failed = CliRunner().invoke(app, ["predict", *broken])
    assert isinstance(failed.exception, DataError)
    assert pl.read_csv(out).height == count, "what was there stays, if nothing can be predicted"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def tables_of(folder: Path, silos: list[list[list[object]]], label: bool = False) -> Opened:
    """Write a CSV file for each client of each silo."""
    tables = {}
    for number, clients in enumerate(silos):
        own = []
        for k, ids in enumerate(clients):
            path = folder / f"{number}-{k}.csv"
            pl.DataFrame({"id": [str(one) for one in ids], "y": [f"{k}"] * len(ids)}).write_csv(path)
            own.append(ClientTable(Table(f"silo{number}", str(path), path, TableSettings(id="id")), keep=0))
        tables[f"silo{number}"] = own
    return Opened(tables, ("silo0", "y") if label else None)


def _tried(action: Callable[[], list[Matched]]) -> tuple[list[Matched], str]:
    try:
        return action(), ""
    except DataError as error:
        return [], str(error)


@given(data=st.data())
def test_matching_in_parts_is_matching(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    ids = st.integers(-50, 150) if data.draw(st.booleans()) else st.text("abé\U0001f600 1", min_size=1, max_size=3)
    pool = data.draw(st.lists(ids.filter(lambda one: str(one).strip() == str(one)), min_size=1, unique=True))
    silos = []
    for _ in range(data.draw(st.integers(1, 3))):
        mine = data.draw(st.permutations(pool))[: data.draw(st.integers(1, len(pool)))]
        cut = data.draw(st.integers(0, len(mine)))
        silos.append([part for part in (mine[:cut], mine[cut:]) if part])
    (folder / "keys").mkdir()
    tables = tables_of(folder, silos, label=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opened_module, "PART", data.draw(st.integers(1, 20)))
        patch.setattr(reader, "CELLS", data.draw(st.integers(2, 12)))
        whole, wrong = _tried(lambda: [tables.match()])
        parts, also = _tried(lambda: list(tables.match_parts(folder / "keys")))
    assert also == wrong
    if wrong:
        return
    (all_,) = whole
    assert pl.concat([part.ids for part in parts]).equals(all_.ids)
    start = 0
    for part in parts:
        for silo, keys in part.keys.items():
            for k, key in enumerate(keys):
                rows = part.rows[silo][k] if part.rows else np.arange(len(key.ids))
                expected = all_.keys[silo][k].places[rows]
                ours = np.where(key.places >= 0, key.places + start, -1)
                assert (expected == ours).all()
        facts = [key.facts["y"] for key in part.keys["silo0"]]
        assert [len(fact) for fact in facts] == [len(key.ids) for key in part.keys["silo0"]]
        start += len(part.ids)


@pytest.mark.parametrize(
    ("silos", "says"),
    [
        ([[[1, 2, 3, 4, 5, 6, 7], [1, 7]], [[1, 2, 3, 4]]], r"silo 'silo0': 2 IDs stand for several rows: 1 \(.* 7 \("),
        ([[[1, 2, 3, 4]], [["a", "b", "c"]]], "IDs are of different types: silo 'silo0' has whole numbers"),
        ([[[1, 2, 3, 4]], [[5, 6, 7, 8]]], r"no ID is in all silos: 'silo0' has 4 \(1, 2, 3 …\)"),
    ],
)
def test_what_does_not_fit_is_said_of_the_whole(
    tmp_path: Path, small_parts: None, silos: list[list[list[object]]], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened_module, "PART", 3)
    (tmp_path / "keys").mkdir()
    with pytest.raises(DataError, match=says):
        list(tables_of(tmp_path, silos).match_parts(tmp_path / "keys"))


def test_an_unknown_label_is_named_with_its_row(model: Model, folder: Path, tmp_path: Path, small_parts: None) -> None:
    tables = new_tables(folder)
    lines = (folder / "north.csv").read_text().splitlines()
    lines[21] = lines[21].rpartition(";")[0] + ";perhaps"
    (tmp_path / "north.csv").write_text("\n".join(lines))
    tables["bank/north"] = [tmp_path / "north.csv"]
    with pytest.raises(DataError, match=r"the first 'perhaps' is in row 21 of"):
        model.predict_tables(tables)
