"""Permutation importance: scikit-learn's numbers for one model on the joined rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.inspection import permutation_importance as sklearn_importance
from sklearn.metrics import accuracy_score, roc_auc_score

import tdcd
from serving.models import new_tables, train_tables
from support import run_command
from tdcd.runs.importance import Importances
from tdcd.runs.layout import IMPORTANCE
from tdcd.runs.records import read_record
from tdcd.serving.importance import columns_of_rows, permutation_importance
from tdcd.serving.model import load_model

RNG = np.random.default_rng(3)
X = {"a": RNG.normal(size=(200, 3)).astype(np.float32), "b": RNG.normal(size=(200, 4)).astype(np.float32)}
CLASSES = np.argmax(np.stack([X["a"][:, 0], X["b"][:, 1] + X["a"][:, 1], X["b"][:, 2]]), 0)


class Joined:
    """All silos' networks as one model on the joined columns."""

    def __init__(self, result: tdcd.Result) -> None:
        self.result = result

    def fit(self) -> None:
        """Scikit-learn wants it to be there."""

    def scores(self, rows: np.ndarray) -> torch.Tensor:
        return self.result.scores({"a": rows[:, :3], "b": rows[:, 3:]})

    def accuracy(self, estimator: Any, rows: np.ndarray, y: np.ndarray) -> float:
        return float(accuracy_score(y, self.scores(rows).argmax(1).numpy()))

    def auroc(self, estimator: Any, rows: np.ndarray, y: np.ndarray) -> float:
        return float(roc_auc_score(y, torch.softmax(self.scores(rows).double(), 1).numpy(), multi_class="ovr"))

    def auroc_of(self, k: int) -> Any:
        return lambda estimator, rows, y: float(
            roc_auc_score(y == k, torch.softmax(self.scores(rows).double(), 1).numpy()[:, k])
        )


@pytest.fixture(scope="module")
def result() -> tdcd.Result:
    made = tdcd.Federation.from_silos([tdcd.Silo(j, x, [range(200)]) for j, x in X.items()], CLASSES)
    settings = tdcd.Settings(loss="cross-entropy", rounds=60, rate=0.3)
    return tdcd.train(made, tdcd.models.MLP(hidden=[6]), settings)


@pytest.mark.parametrize(("metric", "seed"), [("accuracy", 0), ("auroc", 7)])
def test_equals_scikit_learn_on_the_joined_rows(result: tdcd.Result, metric: str, seed: int) -> None:
    columns = {silo.name: columns_of_rows(silo) for silo in result.description.silos}
    rows = {silo: torch.from_numpy(x) for silo, x in X.items()}
    ours = permutation_importance(
        result, rows, torch.from_numpy(CLASSES), columns, metric=metric, repeats=4, seed=seed, classes=("x", "y", "z")
    )
    joined, every = Joined(result), np.concatenate([X["a"], X["b"]], 1)
    theirs = sklearn_importance(joined, every, CLASSES, scoring=getattr(joined, metric), n_repeats=4, random_state=seed)
    by_column = [one for one in ours.entries if one.column]
    every_column = [("a", str(k)) for k in range(3)] + [("b", str(k)) for k in range(4)]
    assert [(one.silo, one.column) for one in by_column] == every_column
    assert np.allclose([one.mean for one in by_column], theirs.importances_mean, atol=1e-9)
    assert np.allclose([one.deviation for one in by_column], theirs.importances_std, atol=1e-9)
    for k, name in enumerate("xyz"):
        of_class = sklearn_importance(
            joined, every, CLASSES, scoring=joined.auroc_of(k), n_repeats=4, random_state=seed
        )
        assert np.allclose([one.classes[name] for one in by_column], of_class.importances_mean, atol=1e-9)
    assert {one.silo for one in ours.silos()} == {"a", "b"}
    assert ours.sorted()[0].mean == max(one.mean for one in by_column)


def test_the_loss_rises_where_a_column_matters(result: tdcd.Result) -> None:
    rows = {silo: torch.from_numpy(x) for silo, x in X.items()}
    ours = permutation_importance(result, rows, torch.from_numpy(CLASSES), {"a": {"0": [0]}}, metric="loss")
    assert all(one.mean > 0.01 for one in ours.entries)
    with pytest.raises(tdcd.JobError, match="metric: 'aurox' is not measured on these rows; did you mean 'auroc'"):
        permutation_importance(result, rows, torch.from_numpy(CLASSES), {}, metric="aurox")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_tables(tmp_path, rounds=20, rate=0.5)
    own = load_model(run).importance(repeats=2)
    assert run_command("explain", run, "--repeats", "2", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["mean"] for one in said["entries"]] == [one.mean for one in own.entries]
    assert {one["column"] for one in said["entries"] if one["silo"] == "bank"} == {"", "amount", "kind", "joined"}
    kept = read_record(run / IMPORTANCE, Importances)
    assert kept == own
    load_model(run)  # it is no part of what predictions rest on
    tables = [f"--table={silo}={file}" for silo, files in new_tables(tmp_path).items() for file in files]
    out = tmp_path / "importance.csv"
    assert run_command("explain", run, *tables, "--out", out, "--metric", "accuracy", "--repeats", "1") == 0
    assert "fall of accuracy where values are dealt anew" in capsys.readouterr().out
    assert read_record(run / IMPORTANCE, Importances) == kept  # that is of its own samples
    frame = pl.read_csv(out)
    assert frame.columns == ["silo", "column", "accuracy", "deviation"]
    assert frame.height == 3 + 3 + 3 + 2
    assert run_command("explain", run, *tables, "--out", out) == 2
    (tmp_path / "unlabelled.csv").write_text(
        "\n".join(line.rpartition(";")[0] for line in (tmp_path / "north.csv").read_text().splitlines())
    )
    some = [f"--table=bank/north={tmp_path / 'unlabelled.csv'}", *(one for one in tables if "bank" not in one)]
    assert run_command("explain", run, *some) == 2
    assert "the new tables have no labels" in capsys.readouterr().err
