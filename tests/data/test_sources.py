"""Rows that stay in files until they are computed: the same federation as of arrays, wherever they are read."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd
from support import same
from tdcd.data.sources import StoredRows, read_stored

RNG = np.random.default_rng(2)
ROWS = RNG.normal(size=(60, 4)).astype(np.float32)
IMAGES = RNG.integers(0, 255, size=(60, 1, 3, 3)).astype(np.float64)
LABELS = RNG.integers(0, 2, 60)
HELD = [range(20), range(20, 60)]
ORDER = RNG.permutation(60)


def saved(folder: Path, rows: Any = ROWS, name: str = "rows.npy") -> Path:
    np.save(folder / name, rows)
    return folder / name


def federation(a: Any, b: Any, ids: Any = None) -> tdcd.Federation:
    silos = [tdcd.Silo("a", a, HELD, ids), tdcd.Silo("b", b, HELD, ids)]
    return tdcd.Federation.from_silos(silos, LABELS if ids is None else LABELS[ids], ids)


def test_some_rows_of_several_files(tmp_path: Path) -> None:
    parts = [saved(tmp_path, ROWS[a:b], f"{a}.npy") for a, b in ((0, 7), (7, 8), (8, 60))]
    source = tdcd.ArrayFile(*parts)
    assert (source.shape, source.dtype) == ((60, 4), np.float32)
    for wanted in ([0], [6, 7, 8], [7], [59], [3, 8, 20, 59], list(range(60))):
        assert np.array_equal(source.read(np.array(wanted)), ROWS[wanted])
        assert np.array_equal(pickle.loads(pickle.dumps(source)).read(np.array(wanted)), ROWS[wanted])  # noqa: S301


def test_rows_in_any_order_and_of_several_parts_are_read_once(tmp_path: Path) -> None:
    source = tdcd.ArrayFile(saved(tmp_path))
    calls = []

    class Counted:
        shape, dtype = source.shape, source.dtype

        def read(self, rows: Any, /) -> Any:
            calls.append(rows)
            assert (np.diff(rows) > 0).all()
            return source.read(rows)

        def digest(self) -> str:
            return source.digest()

    counted = Counted()
    one, two = StoredRows(counted, np.array([5, 3, 40])), StoredRows(counted, np.array([59, 0]))
    read = read_stored([one, two], "here")
    assert [rows.tolist() for rows in read] == [ROWS[[5, 3, 40]].tolist(), ROWS[[59, 0]].tolist()]
    assert len(calls) == 1


@pytest.mark.parametrize("ids", [None, ORDER])
def test_a_federation_of_files_trains_as_one_of_arrays(tmp_path: Path, ids: Any) -> None:
    rows, images = (ROWS, IMAGES) if ids is None else (ROWS[ids], IMAGES[ids])
    files = tdcd.ArrayFile(saved(tmp_path, rows)), tdcd.ArrayFile(saved(tmp_path, images, "images.npy"))
    lazy, plain = federation(*files, ids), federation(rows, images, ids)
    assert all(rows.is_meta for rows in lazy.samples.features.values())
    assert repr(lazy) == repr(plain)
    models = {"a": tdcd.models.Linear(), "b": tdcd.models.MLP(hidden=[3])}
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=3, rate=0.1, batch_size=20)
    test = {"a": files[0], "b": IMAGES if ids is None else IMAGES[ids]}
    samples = tdcd.Samples.from_arrays(test, LABELS if ids is None else LABELS[ids])
    result = tdcd.train(lazy, models, settings, test=samples)
    assert same(result.blocks, tdcd.train(plain, models, settings).blocks)
    assert result.evaluate(samples)["loss"] == pytest.approx(result.history[-1].test["loss"])
    assert np.array_equal(result.scores(test).numpy(), result.scores({"a": rows, "b": test["b"]}).numpy())


def test_a_run_goes_on_with_the_same_files_only(tmp_path: Path) -> None:
    first = federation(tdcd.ArrayFile(saved(tmp_path)), IMAGES)
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=2, rate=0.1)
    tdcd.train(first, tdcd.models.MLP(hidden=[2]), settings, directory=tmp_path / "run")
    again = federation(tdcd.ArrayFile(saved(tmp_path, ROWS, "copy.npy")), IMAGES)
    tdcd.train(again, tdcd.models.MLP(hidden=[2]), settings, directory=tmp_path / "run", resume=True)
    changed = ROWS.copy()
    changed[31, 2] += 1
    other = federation(tdcd.ArrayFile(saved(tmp_path, changed, "other.npy")), IMAGES)
    with pytest.raises(tdcd.TdcdError, match="training data"):
        tdcd.train(other, tdcd.models.MLP(hidden=[2]), settings, directory=tmp_path / "run", resume=True)


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    def archive(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, a=ROWS, b=ROWS)

    writers: list[tuple[Callable[[Path], object], str]] = [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b"not an array"), "not a .npy file of numbers"),
        (lambda path: np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True), "not a .npy file of num"),
        (lambda path: np.save(path, np.array([["a"]])), "rows of numbers are wanted"),
        (lambda path: np.save(path, np.arange(3)), "rows of numbers are wanted"),
        (archive, "an archive of several arrays"),
    ]
    for write, message in writers:
        path = tmp_path / "wrong.npy"
        path.unlink(missing_ok=True)
        write(path)
        with pytest.raises(tdcd.DataError, match=message) as error:
            tdcd.ArrayFile(path)
        assert str(path) in str(error.value)
    with pytest.raises(tdcd.DataError, match=r"rows of shape \(3,\) and type float32, those of .*rows.npy have \(4,\)"):
        tdcd.ArrayFile(saved(tmp_path), saved(tmp_path, ROWS[:, :3], "narrow.npy"))
    broken = ROWS.copy()
    broken[17, 1] = np.nan
    lazy = federation(tdcd.ArrayFile(saved(tmp_path, broken)), ROWS)
    with pytest.raises(tdcd.DataError, match=r"silo 'a': NaN or infinite numbers in 1 of 60 rows \(row 17\)"):
        tdcd.train(lazy, tdcd.models.Linear(), tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.1))
    with pytest.raises(tdcd.DataError, match="60 rows of features but 3 IDs"):
        tdcd.Federation.from_silos([tdcd.Silo("a", tdcd.ArrayFile(saved(tmp_path)), HELD, [1, 2, 3])], LABELS)
