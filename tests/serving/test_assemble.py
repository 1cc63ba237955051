"""One model of a run, or of the runs of all hubs: verified, portable, and the same predictions."""

import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import tdcd
from serving.models import as_hub_runs, new_tables, train_tables
from support import Interrupt, run_command
from tdcd.errors import DataError, RunError
from tdcd.runs.digests import seal
from tdcd.runs.layout import EARLIER
from tdcd.serving.assemble import assemble
from tdcd.serving.model import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("three")
    train_tables(path)
    return path


def test_a_model_predicts_what_its_run_predicts(folder: Path, tmp_path: Path) -> None:
    expected = load_model(folder / "run").predict_tables(new_tables(folder))
    of_run = assemble([folder / "run"], tmp_path / "one")
    of_hubs = assemble(as_hub_runs(folder / "run", tmp_path / "hubs"), tmp_path / "two")
    for path in (of_run, of_hubs):
        shutil.move(path, tmp_path / "elsewhere")
        model = load_model(tmp_path / "elsewhere")
        predictions = model.predict_tables(new_tables(folder))
        assert predictions.frame.equals(expected.frame)
        assert predictions.measures == expected.measures
        assert model.record is not None
        assert (model.record.round, model.record.ended, set(model.silos)) == (3, True, {"bank", "ward", "shop"})
        assert (tmp_path / "elsewhere" / "quality.json").exists() == (path == of_run)  # hubs measure without it
        assert model.result.kept.test == tdcd.load_model(folder / "run").result.kept.test
        shutil.move(tmp_path / "elsewhere", path)


def test_a_model_tells_no_path_of_the_machine_that_made_it(folder: Path, tmp_path: Path) -> None:
    model = assemble([folder / "run"], tmp_path / "model")
    for file in model.rglob("*"):
        assert not file.is_file() or str(folder).encode() not in file.read_bytes(), file
    with pytest.raises(DataError, match=r"model: a model holds no rows.*--table SILO=FILE"):
        load_model(model).predict_held_out()


def test_the_model_card(folder: Path, tmp_path: Path) -> None:
    card = (assemble([folder / "run"], tmp_path / "model") / "README.md").read_text()
    for text in (
        "binary-cross-entropy on column 'y' of silo 'bank'",
        "| ward | 2 |",
        "| test | ",
        "auroc",
        "round 3 of 3",
    ):
        assert text in card


def test_a_changed_byte_in_any_file_is_noticed_and_the_file_named(folder: Path, tmp_path: Path) -> None:
    model = assemble([folder / "run"], tmp_path / "model")
    files = sorted(file for file in model.rglob("*") if file.is_file())
    assert len(files) == 9
    for file in files:
        whole = file.read_bytes()
        for place in {0, len(whole) // 3, len(whole) // 2, len(whole) - 2}:
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(RunError, match=file.name):
                load_model(model)
        file.write_bytes(whole)
        file.rename(tmp_path / "away")
        with pytest.raises(RunError, match="is not a run|missing"):
            load_model(model)
        (tmp_path / "away").rename(file)
    load_model(model)


def write_sealed(file: Path, record: dict[str, Any]) -> None:
    file.write_text(json.dumps(seal(record), indent=2, ensure_ascii=False) + "\n")


def test_a_changed_blank_is_noticed_too(folder: Path, tmp_path: Path) -> None:
    model = assemble([folder / "run"], tmp_path / "model")
    record = model / "model.json"
    record.write_text(record.read_text().replace("\n  ", "\n\t ", 1))
    with pytest.raises(RunError, match=r"model\.json: damaged"):
        load_model(model)


def test_a_model_of_another_version_says_so(folder: Path, tmp_path: Path) -> None:
    model = assemble([folder / "run"], tmp_path / "model")
    table = json.loads((model / "model.json").read_text())

    def rewrite(**changes: Any) -> None:
        changed = {key: value for key, value in table.items() if key != "digest"} | changes
        write_sealed(model / "model.json", changed)

    rewrite(format=2, fields="of which nobody knows here")
    with pytest.raises(RunError, match=r"model\.json: a model of format 2, and this version of tdcd reads 1"):
        load_model(model)
    later = table["job"] | {"training": table["job"]["training"] | {"invented_later": 3}}
    rewrite(job=later, versions=table["versions"] | {"tdcd": "9.0"})
    with pytest.raises(RunError, match=r"model: it was assembled with tdcd 9\.0, and this is tdcd .*invented_later"):
        load_model(model)


def test_runs_that_make_no_model_together(folder: Path, tmp_path: Path) -> None:
    hubs = as_hub_runs(folder / "run", tmp_path / "hubs")
    other = as_hub_runs(folder / "run", tmp_path / "other", {"shop": {"run": "0123"}, "ward": {"embedding": 2}})
    cases: list[tuple[list[Path], str]] = [
        (hubs[:2], "no run of silo shop is named"),
        ([*hubs, hubs[0]], "both have the weights of silo 'bank'"),
        ([*hubs[:2], other[2]], "different trainings of the same job"),
        ([hubs[0], other[1], hubs[2]], "do not agree on the embedding"),
        ([], "name a run"),
        ([tmp_path / "nowhere"], "no such directory"),
    ]
    for runs, says in cases:
        with pytest.raises(RunError, match=says):
            assemble(runs, tmp_path / "model")
        assert not (tmp_path / "model").exists()
    (hubs[1] / "blocks" / "ward.safetensors").write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"ward.safetensors"):
        assemble(hubs, tmp_path / "model")
    with pytest.raises(RunError, match=r"of one hub, of silo bank.*tdcd assemble"):
        load_model(hubs[0])


