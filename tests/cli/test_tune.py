"""``tdcd tune`` as a user meets it, and how commands end whose training learned nothing."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tdcd.cli.main import app
from tdcd.reports.tuning import common_target
from tdcd.runs.reader import read_outcome
from tdcd.runs.tuning import read_tuning

SMALL = ["breast-cancer", "--set", "training.rounds=60", "--set", "data.validation_fraction=0.3"]
SMALL += ["--local-steps", "1,5", "--hub-steps", "1", "--jobs", "1"]
NOISE = """name = "noise"
data = { source = "digits", clients = 2 }
model = { kind = "mlp", hidden = [32] }
[training]
loss = "cross-entropy"
rounds = 30
local_steps = 10
rate = 100.0
"""


def run(*words: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, " ".join((result.output + str(result.exception or "")).split())


@pytest.mark.slow
def test_a_job_is_tuned_and_trained_with_what_was_chosen(tmp_path: Path) -> None:
    out = tmp_path / "tuning"
    code, text = run("tune", *SMALL, "--t-comm", "5", "--out", out)
    assert code == 0, text
    record = read_tuning(out)
    assert f"Train with it: tdcd train {out / 'tuned.toml'}" in text
    assert f"It took {record.cost:.1f} whole trainings; a full grid has 12." in text
    target = common_target(record)
    assert target is not None
    bests = [best for steps in (1, 5) if (best := record.best_of(steps))]
    assert target == max(best.loss or 0.0 for best in bests)
    assert all(record.reached(best, target) in best.times for best in bests), "the target is what all of them reach"
    assert "test accuracy" not in text, "settings are chosen on validation samples"
    page = (out / "report.html").read_text()
    assert record.chosen in page
    assert page.count("<svg") == 1
    assert run("train", out / "tuned.toml", "--out", tmp_path / "run")[0] == 0
    code, text = run("tune", *SMALL, "--t-comm", "5", "--out", out, "--json")
    assert json.loads(text)["chosen"] == record.chosen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--budget", "much"],
            "--budget much: write a part of a full grid's cost, such as 10%, or minutes, such as 30m",
        ),
        (["--hub-steps", "2"], "--hub-steps 2: a hub step is a part of the way to the clients' mean, at most 1"),
        (["--local-steps", "1,x"], "--local-steps 1,x: numbers with commas between them are wanted"),
        (["--local-steps", "0"], "--local-steps 0: these have to be above 0"),
        (["--metric", "aurok"], "'aurok' is not measured with binary-cross-entropy; did you mean 'auroc'?"),
        (["--quiet", "--json"], "--quiet and --json exclude each other"),
        (["--engine", "slurm"], "engine: 'slurm' is not known"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], said: str) -> None:
    code, text = run("tune", *SMALL, "--out", tmp_path / "tuning", *words)
    assert code == 1, text
    assert said in text
    assert not (tmp_path / "tuning" / "trials").exists()


def test_without_validation_samples(tmp_path: Path) -> None:
    _, text = run("tune", "breast-cancer", "--out", tmp_path / "tuning")
    assert "set data.validation_fraction = 0.1 in the job" in text


def test_a_training_that_learned_nothing_has_a_code_of_its_own(tmp_path: Path) -> None:
    job, out = tmp_path / "noise.toml", tmp_path / "run"
    job.write_text(NOISE)
    code, text = run("train", job, "--out", out)
    assert code == 3, text
    assert "failure: " in text
    outcome = read_outcome(out)
    assert outcome
    kinds = [finding.kind for finding in outcome.findings if finding.level == "failure"]
    assert kinds
    assert outcome.findings[0].text in (out / "report.html").read_text().replace("&#39;", "'")
    code, text = run("predict", out, "--out", tmp_path / "predictions.csv")
    assert code == 0, text
    assert "warning: this model learned nothing in training" in text
