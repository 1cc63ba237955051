"""Real processes that somebody means harm: nothing that comes over the network ends one."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tdcd.jobs.load import load_job
from tdcd.runs.reader import read_history
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity

SETTINGS = {
    "data.clients": 2,
    "data.features": {"kind": "contiguous", "silos": 2},
    "baselines": [],
    "training.rounds": 12,
    "training.batch_size": 64,
    "training.evaluate_every": 3,
}
CONNECTIONS = 6000
"""Before certificates were kept, hubs ended after 50 to 2,150 of them."""


def connect(address: str, process: "subprocess.Popen[bytes]", seconds: float = 60.0) -> socket.socket:
    host, _, port = address.rpartition(":")
    end = time.monotonic() + seconds
    while True:
        assert process.poll() is None, f"the hub ended by {process.returncode}"
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except OSError:
            assert time.monotonic() < end, f"nobody answers at {address}"
            time.sleep(0.05)


def test_bare_connections_do_not_end_a_hub(tmp_path: Path) -> None:
    federation = LocalFederation.laid_out(load_job("breast-cancer", SETTINGS), tmp_path)
    silo = min(federation.runs)
    site = federation.sites[Identity(silo)]
    process = site.start(quiet=True)
    address = next(line.split('"')[1] for line in site.file.read_text().splitlines() if line.startswith("listen"))
    try:
        connect(address, process).close()
        for number in range(CONNECTIONS):
            line = connect(address, process)
            if number % 3 == 0:
                line.sendall(b"GET / HTTP/1.1\r\n\r\n")
            line.close()
        time.sleep(0.5)
        assert process.poll() is None, f"the hub ended by {process.returncode}"
        command = [sys.executable, "-m", "tdcd", "status", str(site.file)]
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert asked.returncode == 0, asked.stderr
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("model", [{"kind": "linear"}, {"kind": "mlp", "hidden": [4]}])
def test_sums_that_do_not_fit_do_not_end_a_client(tmp_path: Path, model: dict[str, object]) -> None:
    job = load_job("breast-cancer", SETTINGS | {"model": model})
    federation = LocalFederation.laid_out(job, tmp_path)
    hub, hurt = Identity(min(federation.runs)), Identity(min(federation.runs), "silo-1-1")
    federation.start(quiet=True)
    federation.processes[hub].kill()
    federation.processes[hub].wait()
    site = federation.sites[hub]
    command = [sys.executable, str(Path(__file__).with_name("hostile_hub.py")), *site.command()[4:]]
    with site.log.open("ab") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        federation.processes[hub] = subprocess.Popen(command, stderr=log, env=environment)
    try:
        code = federation.wait(lambda line: None, seconds=120)
        logs = "\n".join(file.read_text() for file in tmp_path.rglob("*.log"))
        assert code == 0, logs
        assert federation.processes[hurt].returncode == 0, logs
        assert federation.sites[hurt].log.read_text().count("cannot do 'descend'") == 7, logs
        history = read_history(federation.runs[hub.silo])
        assert history[-1].round == 12
        assert history[-1].train["loss"] < history[0].train["loss"]
    finally:
        federation.kill()