def test_nothing_is_replaced_that_is_no_model(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for force in (False, True):
        with pytest.raises(RunError, match="exists already and is no model"):
            assemble([folder / "run"], tmp_path / "mine", force=force)
    model = assemble([folder / "run"], tmp_path / "model")
    with pytest.raises(RunError, match="holds a model already; replace it with --force"):
        assemble([folder / "run"], model)
    assert assemble([folder / "run"], model, force=True) == model
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "model"]
    (model / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"holds what is not of a model, such as notes\.txt; move it"):
        assemble([folder / "run"], model, force=True)
    assert (model / "notes.txt").read_text() == "mine"
    (model / "notes.txt").unlink()
    (tmp_path / "link").symlink_to(model)
    with pytest.raises(RunError, match="is a link; name the directory that it leads to"):
        assemble([folder / "run"], tmp_path / "link", force=True)
    load_model(model)
    with pytest.raises(RunError, match="is a model already"):
        assemble([model], tmp_path / "again")


def test_a_model_that_cannot_be_replaced_stays(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rename = assemble([folder / "run"], tmp_path / "model"), Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target == model and not path.name.endswith(".old"):
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(RunError, match="model: cannot be written: No space left on device"):
        assemble([folder / "run"], model, force=True)
    load_model(model)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_checkpoint_on_the_way_is_a_model(tmp_path: Path) -> None:
    X = {"a": torch.randn(60, 3), "b": torch.randn(60, 2)}
    made = tdcd.Federation.from_silos([tdcd.Silo(j, x, [range(60)]) for j, x in X.items()], torch.arange(60) % 2)
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=9, rate=0.1, checkpoint_every=2)
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tdcd.train(made, tdcd.models.Linear(), settings, directory=run, callbacks=[Interrupt(5)])
    (run / "result.json").unlink()  # as while it is under way
    model = load_model(assemble([run], tmp_path / "model"))
    assert model.record is not None
    assert (model.record.round, model.record.ended) == (5, False)
    assert model.origin == "assembled in the midst of 9 rounds, weights of round 5"
    shorter = tdcd.train(made, tdcd.models.Linear(), settings.replace(rounds=5))
    assert torch.equal(model.scores(X), shorter.scores(X))
    (run / "checkpoint.safetensors").unlink()
    (run / EARLIER).unlink()
    with pytest.raises(RunError, match="has no checkpoint yet"):
        assemble([run], tmp_path / "model", force=True)


def test_code_that_a_model_names_does_not_run_unless_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    model = assemble([folder / "run"], tmp_path / "model")
    record = json.loads((model / "model.json").read_text())
    for silo in record["federation"]["silos"]:
        silo["model"] = {"kind": "os:getcwd"}
    del record["digest"]
    write_sealed(model / "model.json", record)
    with pytest.raises(RunError, match="which is code that you have not allowed"):
        load_model(model)


def test_the_commands(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("assemble", folder / "run", "--out", tmp_path / "model") == 0
    assert f"predict with: tdcd predict {tmp_path / 'model'} --table bank=FILE" in capsys.readouterr().out
    tables = [f"--table={silo}={file}" for silo, files in new_tables(folder).items() for file in files]
    out = tmp_path / "predictions.parquet"
    assert run_command("predict", tmp_path / "model", *tables, "--shares", "--out", out, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    frame = pl.read_parquet(out)
    assert said["predictions"] == frame.height
    assert set(said["drift"]) == {"bank", "ward", "shop"}
    assert {"share of bank", "share of shop", "share of ward", "score"} < set(frame.columns)
    assert run_command("predict", tmp_path / "model", *tables, "--out", out) == 2
    assert "exists already and is left as it is" in capsys.readouterr().err
    some = [table for table in tables if "ward" not in table]
    assert run_command("predict", tmp_path / "model", *some, "--out", out, "--force") == 2
    assert "there is none for ward" in capsys.readouterr().err
    assert pl.read_parquet(out).equals(frame)
    words = ["predict", tmp_path / "model", *some, "--without", "ward", "--out", out, "--force"]
    assert run_command(*words) == 0
    printed = capsys.readouterr()
    assert "partial: without ward" in printed.out
    assert pl.read_parquet(out)["without"].unique().to_list() == ["ward"]
