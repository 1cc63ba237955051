"""Sweeps, comparisons and reports as users meet them on the command line."""

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from support import run_command as tdcd_command

SWEEP = """
name = "tiny"
job = "digits"
iterations = 12
evaluate_every = 6
seeds = [1, 2]
baselines = ["central"]

[grid]
training.local_steps = [1, 6]

[select]
rates = [0.1, 1e30]
iterations = 6
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    (folder / "sweep.toml").write_text(SWEEP)
    assert tdcd_command("sweep", folder / "sweep.toml", "--out", folder / "out", "--quiet") == 0
    return folder / "out"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sweep.toml").write_text(SWEEP)


def test_a_sweep_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("sweep", "sweep.toml", "--jobs", 1) == 0
    printed = capsys.readouterr().out
    assert "4 trials\n" in printed
    assert "2 trials of baselines" in printed
    assert "diverged; its last good round is 0" in printed
    assert re.search(r"Q=1: rate 0.1 \(loss [\d.]+ at 0.1, inf at 1e\+30\)", printed)
    assert re.search(r"3/3  .*seed=2  loss [\d.]+  test accuracy [\d.]+", printed)
    assert f"Report: {Path('sweeps/tiny/report.html')}" in printed
    assert Path("sweeps/tiny/report.html").exists()
    assert tdcd_command("sweep", "sweep.toml") == 0
    assert "2 runs, of which 2 have ended before" in capsys.readouterr().out


def test_what_would_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("sweep", "sweep.toml", "--list") == 0
    printed = capsys.readouterr().out
    assert "runs/Q=6,seed=2" in printed
    assert "6 run(s) of 12 local steps, 6 trials to choose rates" in printed
    assert not Path("sweeps").exists()
    assert tdcd_command("sweep", "sweep.toml", "--list", "--seed", 2, "--seed", 7, "--seed", 2) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"runs/Q=6,seed=(\d)", printed) == ["2", "7"]


def test_mistakes_are_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("sweep", "none.toml") == 2
    Path("sweep.toml").write_text(SWEEP.replace("iterations = 12", "iterations = 13"))
    assert tdcd_command("sweep", "sweep.toml") == 2
    errors = capsys.readouterr().err
    assert "tdcd: none.toml: no such sweep file" in errors
    assert "sweep.toml: iterations: 13 local steps are no whole number of rounds of Q = 6; 12 or 18 are" in errors
    assert "Traceback" not in errors
    assert tdcd_command("train", "sweep.toml") == 2
    assert "sweep.toml: this is a sweep file; run it with: tdcd sweep sweep.toml" in capsys.readouterr().err


def test_a_run_that_fails_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("sweep", "sweep.toml", "--set", "training.batch_size=5000", "--quiet") == 2
    assert re.search(r"tdcd: trials/Q=.,rate=\S+: .*batch_size: 5000 is more than", capsys.readouterr().err)


def test_a_terminal_sees_bars() -> None:
    """Run it on a terminal of its own and read what is drawn there."""
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "tdcd", "sweep", "sweep.toml"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    seen = b""
    while True:
        ready, _, _ = select.select([parent], [], [], 120)
        try:
            piece = os.read(parent, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    assert process.wait() == 0
    os.close(parent)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "━" in text
    assert "Report: sweeps/tiny/report.html" in text


def test_compare_prices_runs_again(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [swept / "runs/Q=1,seed=1", swept / "runs/Q=6,seed=1", swept / "runs/central,seed=1"]
    assert tdcd_command("compare", *runs, "--t-comm", 10, "--t-comm", 7) == 0
    printed = capsys.readouterr().out
    rows = {line.split()[0]: line.split() for line in printed.splitlines() if "seed=1" in line}
    assert "372" in rows["Q=1,seed=1"]  # 12 · (3 · 10 + 1)
    assert "264" in rows["Q=1,seed=1"]  # 12 · (3 · 7 + 1)
    assert "72" in rows["Q=6,seed=1"]  # 2 · (3 · 10 + 6)
    assert "54" in rows["Q=6,seed=1"]
    assert rows["central,seed=1"].count("12") == 3, "twelve rounds, and twelve units at any latency"
    assert tdcd_command("compare", swept, "--cost", "hub_latency=3", "--target", "0.01") == 0
    assert "0.01" in capsys.readouterr().out


def test_compare_tells_mistakes(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([swept, "--cost", "hub=3"], "--cost: unknown key 'hub'"),
        ([swept, "--cost", "slowdown=0.5"], "--cost: slowdown: should be greater than or equal to 1"),
        ([swept, "--cost", "slowdown"], "--cost slowdown: write it as KEY=VALUE"),
        ([swept, "--metric", "f3"], "metric: 'f3' was not measured"),
        (["nowhere"], "nowhere: no such directory"),
        (["sweep.toml"], "sweep.toml is a file; name the directory of a run"),
        ([swept / "runs"], "there are runs in it, such as"),
        ([swept, "--cost", "slowdown=5"], "slowdown goes with slow_clients"),
        ([swept / "runs/Q=1,seed=1", "--cost", 'speeds={"a/b"=2.0}'], "no run has a client 'a/b'"),
        ([swept, "--cost", "t_comm=5"], "--cost t_comm: write --t-comm 5 instead"),
        ([swept, "--t-comm", "nan"], "t_comm: should be"),
    ):
        assert tdcd_command("compare", *words) == 2
        assert message in capsys.readouterr().err


def test_reports_of_a_run_a_sweep_and_several(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = swept / "runs/Q=1,seed=1", swept / "runs/Q=6,seed=1"
    assert tdcd_command("report", one, "--t-comm", 33) == 0
    assert "time at t_comm 33" in (one / "report.html").read_text()
    assert (one / "report" / "traffic.csv").exists()
    assert tdcd_command("report", swept, "--t-comm", 5, "--metric", "f1") == 0
    assert "test F1 over time, t_comm = 5" in (swept / "report.html").read_text()
    assert tdcd_command("report", one, two, "--out", "both") == 0
    assert "2 runs compared" in Path("both/report.html").read_text()
    assert Path("both/report/results.csv").read_text().count("Q=6,seed=1") == 1
    assert tdcd_command("report", one, swept, "--out", "mixed") == 0
    assert "runs compared" in Path("mixed/report.html").read_text()
    assert not (swept / "report/time-10.png").exists(), "drawn for other costs"
    assert tdcd_command("report", one, two) == 2
    assert tdcd_command("report", one, "--out", "x") == 2
    assert tdcd_command("report", one, "--target", 0.5) == 2
    assert tdcd_command("report", one, "--metric", "f7") == 2
    assert "--out" in capsys.readouterr().err


def test_the_papers_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("reproduce") == 0
    assert "physionet2012-silos" in capsys.readouterr().out
    assert tdcd_command("reproduce", "modelnet", "--list", "--scale", "paper") == 0
    assert "runs/Q=30,K=20,seed=2021" in capsys.readouterr().out
    assert tdcd_command("reproduce", "modelnet", "--list", "--seed", 5) == 0
    assert re.findall(r"runs/Q=30,K=20,seed=(\d+)", capsys.readouterr().out) == ["5"]
    assert tdcd_command("reproduce", "modelnet") == 2
    assert "say where the files of ModelNet40, or ModelNet10 are" in capsys.readouterr().err
    assert tdcd_command("reproduce", "modelnets") == 2
    assert "did you mean 'modelnet'" in capsys.readouterr().err


def test_a_comparison_for_a_text_and_what_follows_from_it(swept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("compare", swept, "--markdown") == 0
    printed = capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith("| ")]
    header = rows[0]
    times = {row[0]: row for row in rows[1:]}
    for t in ("10", "100"):
        place = next(k for k, name in enumerate(header) if name.strip() == f"t_comm {t}") + 1
        spent = {name: float(row[place].replace(",", "")) for name, row in times.items() if name.startswith("Q = ")}
        fastest = min(spent, key=lambda name: spent[name])
        assert f"at t_comm {t}, {fastest} is {spent['Q = 1'] / spent[fastest]:.1f} times as fast as Q = 1" in printed
