"""Real processes whose lines are cut, held, slowed down and damaged: it costs retries, never a process."""

import random
from pathlib import Path

import pytest
import torch

from chaos import HARMS, Lines
from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.runs.reader import read_history
from tdcd.runs.store import load_blocks
from tdcd.sites.local_deployment import LocalFederation

SETTINGS = {
    "data.clients": 2,
    "data.features": {"kind": "contiguous", "silos": 2},
    "model": {"kind": "linear"},
    "compute": "loop",  # to the bit on every machine
    "baselines": [],
    "training.rounds": 150,
    "training.batch_size": 64,
    "training.evaluate_every": 10,
    "deployment.client_deadline": 5.0,
    "deployment.hub_deadline": 120,
}


@pytest.mark.parametrize("of", ["clients", "peers"])
def test_whatever_happens_to_a_line_no_process_ends(of: str, tmp_path: Path) -> None:
    """Every kind of harm, to lines of clients or of hubs, twice."""
    federation = LocalFederation.laid_out(load_job("breast-cancer", SETTINGS), tmp_path)
    lines = Lines(federation, random.Random(5))  # noqa: S311
    relays = list((lines.clients if of == "clients" else lines.peers).values())
    federation.start(quiet=True)
    hubs = [process for who, process in federation.processes.items() if who.client is None]
    try:
        for number, how in enumerate(2 * HARMS):
            while not lines.harm(relays[number % len(relays)], how, 0.3):  # until there is a line to harm
                assert all(process.poll() is None for process in hubs)
        code = federation.wait(lambda line: None, seconds=200)
        logs = "\n".join(file.read_text() for file in tmp_path.rglob("*.log"))
        assert code == 0, logs
        assert "Traceback" not in logs
        histories = [read_history(run) for run in federation.runs.values()]
        assert [history[-1].round for history in histories] == [150, 150]
        assert [line.train for line in histories[0]] == [line.train for line in histories[1]]
    finally:
        federation.kill()


def test_a_slow_line_costs_time_and_nobody(tmp_path: Path) -> None:
    """Weights that take longer to travel than a client's deadline: as long as bytes come, it is waited for."""
    slow = {
        "data.clients": 1,
        "model": {"kind": "mlp", "hidden": [900, 120]},
        "training.rounds": 1,
        "training.evaluate_every": 1,
        "deployment.client_deadline": 1.5,
    }
    job = load_job("breast-cancer", SETTINGS | slow)
    federation = LocalFederation.laid_out(job, tmp_path)
    Lines(federation, random.Random(5), rate=256_000)  # noqa: S311 - 0.5 MB of weights take 2 s
    federation.start(quiet=True)
    try:
        assert federation.wait(lambda line: None, seconds=120) == 0
    finally:
        federation.kill()
    assert "left out" not in "\n".join(file.read_text() for file in tmp_path.rglob("*.log"))
    blocks = run_job(job).federation.blocks
    for silo, run in federation.runs.items():
        for name, tensor in load_blocks(run)[silo].items():
            torch.testing.assert_close(tensor, blocks[silo][name], rtol=0, atol=0)
