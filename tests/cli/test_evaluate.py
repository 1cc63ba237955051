"""``tdcd evaluate``: what a run is worth, on its own test samples and on labelled tables."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tdcd
from sites.tables import SILOS, write_tables
from support import run_command
from tdcd.runs.quality import QualityRecord
from tdcd.runs.reader import read_quality
from tdcd.runs.records import read_record

IDS = [f"x{number:03d}" for number in range(120)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, and labelled tables of people who were not there."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_tables(folder, 400)
    tdcd.run_job(tdcd.load_job(folder / "job.toml", {"training.rounds": 20}), folder / "run")
    generator = np.random.default_rng(11)
    truth = generator.normal(size=(len(IDS), 6))
    label = (truth.sum(1) + generator.normal(size=len(IDS)) > 0).astype(int)
    for number, silo in enumerate(SILOS):
        a, b = truth[:, 2 * number].round(3), np.where(truth[:, 2 * number + 1] > 0, "high", "low")
        frame = pl.DataFrame({"person": IDS, f"{silo}_a": a, f"{silo}_b": b})
        if silo == "bank":
            frame = frame.with_columns(ill=label)
        frame.write_csv(folder / f"new-{silo}.csv")
    return folder


@pytest.fixture(autouse=True)
def _here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(trained)
    monkeypatch.setenv("COLUMNS", "200")  # or headings are wrapped
    yield
    for file in trained.glob("out.*"):
        file.unlink()


def evaluate(*words: object) -> int:
    return run_command("evaluate", "run", *words)


def tables(*but: str) -> list[str]:
    return [word for silo in SILOS if silo not in but for word in ("--table", f"{silo}=new-{silo}.csv")]


def printed_record(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(capsys.readouterr().out)
    return record


def test_the_jobs_own_test_samples(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = read_quality(trained / "run")
    assert stored is not None
    assert evaluate("--out", "out.json") == 0
    printed = capsys.readouterr().out
    assert f"{stored.measures['auroc']:.4f}" in printed
    assert re.search(r"threshold 0\.\d+, best F1 on the \d+ validation samples", printed)
    assert "clients of hospital" in printed
    assert "not enough rows: fewer than 10" in printed
    record = read_record(Path("out.json"), QualityRecord)
    assert [point.cut.criterion for point in record.points] == ["f1", "youden", "half"]
    assert record.measures == pytest.approx(stored.measures, rel=1e-5)
    assert [(one.silo, [client.rows for client in one.clients]) for one in record.silos] == [
        (one.silo, [client.rows for client in one.clients]) for one in stored.silos
    ]
    for one, other in zip(record.points, stored.points, strict=True):
        assert one.cut.threshold == pytest.approx(other.cut.threshold, rel=1e-5)
        assert (one.true_positives, one.false_positives) == (other.true_positives, other.false_positives)


def test_labelled_tables(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*tables(), "--json") == 0
    record = printed_record(capsys)
    assert record["rows"] == len(IDS)
    assert record["measures"]["auroc"] > 0.7
    assert record["samples"].startswith("120 rows of new tables; 120 IDs are in all silos")
    stored = read_quality(trained / "run")
    assert stored is not None
    assert record["points"][0]["cut"]["threshold"] == stored.points[0].cut.threshold, "chosen when the training ended"
    assert "validation samples" in record["points"][0]["cut"]["chosen_on"]
    assert [(silo["silo"], silo["clients"][0]["name"]) for silo in record["silos"]] == [
        (silo, f"new-{silo}.csv") for silo in SILOS
    ]
    assert evaluate(*tables("bank"), "--table", "bank/part-1=new-bank.csv", "--json") == 0
    assert printed_record(capsys)["silos"][0]["clients"][0]["name"] == "part-1"


def test_a_threshold_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*tables(), "--threshold", "0.3", "--json") == 0
    given = printed_record(capsys)
    assert given["points"][0]["cut"] == {"threshold": 0.3, "criterion": "given", "chosen_on": ""}
    assert evaluate("--best", "youden", "--json") == 0
    best = printed_record(capsys)
    assert [point["cut"]["criterion"] for point in best["points"]] == ["youden", "f1", "half"]


def test_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*tables(), "--out", "out.html") == 0
    page = Path("out.html").read_text()
    assert "Evaluation of run" in page
    assert page.count("<svg") == 4
    assert not re.search(r"(src|href)=\"(https?:)?//|<script", page)
    assert len(page) < 300_000
    assert evaluate("--out", "out.html") == 2
    assert "out.html exists already and is left as it is; replace it with --force" in capsys.readouterr().err
    assert evaluate("--out", "out.html", "--force") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threshold", "1.5"], "--threshold 1.5: a probability from 0 to 1 is wanted"),
        (["--threshold", "nan"], "--threshold nan: a probability from 0 to 1 is wanted"),
        (["--threshold", "0.5", "--best", "f1"], "--threshold and --best exclude each other"),
        (["--out", "out.txt"], "--out out.txt: name a .html or a .json file"),
        (["--out", "nowhere/out.json"], "--out nowhere/out.json: there is no folder nowhere; make it first"),
        (["--force"], "--force goes with --out"),
        (["--table", "bank"], "--table bank: write it as SILO=FILE"),
        (["--table", "bank=new-bank.csv"], "a table of every silo is needed; there is none for hospital"),
    ],
)
def test_mistakes(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*words) == 2
    assert message in capsys.readouterr().err


def test_tables_without_labels(capsys: pytest.CaptureFixture[str]) -> None:
    pl.read_csv("new-bank.csv").drop("ill").write_csv("out.csv")
    assert evaluate(*tables("bank"), "--table", "bank=out.csv") == 2
    assert "the new tables have no labels, so nothing can be measured" in capsys.readouterr().err


def test_a_run_without_validation_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tdcd.run_job(tdcd.load_job("breast-cancer", {"training.rounds": 2, "baselines": []}), tmp_path / "plain")
    assert run_command("evaluate", tmp_path / "plain", "--best", "f1") == 2
    assert "there are no validation samples to choose a threshold on" in capsys.readouterr().err
    assert run_command("evaluate", tmp_path / "plain") == 0
    printed = capsys.readouterr().out
    assert "note: there are no validation samples to choose a threshold on, so it is 0.5" in printed
    assert "threshold 0.5, by default" in printed


def test_several_classes_have_no_threshold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tdcd.run_job(tdcd.load_job("digits", {"training.rounds": 2, "baselines": []}), tmp_path / "digits")
    assert run_command("evaluate", tmp_path / "digits", "--threshold", "0.5") == 2
    assert "a threshold is for the binary loss; this model was trained with cross-entropy" in capsys.readouterr().err
    assert run_command("evaluate", tmp_path / "digits") == 0
    assert "actual, predicted →" in capsys.readouterr().out
