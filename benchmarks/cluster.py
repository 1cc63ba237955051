"""Measure the engine on a cluster of two nodes on this machine, one core each; writes benchmarks/RESULTS.md.

    python benchmarks/cluster.py [--only rounds|flower|memory|million|larger|scaling …] [--flower PYTHON] [--short]

``rounds`` compares with the local engine on the same cores, ``flower`` with Flower's simulation on Ray, run by a
Python that has Flower (another environment: pip install 'flwr[simulation]' torch). ``memory`` follows what the
processes hold over 10,000 rounds and draws docs/cluster-memory.svg. ``million`` trains a million clients, ``larger``
more rows than the driver has memory for. ``scaling`` fits what a round costs and predicts larger clusters. With --short
all is smaller, to try whether it runs.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from matplotlib import pyplot as plt

import tdcd
from growth import forget, peak
from nodes import Nodes, command_of
from results import Section, Table, Ways, medians, write_sections
from tdcd.cluster.engine import ClusterEngine
from tdcd.cluster.fold import group_count
from tdcd.core.state import States
from tdcd.engines import LocalEngine
from workloads import Workload, workload

ROOT = Path(__file__).parents[1]
SHAPES: dict[str, dict[str, Any]] = {
    "lstm": {"kind": "lstm", "clients": 200},
    "mlp 2×128": {"kind": "mlp", "clients": 200},
    "linear": {"kind": "linear", "clients": 200},
}
FLOWER = {"clients": 50, "rows": 1000, "batch": 40, "steps": 10, "rounds": 10, "rate": 0.01}
NETWORK = 10e9 / 8, 1e-4
"""Bytes a second and seconds of latency of the network that is predicted for."""


@contextmanager
def engines(made: Workload, nodes: Nodes) -> Iterator[ClusterEngine]:
    """Open a workload on a cluster that this process has joined, or joins."""
    from tdcd.cluster.ray_fleet import connect

    engine = ClusterEngine(made.training(), connect(nodes.address))
    try:
        yield engine
    finally:
        engine.close()


def rounds_table(options: argparse.Namespace) -> Table:
    """Compare with the local engine on as many cores."""
    yield ["workload", "local, ms", "cluster, ms", "ratio", "compute", "transfer", "waiting"]
    with Nodes(2, pinned=True) as nodes:
        for name, shape in SHAPES.items():
            made = workload(**shape)
            local, states = LocalEngine(made.training(), workers=2), made.states()
            with engines(made, nodes) as cluster:
                for engine in (local, cluster):
                    engine.compute_round(states, made.round)
                cluster.times = type(cluster.times)()
                ways: Ways = {
                    "local": partial(local.compute_round, states, made.round),
                    "cluster": partial(cluster.compute_round, states, made.round),
                }
                one, two = medians(ways, options, least=0.2 if options.short else 2.0)
                usage = cluster.usage
            spent = (usage.computing, usage.transfer, usage.waiting)
            shares = (f"{part / usage.seconds:.0%}" for part in spent)
            yield [name, f"{1e3 * one:.1f}", f"{1e3 * two:.1f}", f"{two / one:.2f}×", *shares]


def flower_table(options: argparse.Namespace) -> Table:
    """Compare rounds of FedAvg with Flower's simulation."""
    yield ["FedAvg, MLP 2×128, K=50, 10 steps on 40 rows each", "rounds a second", "ratio"]
    if options.flower is None:
        yield ["not measured: no Python with Flower was named by --flower", "", ""]
        return
    made = workload("mlp", silos=1, clients=50)
    with Nodes(2) as nodes, engines(made, nodes) as cluster:
        states = made.states()
        cluster.compute_round(states, made.round)
        ours = 1 / medians({"ours": partial(cluster.compute_round, states, made.round)}, options, least=1.0)[0]
    shape = FLOWER | {"rounds": 3 if options.short else 10}
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    command = [options.flower, str(Path(__file__).with_name("flower_fedavg.py")), json.dumps(shape)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)  # noqa: S603
    if done.returncode:
        yield [f"not measured: Flower failed: {done.stderr.strip().splitlines()[-1]}", "", ""]
        return
    theirs = 1 / statistics.median(json.loads(done.stdout.strip().splitlines()[-1]))
    yield ["Flower's simulation", f"{theirs:.2f}", ""]
    yield ["tdcd", f"{ours:.1f}", f"{ours / theirs:.0f}×"]


