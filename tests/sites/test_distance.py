"""Two silos in two network namespaces, with delay between them; where the machine lets us make such."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.runs.store import load_blocks
from tdcd.sites.local_deployment import LocalFederation

SPACES = {"silo-1": ("tdcd-one", "10.77.34.1"), "silo-2": ("tdcd-two", "10.77.34.2")}
DELAY = "15ms"


def do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def apart() -> Iterator[None]:
    if not (shutil.which("ip") and shutil.which("tc") and os.geteuid() == 0):
        pytest.skip("needs ip, tc and root")
    try:
        for space, _ in SPACES.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)  # noqa: S607
            do("ip", "netns", "add", space)
        do("ip", "link", "add", "tdcd-a", "netns", "tdcd-one", "type", "veth", "peer", "tdcd-b", "netns", "tdcd-two")
        for (space, address), device in zip(SPACES.values(), ("tdcd-a", "tdcd-b"), strict=True):
            inside = ("ip", "netns", "exec", space)
            do(*inside, "ip", "link", "set", "lo", "up")
            do(*inside, "ip", "addr", "add", f"{address}/24", "dev", device)
            do(*inside, "ip", "link", "set", device, "up")
            do(*inside, "tc", "qdisc", "add", "dev", device, "root", "netem", "delay", DELAY)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine does not allow it: {error.stderr.decode().strip()}")
    else:
        yield
    finally:
        for space, _ in SPACES.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)  # noqa: S607


@pytest.mark.usefixtures("apart")
def test_silos_far_apart_end_as_the_simulation_does(tmp_path: Path) -> None:
    settings = {
        "data.clients": 2,
        "data.features": {"kind": "contiguous", "silos": 2},
        "baselines": [],
        "training.rounds": 20,
        "training.evaluate_every": 10,
    }
    job = load_job("breast-cancer", settings)
    hosts = {silo: address for silo, (_, address) in SPACES.items()}
    federation = LocalFederation.laid_out(job, tmp_path / "deployed", hosts=hosts)
    for who, site in federation.sites.items():
        with site.log.open("ab") as log:
            command = ["ip", "netns", "exec", SPACES[who.silo][0], *site.command()]
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            federation.processes[who] = subprocess.Popen(command, stderr=log, env=environment)
    code = federation.wait(lambda line: None, seconds=200)
    assert code == 0, "\n".join(site.log.read_text() for site in federation.sites.values())
    expected = run_job(job).federation
    for silo, run in federation.runs.items():
        result = load_blocks(run)[silo]
        for name, tensor in expected.blocks[silo].items():
            assert torch.allclose(result[name], tensor, rtol=0, atol=1e-6)
