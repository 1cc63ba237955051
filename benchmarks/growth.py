"""How the time and the memory of a round grow with the number of clients, one silo of linear models.

python benchmarks/growth.py CLIENTS BATCH   # one point, as JSON: run in a process of its own to see its memory
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt

from plain import plain_round
from tdcd.compute import cores
from tdcd.engines import LocalEngine
from workloads import workload

CLIENTS = (10, 100, 1_000, 10_000, 100_000)
BATCHES = (2_000, 20_000)
SAMPLES = 200_000


def peak() -> int:
    """Return the most memory this process has had since the last call of ``forget``, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def forget() -> None:
    """Let the most be what it is now."""
    Path("/proc/self/clear_refs").write_text("5")


def point(clients: int, batch: int) -> dict[str, float]:
    """Measure one number of clients."""
    torch.set_num_threads(1)
    made = workload("linear", silos=1, clients=clients, samples=SAMPLES, batch=batch)
    forget()
    before = peak()
    engine, states = LocalEngine(made.training(), workers=cores()), made.states()
    engine.round(states, 1)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        engine.round(states, 1)
        times.append(time.perf_counter() - start)
    above = peak() - before
    start = time.perf_counter()
    plain_round(made.blocks, made.round, made.tasks)
    return {
        "clients": clients,
        "batch": batch,
        "seconds": sorted(times)[len(times) // 2],
        "plain": time.perf_counter() - start,
        "bytes": above,
        "data": sum(task.features.nbytes for task in made.tasks.values()),
    }


def measured() -> list[dict[str, float]]:
    """Measure every point, each in a process of its own."""
    result = []
    for batch in BATCHES:
        for clients in CLIENTS:
            command = [sys.executable, __file__, str(clients), str(batch)]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
            result.append(json.loads(text))
            print(text.strip(), flush=True)
    return result


def draw(points: list[dict[str, float]], path: Path) -> None:
    """Draw time and memory against the number of clients."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tdcd"
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for batch, colour in zip(BATCHES, ("#0072b2", "#d55e00"), strict=True):
        own = [p for p in points if p["batch"] == batch]
        clients = [p["clients"] for p in own]
        left.plot(clients, [1e3 * p["seconds"] for p in own], "o-", color=colour, label=f"tdcd, batch {batch:,}")
        left.plot(clients, [1e3 * p["plain"] for p in own], "s:", color=colour, label=f"plain loop, batch {batch:,}")
        right.plot(clients, [p["bytes"] / 2**20 for p in own], "o-", color=colour, label=f"tdcd, batch {batch:,}")
    left.set(xscale="log", yscale="log", xlabel="clients K", ylabel="milliseconds a round", title="Time")
    right.set(xscale="log", xlabel="clients K", ylabel="MB above the data", title="Memory", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    print(json.dumps(point(int(sys.argv[1]), int(sys.argv[2]))))
