"""How sites end when others do: a silo that is gone for good, and a client that was away at the end."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.runs.reader import read_history
from tdcd.runs.store import load_blocks
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity

SETTINGS = {
    "data.clients": 2,
    "data.features": {"kind": "contiguous", "silos": 3},
    "model": {"kind": "linear"},
    "compute": "loop",  # to the bit on every machine
    "baselines": [],
    "training.batch_size": 64,
    "training.evaluate_every": 20,
    "training.checkpoint_every": 5,
}
AWAY = 75


def until(done: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.02)


def reached(run: Path, number: int) -> bool:
    return (run / "history.jsonl").exists() and any(line.round >= number for line in read_history(run))


def codes(processes: dict[Identity, "subprocess.Popen[bytes]"]) -> dict[str, int | None]:
    return {str(who): process.poll() for who, process in processes.items()}


@pytest.mark.parametrize("gone", ["silo-1", "silo-3"], ids=["the chair", "another"])
def test_a_silo_that_is_gone_for_good(gone: str, tmp_path: Path) -> None:
    deadline = 5.0
    more = {"training.rounds": 60, "deployment.hub_deadline": deadline, "deployment.client_deadline": 2.0}
    job = load_job("breast-cancer", SETTINGS | more)
    federation = LocalFederation.laid_out(job, tmp_path)
    federation.start(quiet=True)
    others = {who: process for who, process in federation.processes.items() if who.silo != gone}
    try:
        until(lambda: all(reached(run, 20) for run in federation.runs.values()), "all hubs have trained for a while")
        for who in sorted(set(federation.sites) - set(others), key=lambda who: who.client or ""):  # its hub first
            federation.processes[who].kill()
            federation.processes[who].wait()
        until(lambda: all(process.poll() is not None for process in others.values()), "all end", deadline + 10)
        assert codes(others) == {str(who): AWAY for who in others}
        for who in others:
            last = federation.sites[who].log.read_text().splitlines()[-1]
            assert f"silo '{gone}'" in last
            assert "start the hubs again, and they go on" in last
        federation.start(quiet=True)
        assert federation.wait(lambda line: None, seconds=120) == 0
    finally:
        federation.kill()
    simulated = run_job(job).federation.blocks
    for silo, run in federation.runs.items():
        assert "goes on after round" in federation.sites[Identity(silo)].log.read_text()
        for name, tensor in load_blocks(run)[silo].items():
            torch.testing.assert_close(tensor, simulated[silo][name], rtol=0, atol=0)


def test_a_client_that_was_away_at_the_end_is_told(tmp_path: Path) -> None:
    more = {"training.rounds": 60, "deployment.client_deadline": 30.0}
    job = load_job("breast-cancer", SETTINGS | more)
    federation = LocalFederation.laid_out(job, tmp_path)
    who, hub = Identity("silo-2", "silo-2-1"), Identity("silo-2")
    log = federation.sites[hub].log
    federation.start(quiet=True)
    try:
        until(lambda: reached(federation.runs["silo-2"], 20), "the hub has trained for a while")
        federation.processes[who].kill()
        federation.processes[who].wait()
        until(lambda: "to tell silo-2-1 that" in log.read_text(), "the hub waits for it")
        assert federation.processes[hub].poll() is None
        federation.processes[who] = federation.sites[who].start(quiet=True)
        until(lambda: all(p.poll() is not None for p in federation.processes.values()), "all have ended", 25.0)
        assert set(codes(federation.processes).values()) == {0}
        # A hub that is started again has nobody to tell.
        federation.processes[hub] = federation.sites[hub].start(quiet=True)
        assert federation.processes[hub].wait(25) == 0
        # One that is back later still hears it from its hub, when that is started again.
        (federation.runs["silo-2"] / "informed.json").write_text('["silo-2-2"]')
        for again in (hub, who):
            federation.processes[again] = federation.sites[again].start(quiet=True)
        assert federation.processes[who].wait(25) == 0
        assert "the training is finished" in federation.sites[who].log.read_text().splitlines()[-1]
        assert federation.processes[hub].wait(10) == 0
    finally:
        federation.kill()