def private(process: int) -> float:
    """Return the megabytes of memory that a process shares with no other."""
    resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * 4096 / 2**20


def memory_table(options: argparse.Namespace) -> Table:
    """Follow the memory of driver, hubs and bundles."""
    rounds = 600 if options.short else 10_000
    made = workload("linear", silos=2, clients=32, local_steps=2, batch=200, samples=2000)
    times, held = [], dict[str, list[float]]()
    with Nodes(2) as nodes, engines(made, nodes) as cluster:
        hosts = [process for number in range(2) for process in nodes.hosts(number)]
        names = {os.getpid(): "driver"}
        for process in hosts:
            kind = "hub" if "Hub" in command_of(process) else "bundle"
            names[process] = f"{kind} {sum(name.startswith(kind) for name in names.values()) + 1}"
        states: States = made.states()
        for number in range(1, rounds + 1):
            states = cluster.compute_round(states, made.round)
            if number % (rounds // 50) == 0:
                times.append(number)
                for process, name in names.items():
                    held.setdefault(name, []).append(private(process))
    draw_memory(times, held, ROOT / "docs" / "cluster-memory.svg")
    yield [
        "process",
        f"MB after {times[5]:,} rounds",
        f"after {rounds:,}",
        "MB in 1,000 rounds, fitted to the second half",
    ]
    for name, sizes in held.items():
        half = len(times) // 2
        slope = np.polyfit(times[half:], sizes[half:], 1)[0] * 1000
        yield [name, f"{sizes[5]:.1f}", f"{sizes[-1]:.1f}", f"{slope:+.2f}"]


def draw_memory(times: list[int], held: dict[str, list[float]], path: Path) -> None:
    """Draw memory against rounds."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "tdcd"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    colours = {"driver": "#0072b2", "hub": "#d55e00", "bundle": "#009e73"}
    seen = set()
    for name, sizes in held.items():
        kind = name.partition(" ")[0]
        axes.plot(times, sizes, color=colours[kind], label=None if kind in seen else kind)
        seen.add(kind)
    axes.set(
        xlabel="rounds",
        ylabel="MB of its own",
        ylim=(0, 1.15 * max(map(max, held.values()))),
        title="Memory of the processes of a training",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def million_table(options: argparse.Namespace) -> Table:
    """Train a million clients, each with two rows, in two silos."""
    clients, rows = (20_000, 40_000) if options.short else (1_000_000, 2_000_000)
    batch = rows // 10
    yield ["clients", "rows", "batch", "opening, s", "round, s", "driver, MB", "node 1 above its data, MB", "node 2"]
    forget()
    made = workload("linear", silos=2, clients=clients, samples=rows, batch=batch, local_steps=2)
    data = sum(task.features.nbytes for task in made.tasks.values()) / 2**20
    with Nodes(2, store=4 << 30) as nodes:
        begun = time.perf_counter()
        with engines(made, nodes) as cluster:
            opening = time.perf_counter() - begun
            states, times = made.states(), []
            cluster.compute_round(states, made.round)
            for _ in range(3):
                begun = time.perf_counter()
                cluster.compute_round(states, made.round)
                times.append(time.perf_counter() - begun)
            above = [sum(map(private, nodes.hosts(number))) - data / 2 for number in range(2)]
    yield [
        f"{2 * clients:,}" if options.short else f"{clients:,} in each silo", f"{rows:,}", f"{batch:,}",
        f"{opening:.0f}", f"{statistics.median(times):.2f}", f"{peak() / 2**20:.0f}", *(f"{own:.0f}" for own in above),
    ]  # fmt: skip


def larger_table(options: argparse.Namespace) -> Table:
    """Train on rows that the driver could not hold: the system refuses it more memory."""
    rows, columns, room = (20_000, 64, 1 << 30) if options.short else (1_000_000, 512, 512 << 20)
    yield [
        "rows of all silos, MB",
        "what the driver may add, MB",
        "what it added, MB",
        "on each node, MB",
        "rounds",
        "loss",
    ]
    generator = np.random.default_rng(0)
    with TemporaryDirectory() as scratch, Nodes(2, store=2 << 30) as nodes:
        silos, label = [], np.zeros(rows, dtype=np.float32)
        for name in ("bank", "insurer"):
            file = Path(scratch, f"{name}.npy")
            stored = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(rows, columns))
            for start in range(0, rows, 50_000):
                piece = generator.normal(size=(min(50_000, rows - start), columns)).astype(np.float32)
                stored[start : start + len(piece)] = piece
                label[start : start + len(piece)] += piece[:, 0]
            del stored, piece
            silos.append(tdcd.Silo(name, tdcd.ArrayFile(file), [range(rows)[k::200] for k in range(200)]))
        federation = tdcd.Federation.from_silos(silos, (label > 0).astype(np.int64))
        settings = tdcd.Settings(
            loss="binary-cross-entropy", rounds=20, local_steps=5, batch_size=20_000, rate=0.3, evaluate_every=20
        )
        data = 2 * rows * columns * 4
        before = private(os.getpid())
        now = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
        _, hard = limits = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (now + room, hard))
        held = []
        forget()

        class Look(tdcd.Callback):
            def after_round(self, _: Any) -> None:
                held.append([sum(map(private, nodes.hosts(number))) for number in range(2)])

        try:
            result = tdcd.train(
                federation, tdcd.models.Linear(), settings, engine="ray", address=nodes.address, callbacks=[Look()]
            )
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
        added = peak() / 2**20 - before
        sizes = " and ".join(f"{size:.0f}" for size in held[-1])
        yield [
            f"{data / 2**20:,.0f}",
            f"{room / 2**20:.0f}",
            f"{added:.0f}",
            sizes,
            str(len(held)),
            f"{result.final.train['loss']:.3f}",
        ]


@dataclass(frozen=True)
class Point:
    """A federation of one shape on so many nodes."""

    nodes: int
    clients: int
    batch: int
    silos: int = 2

    def row(self) -> npt.NDArray[np.float64]:
        """Return what its round is made of, see docs/scaling.md."""
        active = self.clients * -np.expm1(-self.batch / self.clients)
        work = np.array([group_count(self.clients), active, self.batch]) * self.silos / self.nodes
        return np.array([1.0, self.calls, *work, self.silos * self.batch * (self.nodes > 1)])

    @property
    def calls(self) -> float:
        """Those that wait for each other: the share of a node that has a hub or more; else the driver's and a hub's."""
        if self.nodes <= self.silos:
            return self.silos * (2 * self.nodes + self.silos) / self.nodes
        return 2 * self.silos + 2 * self.nodes


COSTS = (
    *("of a round", "of a call", "of a group of clients", "of a client with rows", "of a row"),
    "of a row from another node",
)
FITTED = [Point(1, 1_000, 2_000), Point(1, 1_000, 50_000), Point(1, 100_000, 2_000), Point(1, 100_000, 100_000),
          Point(1, 1_000, 2_000, 6), Point(2, 1_000, 2_000), Point(2, 1_000, 2_000, 6),
          Point(2, 100_000, 100_000)]  # fmt: skip
CHECKED = [Point(1, 10_000, 20_000), Point(1, 200_000, 50_000), Point(2, 10_000, 20_000), Point(2, 200_000, 50_000)]
ROWS = 400_000


def round_seconds(points: list[Point], options: argparse.Namespace) -> dict[Point, float]:
    """Measure the time of a round of each federation, on one node or on two."""
    result = {}
    for count in sorted({point.nodes for point in points}):
        with Nodes(count, pinned=True) as nodes:
            for point in (point for point in points if point.nodes == count):
                made = workload(
                    "linear",
                    silos=point.silos,
                    clients=point.clients,
                    samples=ROWS,
                    batch=point.batch,
                    local_steps=5,
                )
                with engines(made, nodes) as cluster:
                    states = made.states()
                    cluster.compute_round(states, made.round)
                    way: Ways = {"": partial(cluster.compute_round, states, made.round)}
                    result[point] = medians(way, options, least=0.2 if options.short else 1.0)[0]
    return result


def scaling_table(options: argparse.Namespace) -> Table:
    """Fit what a round costs, check it on other sizes, and predict larger clusters."""
    fitted, checked = round_seconds(FITTED, options), round_seconds(CHECKED, options)
    costs = _least_squares(np.array([point.row() / seconds for point, seconds in fitted.items()]))
    yield ["", "measured", "by the formula", "ratio"]
    for name, cost in zip(COSTS, costs, strict=True):
        yield [f"cost {name}", "", f"{1e6 * cost:.3f} µs", ""]
    for point, seconds in (*fitted.items(), *checked.items()):
        said = float(point.row() @ costs)
        what = "fitted" if point in fitted else "not fitted"
        yield [f"{_shape(point)} ({what})", f"{1e3 * seconds:.1f} ms", f"{1e3 * said:.1f} ms", f"{said / seconds:.2f}"]
    bandwidth, latency = NETWORK
    for clients in (10**3, 10**4, 10**5, 10**6, 10**7):
        for count in (1, 10, 100, 1000):
            point = Point(count, clients, max(2_000, clients // 10))
            if count > group_count(clients):
                continue
            parts = point.row() * costs
            computed = float(parts.sum())
            received = 2 * count * point.silos * 10 * 26 * 8 + 2 * point.silos * 4 * point.batch
            carried = (received / bandwidth + 8 * latency) * (count > 1)
            limits = {
                "the network": carried,
                "calls": parts[1],
                "rows between nodes": parts[5],
                "computing": parts[2:5].sum(),
            }
            rate = f"{1 / (computed + carried):,.1f} rounds a second; {max(limits, key=lambda what: limits[what])}"
            yield [f"{_shape(point)} (predicted)", "", f"{1e3 * (computed + carried):.1f} ms", rate]


def _shape(point: Point) -> str:
    nodes = f"{point.nodes:,} node{'s' * (point.nodes > 1)}"
    return f"{nodes}, {point.silos} silos of {point.clients:,} clients, batch {point.batch:,}"


def _least_squares(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the costs that are not negative and explain all measurements, each scaled to 1, best."""
    from scipy.optimize import nnls

    result: npt.NDArray[np.float64] = nnls(rows, np.ones(len(rows)))[0]
    return result


SECTIONS: dict[str, Section] = {
    "rounds": (
        "A cluster beside the local engine",
        rounds_table,
        """Two nodes of Ray with one core each, on one machine, against the local engine with two threads: N=4, K=200,
Q=10, batch 2000; interleaved, medians. Compute is the slowest bundle's, waiting that of hubs for each other, transfer
the rest.""",
    ),
    "flower": (
        "A cluster beside Flower",
        flower_table,
        "Both simulate on Ray on two cores; rounds after the first, which starts processes.",
    ),
    "memory": (
        "Memory over many rounds",
        memory_table,
        """Memory that a process shares with no other, N=2, K=32, linear models.

![How memory goes](../docs/cluster-memory.svg)""",
    ),
    "million": (
        "A million clients",
        million_table,
        "Two silos of linear models on 25 columns, Q=2, two nodes of one core; a client holds two rows on average.",
    ),
    "larger": (
        "Rows larger than the driver's memory",
        larger_table,
        """Two silos of a million rows of 512 columns in .npy files, two nodes; the system limits the driver's memory
(RLIMIT_DATA) before the training begins.""",
    ),
    "scaling": (
        "What a round costs on a cluster",
        scaling_table,
        "Linear models, Q=5, nodes of one core; see [docs/scaling.md](../docs/scaling.md) for the formula.",
    ),
}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--flower", metavar="PYTHON", help="a Python that has Flower")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="stop repeating a measurement after so long")
    parser.add_argument("--short", action="store_true", help="small sizes, to try whether it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write_sections(SECTIONS, options.only, options)


if __name__ == "__main__":
    main()
