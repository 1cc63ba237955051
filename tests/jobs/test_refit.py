"""A finished run trained again on training and validation samples."""

import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tdcd
from support import run_command
from tdcd.data.holdout import Part
from tdcd.errors import DataError, RunError
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job
from tdcd.jobs.refit import _check, plan_refit, refit
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.runs.layout import variant_directory
from tdcd.runs.reader import read_run

OVERFITS: dict[str, Any] = {
    "baselines": [],
    "model.kind": "linear",
    "data.clients": 2,
    "silos": {},
    "data.validation_fraction": 0.3,
    "training.rounds": 20,
    "training.evaluate_every": 2,
    "training.batch_size": "full",
    "training.rate": 20.0,
    "training.select": "best",
    "training.patience": 5,
    "training.schedule": {"kind": "cosine"},
}
"""Overshoots after a few rounds, so that the best weights are not the last ones."""


def job(**changes: Any) -> Job:
    settings = OVERFITS | {key.replace("__", "."): value for key, value in changes.items()}
    return load_job("breast-cancer", {key: value for key, value in settings.items() if value != "unset"})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("refit") / "run"
    run_job(job(), path)
    return path


def test_the_same_settings_for_the_best_rounds_on_more_samples(run: Path, tmp_path: Path) -> None:
    before = read_run(run)
    assert before.outcome
    assert 0 < before.outcome.selected < 20
    result = refit(run, tmp_path / "again").federation
    after = read_run(tmp_path / "again")
    assert after.outcome
    assert after.outcome.round == after.outcome.selected == before.outcome.selected
    assert after.federation.samples == before.federation.samples + before.federation.validation_samples
    assert after.federation.validation_samples == 0
    assert after.federation.test_samples == before.federation.test_samples
    settings = tdcd.Settings(**before.job["training"])
    for number in range(1, after.outcome.round + 1):
        assert result.settings.rate_of(number) == settings.rate_of(number)
    changed = {"rounds", "select", "patience", "schedule"}
    for key in settings.as_table().keys() - changed:
        assert after.job["training"][key] == before.job["training"][key]


def test_it_is_a_training_on_the_samples_of_both(run: Path) -> None:
    data = load_data(job())
    planned = plan_refit(run).job
    both = load_data(planned)
    assert set(both.federation.ids) == set(data.ids[Part.TRAIN]) | set(data.ids[Part.VALIDATION])
    assert set(both.ids[Part.TEST]) == set(data.ids[Part.TEST])
    models = {silo: planned.model_of(silo) for silo in both.federation.with_features}
    expected = tdcd.train(both.federation, models, planned.training)
    result = refit(run).federation
    for silo, block in expected.blocks.items():
        for name, tensor in block.items():
            assert torch.equal(tensor, result.blocks[silo][name])


def test_the_last_weights_take_all_rounds(tmp_path: Path) -> None:
    run_job(job(training__select="last", training__patience=None, training__rounds=4), tmp_path / "run")
    assert plan_refit(tmp_path / "run").job.training.rounds == 4


def test_a_command_says_what_it_uses(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record = read_run(run)
    assert record.outcome
    assert run_command("refit", run, "--job", "refit.toml") == 0
    printed = capsys.readouterr().out
    data, best = record.federation, record.outcome.selected
    assert f"{data.samples} training and {data.validation_samples} validation samples are trained on toge" in printed
    assert f"the {data.test_samples} test samples stay the same" in printed
    assert f"{best} of 20 rounds, those of the best weights that it kept, with the cosine rates 20 to" in printed
    assert "No validation samples are left" in printed
    assert list(tmp_path.iterdir()) == [tmp_path / "refit.toml"]
    assert run_command("refit", run, "--job", "refit.toml") == 2
    assert "refit.toml exists already and is left as it is" in capsys.readouterr().err
    assert run_command("refit", run, "--out", "again", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert tomllib.loads(Path("again/job.toml").read_text()) == tomllib.loads(Path("refit.toml").read_text())
    assert Path("again/report.html").exists()
    assert run_command("train", "refit.toml", "--out", "by-train", "--quiet") == 0
    assert read_run("by-train").kept.test == read_run("again").kept.test
    assert run_command("refit", run, "--out", "again") == 2
    assert "again already holds a run" in capsys.readouterr().err


def test_what_cannot_be_refitted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refit(run, tmp_path / "again")
    with pytest.raises(RunError, match="is a refit already: it was trained on its validation samples"):
        refit(tmp_path / "again")
    plain = {"data__validation_fraction": None, "training__select": "last", "training__patience": None}
    run_job(job(**plain, baselines=["central"]), tmp_path / "plain")
    with pytest.raises(RunError, match=r"plain had no validation samples: it was trained on all samples"):
        refit(tmp_path / "plain")
    with pytest.raises(RunError, match=r"central is the baseline 'central' of a run; name the run itself"):
        refit(variant_directory(tmp_path / "plain", "central"))
    shutil.copytree(run, tmp_path / "under way")
    (tmp_path / "under way" / "result.json").unlink()
    with pytest.raises(RunError, match="under way has not ended; go on with it first: tdcd train --resume"):
        refit(tmp_path / "under way")
    with pytest.raises(tdcd.DivergedError):
        run_job(job(training__rate=1e30), tmp_path / "diverged")
    with pytest.raises(RunError, match="diverged diverged; there is nothing to train again"):
        refit(tmp_path / "diverged")
    assert run_command("refit", tmp_path) == 2
    assert "is not a run: it has no job.toml" in capsys.readouterr().err


def test_the_run_of_a_hub_names_the_settings_for_all_sites(run: Path) -> None:
    record = read_run(run)
    hub = replace(record, federation=replace(record.federation, peers=("right",)))
    assert record.outcome
    says = f'set data.refit = true, training.rounds = {record.outcome.selected}, training.select = "last"'
    with pytest.raises(RunError, match=says):
        _check(hub)


def test_a_run_of_arrays_is_for_python(run: Path) -> None:
    record = read_run(run)
    table = {key: value for key, value in record.job.items() if key != "data"}
    with pytest.raises(RunError, match="was trained on arrays, which it does not hold: train again from Python"):
        _check(replace(record, job=table))


def test_weights_that_no_round_made_better(tmp_path: Path) -> None:
    run_job(job(training__rate=1e4, training__rounds=4), tmp_path / "run")
    with pytest.raises(RunError, match="kept the weights of round 0, with which it began"):
        refit(tmp_path / "run")


def test_other_data_is_refused(run: Path) -> None:
    planned = plan_refit(run)
    record = replace(planned.run, federation=replace(planned.run.federation, samples=3))
    other = replace(planned, run=record)
    with pytest.raises(DataError, match="the data is not what .*run was trained on: there are"):
        run_job(other.job, callbacks=[other.check])
