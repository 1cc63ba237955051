"""``tdcd theory``: repeats a run's training, and refuses what cannot be repeated."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd
from serving.models import as_hub_runs, train_tables
from support import run_command
from tdcd.jobs.repeat import repeat_run
from tdcd.runs.layout import FEDERATION, RESULT
from tdcd.runs.reader import read_history, read_theory
from tdcd.runs.records import FederationRecord, Outcome, history_line, read_record, write_record

QUICK = ("--evaluations", 3, "--batches", 2, "--clients", 1)

MLP = 'kind = "mlp"\nhidden = [\n    3,\n]\nactivation = "relu"\n'


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tables(tmp_path_factory.mktemp("theory"), rounds=8, evaluate_every=4)


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def theory(run: Path, *words: object) -> int:
    return run_command("theory", run, *QUICK, *words)


def test_it_prints_both_sides_and_keeps_them(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert theory(run) == 0
    captured = capsys.readouterr()
    assert re.search(r"repeating 8 of 8 rounds, which took [\d.]+ s in the run", captured.err)
    record = read_theory(run)
    assert record is not None
    assert record.rounds == 8
    losses = {line.round: line.train["loss"] for line in read_history(run)}
    assert {p.round: p.loss for p in record.points} == pytest.approx(losses, rel=1e-5)
    numbers = f"{record.bound:.4g}", f"{record.largest_rate:.4g}", f"{record.evaluations:,} gradients"
    for text in ("measured mean", "staleness", "clients without bias", "shown as orientation", *numbers):
        assert text in captured.out
    assert "differ" not in captured.out


def test_json_and_fewer_rounds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert theory(run, "--rounds", 4, "--json") == 0
    captured = capsys.readouterr()
    printed: dict[str, Any] = json.loads(captured.out)
    assert (printed["rounds"], printed["planned"]) == (4, 8)
    assert "repeating 4 of 8 rounds" in captured.err


def test_losses_that_differ_are_noted(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [replace(line, train={**line.train, "loss": line.train["loss"] * 1.1}) for line in read_history(run)]
    (run / "history.jsonl").write_text("".join(history_line(line) + "\n" for line in lines))
    assert theory(run) == 0
    assert "the losses differ from the run's by up to 9.1%" in capsys.readouterr().out


def test_a_baseline_is_repeated_too(tmp_path: Path) -> None:
    table = tdcd.load_job("breast-cancer", {"training.rounds": 3, "baselines": ["central", "alone"]})
    tdcd.run_job(table, tmp_path / "run")
    for place in ("central", "alone/means"):
        path = tmp_path / "run" / place
        if path.exists():
            repeat = repeat_run(path)
            assert all(len(roster.clients) == 1 for roster in repeat.simulation.federation.rosters.values())


def as_hub(run: Path) -> None:
    record = read_record(run / FEDERATION, FederationRecord)
    write_record(run / FEDERATION, replace(record, silos=record.silos[:1], peers=("shop", "ward")))


def as_diverged(run: Path) -> None:
    write_record(run / RESULT, replace(read_record(run / RESULT, Outcome), status="diverged"))


def edit_job(old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        text = (run / "job.toml").read_text()
        assert old in text
        (run / "job.toml").write_text(text.replace(old, new))

    return edit


def without_history(run: Path) -> None:
    (run / "history.jsonl").write_text("")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (as_hub, r"is the run of one hub.*Theory is for simulations: where the tables may be in one place"),
        (as_diverged, r"diverged; train it with a smaller rate first: tdcd train \S+job.toml --rate 0.01$"),
        (edit_job("engine = \"local\"", "engine = \"ray\""), r"computed on a cluster.*--engine local$"),
        (edit_job("    3,\n]\nactivation", "    4,\n]\nactivation"), r"networks, first weights changed since"),
        (edit_job("test_fraction = 0.2", "test_fraction = 0.3"), r"cannot be repeated: training data"),
        (edit_job(MLP, "kind = \"other:make\"\n"), r"is code that you have not allowed"),
        (without_history, r"has no round yet"),
    ],
)  # fmt: skip
def test_refusals(change: Callable[[Path], None], says: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(run)
    assert theory(run) == 2
    assert re.search(says, " ".join(capsys.readouterr().err.split()))
    assert read_theory(run) is None


def test_rounds_that_the_run_does_not_have(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert theory(run, "--rounds", 9) == 2
    assert "--rounds 9: the run has computed 8 rounds; name 1 to 8" in capsys.readouterr().err


def test_runs_of_hubs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub, *_ = as_hub_runs(run, tmp_path / "hubs")
    assert theory(hub) == 2
    assert "is the run of one hub" in capsys.readouterr().err


def test_a_run_from_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2))
    federation = tdcd.Federation.from_silos([tdcd.Silo("a", x, [range(20)])], x[:, 0])
    settings = tdcd.Settings(loss="squared-error", rounds=2, rate=0.01)
    tdcd.train(federation, tdcd.models.Linear(), settings, directory=tmp_path / "run")
    assert theory(tmp_path / "run") == 2
    assert "tdcd.measure_theory(tdcd.Simulation(federation, models, settings))" in capsys.readouterr().err
