"""The command line as users meet it: what it prints, writes and returns."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tdcd
from support import run_command as tdcd_command

SMALL = ["--rounds", "4", "--set", "training.evaluate_every=2", "--set", "baselines=[]"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def spawn(*words: object, **more: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-m", "tdcd", *map(str, words)], text=True, **more)


def write_job(**changes: Any) -> Path:
    """Write the breast-cancer job with some lines changed: section_key="value in TOML"."""
    from tdcd.jobs.load import embedded_job_text

    text = embedded_job_text("breast-cancer")
    for key, value in changes.items():
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    path = Path("job.toml")
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["train"],
        ["init"],
        ["report"],
        ["align"],
        ["check"],
        ["predict"],
        ["evaluate"],
        ["theory"],
        ["data", "check"],
        ["sweep"],
        ["reproduce"],
        ["compare"],
    ],
)
def test_help_has_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command(*words, "--help") == 0
    printed = capsys.readouterr().out
    assert "Usage:" in printed
    name = " ".join(["tdcd", *words])
    assert len(re.findall(rf"{name} (?!\[)\S", printed)) >= 1, "no example of the command itself"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("--version") == 0
    assert capsys.readouterr().out.strip() == f"tdcd {tdcd.__version__}"


def test_train_without_a_file_runs_the_digits_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", "--rounds", 2) == 0
    printed = capsys.readouterr().out
    assert "left 8, right 5" in printed
    assert re.search(r"round 2/2  iteration 10  loss [\d.]+  test accuracy [\d.]+  .* rounds/s  0:00:00 left", printed)
    assert "right alone" in printed
    (run,) = Path("runs").iterdir()
    assert run.name.startswith("digits-")
    assert (run / "report.html").exists()
    assert f"Report: {run / 'report.html'}" in printed


def test_init_writes_a_job_that_trains() -> None:
    assert tdcd_command("init", "breast-cancer") == 0
    assert tdcd_command("train", "breast-cancer.toml", *SMALL, "--quiet") == 0
    before = Path("breast-cancer.toml").read_text()
    assert tdcd_command("init", "breast-cancer") == 2
    assert Path("breast-cancer.toml").read_text() == before


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", *SMALL, "--quiet", "--out", "run") == 0
    assert capsys.readouterr() == ("", "")


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", *SMALL, "--json", "--out", "run") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["training", "started", *["evaluation"] * 3, "finished"]
    assert lines[-1]["results"]["federation"]["round"] == 4
    history = [json.loads(line) for line in Path("run/history.jsonl").read_text().splitlines()]
    assert [line["test"] for line in lines if line["event"] == "evaluation"] == [line["test"] for line in history]


@pytest.mark.slow
def test_options_override_the_file() -> None:
    words = [
        "-R",
        2,
        "-Q",
        3,
        "-B",
        "full",
        "--rate",
        0.5,
        "-K",
        7,
        "--seed",
        9,
        "--engine",
        "oracle",
        "--compute",
        "loop",
    ]
    momentum = ("--set", "training.optimizer={kind='sgd',momentum=0.5}")
    assert tdcd_command("train", write_job(), *words, *momentum, "-o", "run", "-q") == 0
    job = tdcd.load_job("run/job.toml")
    assert (job.training.rounds, job.training.local_steps, job.training.batch_size) == (2, 3, "full")
    assert (job.training.rate, job.training.seed, job.training.optimizer) == (0.5, 9, tdcd.optimizers.SGD(0.5))
    assert (job.as_table()["data"]["clients"], job.engine, job.compute) == (7, "oracle", "loop")


def test_the_resolved_job_runs_again_to_the_same_end() -> None:
    assert tdcd_command("train", *SMALL, "-q", "-o", "one") == 0
    assert tdcd_command("train", "one/job.toml", "-q", "-o", "two") == 0
    for file in ("blocks/left.safetensors", "blocks/right.safetensors", "job.toml", "federation.json"):
        assert Path("one", file).read_bytes() == Path("two", file).read_bytes()


def test_report_draws_again() -> None:
    assert tdcd_command("train", *SMALL, "-q", "-o", "run") == 0
    before = Path("run/report.html").read_text()
    Path("run/report.html").unlink()
    assert tdcd_command("report", "run") == 0
    assert Path("run/report.html").read_text() == before


NETWORKS = """
import torch
from torch import nn
def fails(shape, outputs): raise OSError("no licence")
def wide(shape, outputs): return nn.Linear(shape[0], outputs + 1)
def flat(shape, outputs): return nn.Sequential(nn.Linear(shape[0], outputs), nn.Flatten(0))
class Late(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.linear = nn.Linear(features, outputs)
    def forward(self, rows):
        if self.training: raise RuntimeError("out of luck")
        return self.linear(rows)
def late(shape, outputs): return Late(shape[0], outputs)
"""


def own(name: str) -> list[str]:
    return ["train", "job.toml", "--set", f'silos.mean.model.kind="networks:{name}"']


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "nowhere.toml"], "nowhere.toml: no such job file"),
        (["train", "."], "a directory, not a job file"),
        (["train", "--set", "training.local_stepz=3"], "unknown key 'local_stepz'; did you mean 'local_steps'"),
        (["train", "--set", "training.rounds=many"], "training.rounds: should be a valid integer (is 'many')"),
        (["train", "--set", "rate"], "KEY=VALUE"),
        (["train", "--set", "silos=5", "-K", "3"], "silos: should be a table"),
        (["train", "--set", "training=5"], "training: should be a table"),
        (["train", "--batch-size", "5000"], "training.batch_size: 5000 is more than the 1434 training samples"),
        (["train", "--batch-size", "some"], "training.batch_size: should be a whole number above 0 or"),
        (["train", "--set", "training.schedule={every=3}"], "training.schedule: needs a kind"),
        (["train", "--clients", "5000"], "silo 'left': 5000 clients for 1434 rows would leave clients without rows"),
        (["train", "--rate", "-1"], "training.rate: should be greater than 0"),
        (["train", "--engine", "locall"], "engine: should be 'local', 'oracle' or 'ray'"),
        (["train", "--set", 'model={kind="lstm"}'], "silo 'left': an LSTM takes sequences"),
        (["train", "--set", "training.loss=binary-cross-entropy"], "labels out of range: 2, 3, 4, 5, 6 and 3 more"),
        (["train", "--set", 'silos.top.clients=3'], "silos.top: the data has no such silo"),
        (["train", "--resume", "nowhere"], "nowhere: no such directory"),
        (["train", "--quiet", "--json"], "exclude each other"),
        (own("fails"), "silo 'mean': model 'networks:fails': the factory failed"),
        (own("wide"), "embedding widths differ between silos: mean 2, error 1, worst 1"),
        (own("flat"), "silo 'mean': its network returned (2,) for 2 rows"),
        (own("late"), "out of luck"),
        (own("none"), "the module 'networks' has no 'none'"),
        (["train", "job.toml", "--set", 'model.kind="nowhere:f"'], "there is no module 'nowhere'"),
        (["train", "--rate", "1e30"], "Try a smaller rate, such as 1e+29"),
        (["report", "nowhere"], "nowhere: no such directory"),
        (["init", "digit"], "no job to start from is called 'digit'; did you mean 'digits'"),
        (["init", "--out", "no/where.toml"], "cannot be written"),
        (["nonsense"], "No such command"),
        (["train", "--nonsense"], "No such option"),
    ],
)  # fmt: skip
def test_bad_input_is_told_and_exits_with_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_job()
    Path("networks.py").write_text(NETWORKS)
    sys.modules.pop("networks", None)
    assert tdcd_command(*words, *(["--set", "baselines=[]"] if words[0] == "train" else [])) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert "Traceback" not in printed.err + printed.out


def test_divergence_keeps_a_usable_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", "--rate", "1e30", "-o", "run", "-q") == 2
    assert "The checkpoint of round 0 is kept in run" in capsys.readouterr().err
    assert "diverged" in Path("run/report.html").read_text()


def test_odd_names_of_directories_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", *SMALL, "-o", "run [/x] [bold]") == 0
    assert "Run:    run [/x] [bold]" in capsys.readouterr().out


def test_another_job_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert tdcd_command("train", *SMALL, "-q", "-o", "run") == 0
    assert tdcd_command("train", "--resume", "run", "--rate", "0.5") == 2
    assert "training.rate: 0.2 there, 0.5 here" in capsys.readouterr().err
    assert tdcd_command("train", "breast-cancer", "--resume", "run") == 2
    assert "data.source: digits there, breast-cancer here" in capsys.readouterr().err
    assert tdcd_command("train", *SMALL, "-o", "run") == 2
    assert "already holds a run; go on with it (tdcd train --resume run" in capsys.readouterr().err
    assert tdcd_command("train", "--resume", "run", "-o", "other") == 2


LONG = [
    "--set",
    "training.checkpoint_every=7",
    "--set",
    "training.evaluate_every=5",
    "--set",
    "baselines=[]",
    "-R",
    "150",
]


def wait_for(path: Path, lines: int) -> None:
    for _ in range(6000):
        if path.exists() and len(path.read_text().splitlines()) >= lines:
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not grow to {lines} lines")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_and_says_how_to_go_on(kind: signal.Signals) -> None:
    slow = ["--engine", "oracle", *LONG]
    process = spawn("train", *slow, "-o", "run", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(Path("run/history.jsonl"), 2)
    process.send_signal(kind)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "go on with:\n  tdcd train --resume run" in out
    assert "Traceback" not in err
    assert "interrupted" in Path("run/report.html").read_text()
    assert json.loads(Path("run/result.json").read_text())["status"] == "interrupted"


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_where_an_uninterrupted_one_ends() -> None:
    assert tdcd_command("train", *LONG, "-q", "-o", "whole") == 0
    process = spawn("train", *LONG, "-q", "-o", "killed")
    for lines in (2, 6, 9):
        wait_for(Path("killed/history.jsonl"), lines)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not Path("killed/result.json").exists(), "it was over before it was killed"
        process = spawn("train", "--resume", "killed", "-q")
    assert process.wait(timeout=120) == 0
    for file in ("blocks/left.safetensors", "blocks/right.safetensors"):
        assert Path("whole", file).read_bytes() == Path("killed", file).read_bytes()

    def history(run: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in Path(run, "history.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key not in ("seconds", "digest")} for line in lines]

    assert history("whole") == history("killed")


def test_a_terminal_gets_a_live_display() -> None:
    master, slave = pty.openpty()
    process = spawn(
        "train", *SMALL, "-o", "run", stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", "COLUMNS": "140"}
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait(timeout=60) == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert "4/4" in text
    assert "rounds/s" in text
    assert "test accuracy" in text
