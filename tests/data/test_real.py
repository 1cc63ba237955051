"""The publishers' own files, where they are at hand: in the directory that TDCD_DATA names, or beside the project."""

import importlib.util
import lzma
import os
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import tdcd
from tdcd.data.sets import read
from tdcd.data.sets.inspect import inspect

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("TDCD_DATA", ROOT.parent / "shared" / "data"))
EXAMPLE = ROOT / "examples" / "bank_insurer"


def published(*names: str) -> list[Path]:
    """Return files of the data directory; skip where they are not."""
    paths = [DATA / name for name in names]
    for path in paths:
        if not path.exists():
            pytest.skip(f"{path} is not there; set TDCD_DATA to the directory that has it")
    return paths


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tables", EXAMPLE / "make_tables.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_physionet2012(tmp_path: Path) -> None:
    for archive in published("physionet2012-a.tar.xz", "physionet2012-b.tar.xz"):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path, filter="data")
    dataset = read("physionet2012", tmp_path)
    assert len(dataset) == 8000
    assert dataset.testing is not None
    assert [int(dataset.labels[dataset.testing == test].sum()) for test in (False, True)] == [554, 568]
    assert set(np.unique(dataset.attributes["ICUType"]).tolist()) == {1, 2, 3, 4}
    (rows,) = dataset.pieces()
    measured = rows[..., 1::2].mean((0, 1))
    assert 0.8 < measured[14] < 0.95  # nearly every hour has a heart rate
    wards = {"data.directory": str(tmp_path), "silos.silo-1.rows": {"kind": "equal", "same": False}}
    federation = tdcd.load_data(tdcd.load_job("physionet2012", wards)).federation
    assert [len(federation.rosters[silo].clients) for silo in federation.silos] == [20] * 4
    assert len(federation) == 4000


def test_modelnet(tmp_path: Path) -> None:
    (archive,) = published("modelnet10-12view.tar")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    result = inspect(read("modelnet", tmp_path))
    assert result["samples"] == "1,000, each 12 × 1 × 112 × 112"
    assert "toilet/train/47 = toilet/test/19" in result["the same"]
    assert "2 with different labels" in result["the same"]


def test_cifar10() -> None:
    (folder,) = published("cifar-10-batches-bin")
    dataset = read("cifar10", folder)
    assert np.bincount(dataset.labels).tolist() == [6000] * 10


@pytest.mark.parametrize(("name", "auroc"), [("loans", 0.72), ("income", 0.87)])
def test_a_bank_and_an_insurer(tmp_path: Path, name: str, auroc: float) -> None:
    """A short training on real tables, near to central training on the same rows."""
    make = example()
    if name == "loans":
        (path,) = published("credit_default.csv.xz")
        tables = make.credit(path)
    else:
        for path in published("adult.data.xz", "adult.test.xz"):
            (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
        tables = make.adult(tmp_path)
    make.write(tables, tmp_path / name)
    (tmp_path / "job.toml").write_text((EXAMPLE / f"{name}.toml").read_text())
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace("alignment =", "# alignment ="))
    short = {"training.rounds": 100, "training.evaluate_every": 100, "baselines": ["central"]}
    result = tdcd.run_job(tdcd.load_job(tmp_path / "job.toml", short))
    federation, central = (run.history[-1].test["auroc"] for run in (result.federation, result.baselines["central"]))
    assert federation > auroc
    assert abs(federation - central) < 0.01
