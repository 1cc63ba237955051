"""A saved result predicts as it did, to the bit, and says what it lacks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tdcd

RNG = np.random.default_rng(0)
X = {"a": RNG.normal(size=(40, 4)), "b": RNG.integers(0, 9, size=(40, 5))}
Y = (X["a"].sum(1) > 0).astype(int) + (X["b"][:, 0] > 4)
CLIENTS = [range(30), range(30, 40)]
FEDERATION = tdcd.Federation.from_silos([tdcd.Silo("a", X["a"], CLIENTS), tdcd.Silo("b", X["b"], CLIENTS)], Y)
MLP = tdcd.models.MLP(hidden=[6])


class Words(nn.Module):
    """A network on whole numbers, with a buffer."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(9, width), nn.BatchNorm1d(width)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.norm(self.table(rows).sum(1))
        return result


def train(**more: Any) -> tdcd.Result:
    options = {key: more.pop(key) for key in set(more) - set(tdcd.Settings.model_fields)}
    table = {"loss": "cross-entropy", "rounds": 6, "local_steps": 2, "batch_size": 16, "rate": 0.2, "evaluate_every": 2}
    return tdcd.train(FEDERATION, {"a": MLP, "b": Words()}, tdcd.Settings.model_validate(table | more), **options)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_saved_result_predicts_the_same(tmp_path: Path, precision: str) -> None:
    test = tdcd.Samples.from_arrays(X, Y)
    result = train(precision=precision, validation=test, select="best")
    result.save(tmp_path / "saved")
    loaded = tdcd.Result.load(tmp_path / "saved", {"b": Words()})
    assert torch.equal(loaded.scores(X), result.scores(X))
    assert loaded.evaluate(test) == result.evaluate(test)
    assert (loaded.settings, loaded.selected, loaded.history) == (result.settings, result.selected, result.history)
    assert loaded.kept == result.kept
    assert repr(loaded) == repr(result)
    assert {path.suffix for path in (tmp_path / "saved").rglob("*") if path.name != ".lock" and path.is_file()} == {
        ".toml", ".json", ".jsonl", ".safetensors"
    }  # fmt: skip


def test_a_run_from_python_is_loaded_as_one_of_a_job(tmp_path: Path) -> None:
    result = train(directory=tmp_path / "run")
    run = tdcd.load_model(tmp_path / "run", {"b": Words()})
    assert torch.equal(run.result.scores(X), result.scores(X))
    assert run.job is None
    assert run.origin == "finished after 6 of 6 rounds"
    assert repr(run).startswith(f"Model {tmp_path / 'run'}, finished")
    with pytest.raises(tdcd.DataError, match="it was trained on arrays from Python"):
        run.predict_tables({"a": ["a.csv"]})
    with pytest.raises(tdcd.DataError, match=r"from Python, call result.evaluate\(samples\)"):
        run.predict_held_out()


def test_a_loss_of_ones_own_is_called_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import tdcd\ndef make():\n    return tdcd.objectives.CrossEntropy()\n"
    (tmp_path / "saved_losses.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    result = train(loss={"kind": "saved_losses:make"}, directory=tmp_path / "run")
    result.save(tmp_path / "saved")
    why = r"its loss is 'saved_losses:make', which is code that you have not allowed.*imports=\[\"saved_losses\"\]"
    for path in (tmp_path / "saved", tmp_path / "run"):
        with pytest.raises(tdcd.RunError, match=why):
            tdcd.Result.load(path, {"b": Words()})
        assert torch.equal(tdcd.Result.load(path, {"b": Words()}, ["saved_losses"]).predict(X), result.predict(X))
    assert torch.equal(
        tdcd.load_model(path, {"b": Words()}, imports="saved_losses").result.predict(X), result.predict(X)
    )


def test_a_module_must_be_given(tmp_path: Path) -> None:
    train().save(tmp_path)
    with pytest.raises(tdcd.ModelError, match=r"silo 'b' was trained with a module of your own, Words, .* models="):
        tdcd.Result.load(tmp_path)
    with pytest.raises(tdcd.ModelError, match=r"silo 'b': 'table.weight' has shape \(9, 3\), the network's has \(9, 4"):
        tdcd.Result.load(tmp_path, {"b": Words(4)})
    with pytest.raises(tdcd.ModelError, match=r"'bb', which is no silo; did you mean 'b'\?"):
        tdcd.Result.load(tmp_path, {"bb": Words()})
    with pytest.raises(tdcd.ModelError, match="a model is given for silo 'a', whose network is recorded, .*; leave it"):
        tdcd.Result.load(tmp_path, {"a": tdcd.models.MLP(hidden=[8], activation="tanh"), "b": Words()})


def test_a_saved_result_is_not_replaced_and_damage_is_noticed(tmp_path: Path) -> None:
    result = train()
    result.save(tmp_path)
    with pytest.raises(tdcd.RunError, match="already holds a run"):
        result.save(tmp_path)
    file = tmp_path / "blocks" / "a.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(
        tdcd.RunError, match=r"a\.safetensors: it is no longer what was written; put it back, or train again"
    ):
        tdcd.Result.load(tmp_path, {"b": Words()})
    with pytest.raises(tdcd.RunError, match="no such directory"):
        tdcd.Result.load(tmp_path / "elsewhere")


def test_arguments_of_another_type_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = train()
    rows: Any = [X["a"], X["b"]]
    for directory in (None, "", 3):
        with pytest.raises(tdcd.JobError, match=f"directory: a path to write to is wanted, not {directory!r}"):
            result.save(directory)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    for function in (result.predict, result.scores, result.probabilities):
        with pytest.raises(tdcd.DataError, match="features: rows by the silos' names are wanted, .*, not "):
            function(rows)
    with pytest.raises(tdcd.DataError, match="test rows of silos: rows by the silos' names are wanted, .*, not "):
        tdcd.Samples.from_arrays(rows, Y)


def test_silos_with_labels_only(tmp_path: Path) -> None:
    silos = [tdcd.Silo("a", X["a"], CLIENTS), tdcd.Silo("registry", None, CLIENTS)]
    settings = tdcd.Settings(loss="cross-entropy", rounds=2, rate=0.1)
    labels = tdcd.Labels(silo="registry", sharing="exact")
    result = tdcd.train(tdcd.Federation.from_silos(silos, Y), MLP, settings, labels=labels)
    result.save(tmp_path)
    assert torch.equal(tdcd.Result.load(tmp_path).scores({"a": X["a"]}), result.scores({"a": X["a"]}))
