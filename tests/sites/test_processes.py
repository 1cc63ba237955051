"""The contract: real processes over real TLS sockets end with the blocks of the simulation."""

import subprocess
from pathlib import Path

import pytest
import torch

from sites.tables import write_tables
from tdcd.core.ledger import Traffic
from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job, TableJob
from tdcd.runs.reader import read_history, read_run
from tdcd.runs.store import load_blocks
from tdcd.serving.assemble import assemble
from tdcd.serving.model import load_model
from tdcd.serving.opened import Files
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity
from tdcd.training.result import Result
from zygote import REAL


def digits(folder: Path) -> Job:
    return load_job("digits", {"training.rounds": 8, "training.evaluate_every": 4, "baselines": []}, clients=2)


@pytest.mark.parametrize("example", [digits, write_tables])
def test_a_deployed_federation_ends_as_the_simulation_does(
    example: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without assertions, as ``python -O`` runs it: none of them handles a message."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    if example is digits:  # with interpreters of their own: sets are in another order in each
        monkeypatch.setattr(subprocess, "Popen", REAL)
    assert callable(example)
    job: Job = example(tmp_path)
    if example is write_tables:
        job = load_job(
            tmp_path / "job.toml",
            {"deployment.assemble": "insurer", "deployment.assemble_every": 8, "deployment.importance": 1},
        )
    federation = LocalFederation.laid_out(job, tmp_path / "deployed")
    federation.start(quiet=True)
    parts: list[str] = []
    code = federation.wait(parts.append, seconds=240)
    logs = "\n".join(file.read_text() for file in (tmp_path / "deployed").rglob("*.log"))
    assert code == 0, logs
    expected = run_job(job).federation
    total = Traffic()
    for silo, run in federation.runs.items():
        result = load_blocks(run)[silo]
        for name, tensor in expected.blocks[silo].items():
            assert torch.allclose(result[name], tensor, rtol=0, atol=1e-6), (silo, name)
        history = read_history(run)
        for here, there in zip(history, expected.history, strict=True):
            for part in ("train", "validation", "test"):
                assert getattr(here, part) == pytest.approx(dict(getattr(there, part)), abs=1e-6)
        total += history[-1].traffic
        if example is write_tables:
            assert {one.column for one in read_run(run).importance.entries} == {"", f"{silo}_a", f"{silo}_b"}  # type: ignore[union-attr]
    check_assembled(job, expected, tmp_path)
    assert total == expected.kept.traffic  # what was really sent is what the ledger counts
    assert all(process.returncode == 0 for process in federation.processes.values()), logs
    alone = federation.sites[Identity(next(iter(federation.runs)))]  # started again, it needs nobody
    assert alone.start(quiet=True).wait(120) == 0
    assert "the training has ended before" in alone.log.read_text()


def check_assembled(job: Job, expected: Result, folder: Path) -> None:
    """The runs of all hubs make the model of the simulation."""
    model = load_model(assemble([folder / "deployed"], folder / "model"))
    assert (model.classes, model.result.kept.rows) == (expected.description.classes, expected.kept.rows)
    assert model.result.kept.test == pytest.approx(dict(expected.kept.test), abs=1e-6)
    if isinstance(job, TableJob):
        files: Files = {silo: [file.file for file in own.files.values()] for silo, own in job.silos.items()}
        run_job(job, folder / "simulated")
        frames = [one.predict_tables(files).frame for one in (model, load_model(folder / "simulated"))]
        assert frames[0].height > 100
        made = load_model(folder / "deployed" / "insurer" / "run" / "model")  # as the job asks
        assert made.predict_tables(files).frame.equals(frames[0])
        log = (folder / "deployed" / "insurer" / "hub.log").read_text()
        assert "made a model of all silos after round 8" in log
        assert "the weights and the preparation of silo 'bank' go to the hub of silo 'insurer'" in "".join(
            file.read_text() for file in (folder / "deployed" / "bank").glob("*.log")
        )
        assert frames[0].drop("probability of 1").equals(frames[1].drop("probability of 1"))
        assert (frames[0]["probability of 1"] - frames[1]["probability of 1"]).abs().max() < 1e-6  # type: ignore[operator]
    else:
        assert model.predict_held_out().measures == pytest.approx(dict(expected.kept.test), abs=1e-6)


def test_no_path_and_no_key_of_a_site_is_in_what_is_shared(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    federation = LocalFederation.laid_out(job, tmp_path / "deployed")
    shared = (tmp_path / "deployed" / "job.toml").read_text()
    assert ".csv" not in shared
    assert str(tmp_path) not in shared
    again = load_job(tmp_path / "deployed" / "job.toml")
    assert again.silos["hospital"].clients == ["part-0", "part-1", "part-2"]
    assert len(federation.sites) == 3 + 9
    for key in (tmp_path / "deployed").rglob("*.key"):
        assert key.stat().st_mode & 0o077 == 0
