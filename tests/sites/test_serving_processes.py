"""The commands of the README: sites as real processes over TLS, trained, given new tables, and asked."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.jobs.tables import OpenTables
from tdcd.runs.layout import JOB
from tdcd.serving.model import load_model
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity

from .tables import write_tables

ROOT = Path(__file__).parents[2]
QUICK = ["--set", "training.rounds=20", "--set", "training.evaluate_every=20", "--quiet"]


def commands(page: str, heading: str, until: str) -> list[list[str]]:
    """Return the commands of a part of a page, as a shell takes them."""
    text = (ROOT / page).read_text()
    start = text.index(heading)
    lines = re.findall(r"^    (.*?)(?: +#.*)?$", text[start : text.index(until, start)], re.MULTILINE)
    written = (
        line.replace(".venv/bin/", "").replace("L=demo/loans; ", "").replace("$L", "demo/loans") for line in lines
    )
    return [shlex.split(line) for line in written]


def as_process(words: list[str]) -> list[str]:
    where = ["-m", "tdcd"] if words[0] == "tdcd" else [str(ROOT / words[1])]
    return [sys.executable, "-P", *where, *words[1 if words[0] == "tdcd" else 2 :]]


def until(folder: Path, text: str, count: int, deployment: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 300
    while sum(file.read_text().count(text) for file in folder.rglob("*.log")) < count:
        assert deployment.poll() is None, [file.read_text()[-2000:] for file in folder.rglob("*.log")]
        assert time.monotonic() < end, [file.read_text()[-2000:] for file in folder.rglob("*.log")]
        time.sleep(0.1)


def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    tables, deploy, status, predict, assemble = commands("README.md", "**Across sites**", "**In one place**")
    from_tables, *_ = commands("README.md", "**In one place**", "A simulated run")
    *same, again = commands("docs/deployment.md", "On one machine, every site", "The second one keeps")
    assert same == [tables, deploy, status, predict]

    def run(words: list[str], code: int = 0) -> str:
        done = subprocess.run(as_process(words), cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    run(tables)
    with subprocess.Popen(as_process([*deploy, *QUICK]), cwd=tmp_path, text=True, stdout=subprocess.PIPE) as deployment:
        try:
            until(tmp_path / "demo", " are ready for predictions", 7, deployment)
            until(tmp_path / "demo", "clients are ready", 7, deployment)
            assert "serving" in run(status)
            assert "20 predictions" in run(predict)
            before = pl.read_csv(tmp_path / "demo" / "predictions.csv")
            assert "exists already" in run(predict, 2)
            assert "weights of round 20 of 20" in run(assemble)
            assert "20 predictions" in run(from_tables)
            assembled = before.join(pl.read_parquet(tmp_path / "demo" / "shares.parquet"), on="id", suffix=" of one")
            name = before.columns[-1]
            assert assembled.height == 20
            assert ((assembled[name] - assembled[f"{name} of one"]).abs() < 1e-5).all()
            added = assembled["share of bank"] + assembled["share of insurer"]
            assert ((added - assembled["score"]).abs() < 1e-6).all()
            # a hub of another silo may not ask, nor may a client of this one
            insurer = ["tdcd", "predict", "--site", "demo/sites/insurer/hub.toml", "--ids", "demo/loans/new-ids.csv"]
            assert "predictions are asked for at silo 'bank'" in run([*insurer, "--out", "x.csv"], 2)
            # a new table in the place of the old one, without a restart
            branch = tmp_path / "demo" / "loans" / "new" / "bank" / "centre.csv"
            moved = pl.read_csv(branch).with_columns(pl.selectors.float() * 1.5)
            moved.write_csv(branch)
            said = json.loads(run([*again, "--json"]).splitlines()[-1])
            assert (said["predictions"], said["partial"]) == (20, 0)
            after = pl.read_csv(tmp_path / "demo" / "predictions.csv")
            changed = before.join(after, on="id", suffix=" now")
            unchanged = (changed[name] - changed[f"{name} now"]).abs() < 1e-9
            assert 0 < unchanged.sum() < 20
            job = load_job(tmp_path / "demo" / "loans.toml", {
                "training.rounds": 20, "training.evaluate_every": 20, "baselines": []})  # fmt: skip
            run_job(job.model_copy(update={"data": job.data.model_copy(update={"alignment": None})}), tmp_path / "one")
            central = load_model(tmp_path / "one").predict_tables(
                {"bank": [tmp_path / "demo/loans/new-bank.csv"], "insurer": [tmp_path / "demo/loans/new-insurer.csv"]}
            )
            joined = before.join(central.frame, on="id", suffix=" in one place")
            assert joined.height == 20
            assert ((joined[name] - joined[f"{name} in one place"]).abs() < 1e-5).all()
            assert (tmp_path / "demo" / "sites" / "job.toml").exists()
        finally:
            deployment.send_signal(signal.SIGINT)
            printed = deployment.communicate(timeout=60)[0]
    assert deployment.returncode == 130
    assert "Stopped." in printed


@pytest.mark.slow
def test_what_is_served_outlives_its_processes(tmp_path: Path) -> None:
    """A hub and a client that are killed come back, each alone, and answer as before."""
    write_tables(tmp_path)
    few = dict.fromkeys(("training.rounds", "training.evaluate_every", "training.checkpoint_every"), 2)
    job = load_job(tmp_path / "job.toml", few)
    federation = LocalFederation.laid_out(job, tmp_path / "sites", serve=True)
    ids = tmp_path / "ids.txt"
    alignment, _ = OpenTables.open(job, lambda _: None).align()
    ids.write_text("\n".join(alignment.ids.head(30).to_list()))
    site = federation.sites[Identity("bank")].file

    def predict(out: str) -> "subprocess.CompletedProcess[str]":
        words = ["predict", "--site", str(site), "--ids", str(ids), "--out", str(tmp_path / out), "--force"]
        command = [sys.executable, "-P", "-m", "tdcd", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def patiently(out: str) -> pl.DataFrame:
        end = time.monotonic() + 60
        while (done := predict(out)).returncode == 75:
            assert time.monotonic() < end, done.stderr
            time.sleep(0.2)
        assert done.returncode == 0, done.stderr
        return pl.read_csv(tmp_path / out)

    federation.start(quiet=True)
    try:
        before = patiently("before.csv")
        for who in (Identity("insurer"), Identity("hospital", "part-1"), Identity("bank")):
            federation.processes[who].kill()
            federation.processes[who].wait()
            if who != Identity("bank"):
                done = predict("away.csv")
                assert done.returncode == 75, done.stderr
                assert f"'{who.silo}'" in done.stderr
                assert (who.client or "hub") in done.stderr
            federation.processes[who] = federation.sites[who].start(quiet=True)
            assert patiently("after.csv").equals(before)
    finally:
        federation.kill()
    assert (tmp_path / "sites" / "bank" / "run" / JOB).exists()
