"""Measure whole rounds of the local engine against the plain loop on one thread, interleaved in one run.

    python benchmarks/run.py [WORKLOAD …] [--repeats N]

Prints a table and writes benchmarks/RESULTS.md with the machine and the date.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from plain import plain_round
from tdcd.compute import cores
from tdcd.engines import LocalEngine
from tdcd.training.environment import environment
from workloads import Workload, workload

WORKLOADS: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp": {"kind": "mlp"},
    "lstm, K=20": {"kind": "lstm", "clients": 20},
    "lstm, K=50": {"kind": "lstm"},
    "cnn on 8×8": {"kind": "cnn-8x8"},
    "linear, Q=1": {"kind": "linear", "local_steps": 1},
    "mlp, Q=1": {"kind": "mlp", "local_steps": 1},
    "lstm, Q=1": {"kind": "lstm", "local_steps": 1},
    "linear, K=100,000": {"kind": "linear", "silos": 1, "clients": 100_000, "samples": 200_000},
}


def seconds(function: Callable[[], object], least: float = 0.1) -> float:
    """Return how long a call takes when it follows others like it, as in a training."""
    calls, passed, start = 0, 0.0, time.perf_counter()
    while passed < least:
        function()
        calls, passed = calls + 1, time.perf_counter() - start
    return passed / calls


def measure(name: str, made: Workload, repeats: int) -> list[str]:
    """Return a row of the table."""
    engine = LocalEngine(made.tasks, workers=cores())
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: plain_round(made.blocks, made.round, made.tasks),
        "ours": lambda: engine.round(made.blocks, made.round),
    }
    one, two = (way() for way in ways.values())
    apart = max(float((one[s][n] - two[s][n]).abs().max()) for s in one for n in one[s])
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, function in ways.items():
            times[way].append(seconds(function))
    plain, ours = (statistics.median(times[way]) for way in ways)
    path = next(iter(engine.paths.values())).split(" ")[0]
    return [name, f"{1e3 * plain:.1f}", f"{1e3 * ours:.1f}", f"{plain / ours:.1f}×", path, f"{apart:.0e}"]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), help=f"of: {'; '.join(WORKLOADS)}")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    header = ["workload", "plain loop, ms", "tdcd, ms", "ratio", "path", "largest difference"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    print("\n".join(lines), flush=True)
    for name in options.workloads:
        lines.append("| " + " | ".join(measure(name, workload(**WORKLOADS[name]), options.repeats)) + " |")
        print(lines[-1], flush=True)
    machine = environment()
    text = f"""# Measured speed

Whole rounds (deal, embed, exchange, Q steps, average), float32, against the plain loop (`plain.py`) on one thread in
the same run, interleaved; median of {options.repeats}. N=4, K=50, Q=10, batch 2000 unless said; K=100,000 has one silo.
Made by `make bench`. The plain loop adds up its clients in float32, which shows as its difference at K=100,000.

{machine["processor"]}, {machine["cores"]} cores; torch {machine["packages"]["torch"]}; {datetime.now(UTC):%Y-%m-%d}.

"""
    Path(__file__).with_name("RESULTS.md").write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
