"""Measure a deployment on one machine: rounds over TLS, large weights, private alignment. Writes DEPLOYMENT.md.

python benchmarks/deployment.py
"""

import re
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import torch

from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.runs.environment import describe_session
from tdcd.runs.reader import read_history
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity

HERE = Path(__file__).parent
ROUNDS = 200
TIMES = 5
"""How often a round is measured; the median counts."""
IDS = 100_000


def deployed(job: Job, folder: Path, look: Callable[[LocalFederation], None] | None = None) -> LocalFederation:
    """Run a federation to its end; look at its processes while they run."""
    federation = LocalFederation.laid_out(job, folder)
    federation.start(quiet=True)
    hubs = {who: process for who, process in federation.processes.items() if who.client is None}
    while look and any(process.poll() is None for process in hubs.values()):
        look(federation)
    code = federation.wait(print, seconds=3600)
    if code:
        raise SystemExit("\n".join(site.log.read_text() for site in federation.sites.values() if site.log.exists()))
    return federation


def seconds_a_round(history: Any) -> float:
    """Return the time of a round between the first two evaluations after the start."""
    return float((history[2].seconds - history[1].seconds) / (history[2].round - history[1].round))


def rounds(folder: Path) -> str:
    """N = 2, K = 4, a linear model: what a round costs beyond its computation."""
    settings = {
        "data.features": {"kind": "contiguous", "silos": 2},
        "model": {"kind": "linear"},
        "baselines": [],
        "training.rounds": 2 * ROUNDS,
        "training.evaluate_every": ROUNDS,
        "training.checkpoint_every": 10 * ROUNDS,
    }
    job = load_job("breast-cancer", settings, clients=4)
    over_network = []
    for number in range(TIMES):  # others share the machine
        federation = deployed(job, folder / str(number))
        hubs = [seconds_a_round(read_history(run)) for run in federation.runs.values()]
        over_network.append(max(hubs))
    simulated = seconds_a_round(run_job(job).federation.history)
    return (
        f"| a round, N = 2, K = 4 each, linear model, ten processes | {1000 * median(over_network):.1f} ms (median of "
        f"{TIMES}: {1000 * min(over_network):.1f} to {1000 * max(over_network):.1f}), of which "
        f"{1000 * simulated:.2f} ms is what the simulation takes |"
    )


def large(folder: Path) -> str:
    """ResNet18: weights to and from four clients a silo, and the hub's memory."""
    settings = {
        "model": {"kind": "resnet18"},
        "baselines": [],
        "training.rounds": 6,
        "training.local_steps": 1,
        "training.batch_size": 64,
        "training.evaluate_every": 3,
        "training.checkpoint_every": 100,
        "deployment.client_deadline": 600,
    }
    peak: dict[Identity, int] = {}

    def look(federation: LocalFederation) -> None:
        for who, process in federation.processes.items():
            if who.client is None and (most := high_water(process.pid)):
                peak[who] = max(peak.get(who, 0), most)

    federation = deployed(load_job("digits", settings, clients=4), folder, look)
    history = read_history(next(iter(federation.runs.values())))
    block = sum(t.stat().st_size for t in next(iter(federation.runs.values())).glob("blocks/*.safetensors"))
    time = seconds_a_round(history)
    return (
        f"| ResNet18, {block / 1e6:.0f} MB of weights to and from 4 clients a silo | {time:.1f} s a round; a hub's "
        f"memory at its highest {max(peak.values()) / 1e6:.0f} MB |"
    )


def high_water(pid: int) -> int:
    """Return the most memory that a process has had, in bytes."""
    try:
        match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return 1024 * int(match[1]) if match else 0


def alignment(folder: Path) -> str:
    """Three hubs with 100,000 IDs each, half in common."""
    folder.mkdir()
    generator = np.random.default_rng(1)
    common = np.arange(IDS // 2)
    lines = [
        'labels = { silo = "a", sharing = "shared" }\n[data]\nsource = "tables"\n[model]\nkind = "linear"',
        '[training]\nloss = "binary-cross-entropy"\nrounds = 1\nlocal_steps = 1\nbatch_size = 100\nrate = 0.1',
        "[deployment]\nclient_deadline = 600\nhub_deadline = 1200",
    ]
    for number, silo in enumerate("abc"):
        own = np.arange(IDS // 2) + (number + 1) * IDS
        ids = generator.permutation(np.concatenate([common, own]))
        columns = {"id": [f"customer-{identity}" for identity in ids], "x": generator.normal(size=IDS)}
        if silo == "a":
            columns["y"] = generator.integers(0, 2, IDS)
        pl.DataFrame(columns).write_csv(folder / f"{silo}.csv")
        label = '\nlabel = "y"' if silo == "a" else ""
        lines.append(f'[silos.{silo}]\nid = "id"{label}\nclients = {{ all = "{silo}.csv" }}')
    (folder / "job.toml").write_text("\n".join(lines))
    job = load_job(folder / "job.toml")
    federation = deployed(job, folder / "deployed")
    parts = [federation.sites[Identity(silo)].log.read_text() for silo in "abc"]
    result = [re.search(r"([\d,]+) IDs are in all silos, found in ([\d.]+) s", text) for text in parts]
    seconds = max(float(match[2]) for match in result if match)
    counts = {match[1] for match in result if match}
    if counts != {f"{IDS // 2:,}"}:
        raise SystemExit(f"the hubs found {counts} common IDs")
    return f"| private alignment, 3 hubs with {IDS:,} IDs each, {IDS // 2:,} in common | {seconds:.0f} s |"


def main() -> None:
    """Measure, print and write."""
    here = describe_session()
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for measure in (rounds, large, alignment):
            lines.append(measure(Path(folder) / measure.__name__))
            print(lines[-1], flush=True)
    text = f"""# Measured deployments

Every hub and client a process of its own on one machine, mutual TLS over loopback. Made by
`python benchmarks/deployment.py`; other programs share the machine.

{here.processor}, {here.cores} cores; torch {torch.__version__}; {datetime.now(UTC):%Y-%m-%d}.

| what | measured |
|---|---|
""" + "".join(f"{line}\n" for line in lines)
    (HERE / "DEPLOYMENT.md").write_text(text)


if __name__ == "__main__":
    main()
