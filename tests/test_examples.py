"""Every example runs, as its first lines say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_script(script: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert f"python examples/{script.name}" in script.read_text()


@pytest.mark.parametrize("job", sorted(EXAMPLES.glob("*/job.toml")), ids=lambda path: path.parent.name)
def test_job(job: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tdcd", "train", str(job), "--rounds", "3", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").exists()
    copied = [sys.executable, "-m", "tdcd", "train", str(tmp_path / "run" / "job.toml"), "--out", str(tmp_path / "two")]
    done = subprocess.run(copied, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = [sys.executable, "-m", "tdcd", "train", "--resume", str(tmp_path / "run")]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"tdcd train examples/{job.parent.name}/job.toml" in job.read_text()


def test_the_bank_and_the_insurer(tmp_path: Path) -> None:
    """The tables are made from a built-in source, aligned, trained on and predicted from, as the page says."""
    folder = EXAMPLES / "bank_insurer"

    def run(*words: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "the built-in tumours stand in" in run(folder / "make_tables.py", "--out", tmp_path)
    assert "loans.alignment.parquet" in run("-m", "tdcd", "align", "loans.toml")
    printed = run("-m", "tdcd", "train", "loans.toml", "--rounds", "30", "--out", "run")
    assert "IDs are in all silos; rows without them: bank" in printed
    assert "insurer alone" in printed
    assert "central" in printed
    new = ("--table", "bank=loans/new-bank.csv", "--table", "insurer=loans/new-insurer.csv")
    assert "20 predictions" in run("-m", "tdcd", "predict", "run", *new)
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 21
    assert "Columns of bank" in run("-m", "tdcd", "check", "loans.toml")


def test_labels_that_stay_at_the_bank(tmp_path: Path) -> None:
    """The same tables; the insurer is told no label. The sweeps beside it are what they say."""
    from tdcd.experiments.sweep_file import load_sweep

    shutil.copytree(EXAMPLES / "labels", tmp_path / "labels")

    def run(*words: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, words)], cwd=tmp_path / "labels", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run(EXAMPLES / "bank_insurer" / "make_tables.py", "--out", tmp_path / "bank_insurer")
    assert "loans.alignment.parquet" in run("-m", "tdcd", "align", "loans.toml")
    assert "federation" in run("-m", "tdcd", "train", "loans.toml", "--rounds", "30", "--out", "run")
    assert "as silo 'insurer' can tell them" in run("-m", "tdcd", "audit", "labels", "run", "--rounds", "2")
    for name in ("credit", "physionet2012"):
        assert load_sweep(tmp_path / "labels" / f"{name}.toml").seeds == [2021, 1, 2]
