"""Measure whole rounds of the local engine against the plain loop on one thread, interleaved in one run.

    python benchmarks/run.py [--only main|paths|others|codecs|sweep|growth|loading …] [--repeats N] [--seconds S]
                             [--cifar10 DIRECTORY]

Prints tables and writes benchmarks/RESULTS.md and benchmarks/growth.svg with the machine and the date. What is left out
by --only stays as it is in RESULTS.md.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch

import growth
import loading
from arithmetic import product_rate, round_flops
from plain import plain_round
from results import Section, Table, Ways, medians, write_sections
from tdcd.compute import ComputeName, cores
from tdcd.core.codecs import BFloat16, Codec, Float16
from tdcd.core.network import Blocks
from tdcd.engines import LocalEngine
from tdcd.errors import ModelError
from workloads import OTHERS, Workload, workload

HERE = Path(__file__).parent
MAIN: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp 2×128": {"kind": "mlp"},
    "lstm, K=20": {"kind": "lstm", "clients": 20},
    "lstm, K=50": {"kind": "lstm"},
    "cnn on 8×8": {"kind": "cnn-8x8"},
    "cnn on 32×16": {"kind": "cnn-32x16"},
    "cnn with batch norm on 8×8": {"kind": "cnn-batchnorm"},
    "resnet18 on 32×16, N=2, K=10, batch 200": {"kind": "resnet18", "silos": 2, "clients": 10, "batch": 200},
    "linear, Q=1": {"kind": "linear", "local_steps": 1},
    "mlp 2×128, Q=1": {"kind": "mlp", "local_steps": 1},
    "lstm, Q=1": {"kind": "lstm", "local_steps": 1},
}
CODED: dict[str, Codec] = {"float16": Float16(), "bfloat16": BFloat16()}
PATHS = {name: MAIN[name] for name in ("linear", "mlp 2×128", "lstm, K=50", "cnn on 8×8", "linear, Q=1", "lstm, Q=1")}
SWEPT: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear"},
    "mlp 2×128": {"kind": "mlp"},
    "lstm": {"kind": "lstm"},
    "cnn on 8×8": {"kind": "cnn-8x8"},
    "resnet18 of width 8, from N=2, K=10, Q=2, batch 100": {
        "kind": "narrow resnet18",
        "silos": 2,
        "clients": 10,
        "local_steps": 2,
        "batch": 100,
    },
}
SWEEP: dict[str, dict[str, Any]] = {
    "K=10": {"clients": 10}, "K=50": {"clients": 50}, "K=200": {"clients": 200},
    "Q=1": {"local_steps": 1}, "Q=30": {"local_steps": 30}, "N=1": {"silos": 1}, "N=16": {"silos": 16},
}  # fmt: skip


def plain(made: Workload) -> Callable[[], Blocks]:
    """Return a round by the plain loop."""
    return lambda: plain_round(made.blocks, made.round, made.tasks)


def ours(made: Workload, compute: ComputeName = "auto") -> tuple[Callable[[], Blocks], str]:
    """Return a round by the local engine with all cores, and the path it takes; the first, warming round is done."""
    engine, states = LocalEngine(made.training(), compute, workers=cores()), made.states()
    engine.round(states, 1)

    def one_round() -> Blocks:
        return {silo: state.weights for silo, state in engine.round(states, 1)[0].items()}

    return one_round, next(iter(engine.compute_plan.values())).split(" (")[0]


def main_table(options: argparse.Namespace) -> Table:
    """Compare the paths that are chosen by themselves."""
    yield ["workload", "plain loop, ms", "tdcd, ms", "ratio", "path", "limit, ms", "of the limit", "largest difference"]
    rate = product_rate(cores())
    for name, shape in MAIN.items():
        made = workload(**shape)
        way, path = ours(made)
        slow, fast = medians({"plain": plain(made), "ours": way}, options)
        limit = round_flops(made) / rate
        apart = "" if "batch norm" in name or "resnet" in name else f"{difference(plain(made)(), way()):.0e}"
        yield [
            name, f"{1e3 * slow:.1f}", f"{1e3 * fast:.1f}", f"{slow / fast:.1f}×", path, f"{1e3 * limit:.2f}",
            f"{limit / fast:.0%}", apart,
        ]  # fmt: skip


def difference(one: Blocks, two: Blocks) -> float:
    """Return the largest difference of any weight."""
    return max(float((one[silo][name] - two[silo][name]).abs().max()) for silo in one for name in one[silo])


def paths_table(options: argparse.Namespace) -> Table:
    """Compare every path that can compute a workload."""
    names = [name for name in get_args(ComputeName) if name != "auto"]
    yield ["workload", *names]
    for name, shape in PATHS.items():
        made = workload(**shape)
        ways: Ways = {"plain": plain(made)}
        for path in names:
            try:
                ways[path] = ours(made, path)[0]
            except ModelError:
                continue  # not for this network
        record = dict(zip(ways, medians(ways, options, 3), strict=True))
        yield [name, *(f"{record['plain'] / record[path]:.1f}×" if path in record else "–" for path in names)]


def others_table(options: argparse.Namespace) -> Table:
    """Compare modules that no path is made for."""
    yield ["module, N=2, K=20, Q=3, batch 1000", "plain loop, ms", "tdcd, ms", "ratio", "path"]
    for name in OTHERS:
        made = workload(name, silos=2, clients=20, local_steps=3, batch=1000)
        way, path = ours(made)
        slow, fast = medians({"plain": plain(made), "ours": way}, options)
        yield [name, f"{1e3 * slow:.1f}", f"{1e3 * fast:.1f}", f"{slow / fast:.2f}×", path]


def codecs_table(options: argparse.Namespace) -> Table:
    """Compare rounds whose messages are encoded with plain ones."""
    yield ["workload", "plain, ms", *(f"{name}, ms" for name in CODED), *(f"{name} / plain" for name in CODED)]
    for name in ("linear", "mlp 2×128", "lstm, K=20", "lstm, K=50"):
        ways: Ways = {"plain": ours(workload(**MAIN[name]))[0]}
        ways |= {kind: ours(workload(**MAIN[name], codec=codec))[0] for kind, codec in CODED.items()}
        first, *others = medians(ways, options, 4 * options.repeats)
        times = [f"{1e3 * spent:.1f}" for spent in (first, *others)]
        yield [name, *times, *(f"{spent / first:.3f}" for spent in others)]


def sweep_table(options: argparse.Namespace) -> Table:
    """Compare numbers of clients, steps and silos."""
    yield ["ratio (tdcd, ms)", *SWEEP]
    for name, shape in SWEPT.items():
        cells = []
        for change in SWEEP.values():
            made = workload(**{"silos": 4, "clients": 50, "local_steps": 10, **shape, **change})
            way, _ = ours(made)
            slow, fast = medians({"plain": plain(made), "ours": way}, options, 2)
            cells.append(f"{slow / fast:.1f}× ({1e3 * fast:.1f})")
        yield [name, *cells]


def growth_table(_: argparse.Namespace) -> Table:
    """Measure and draw how time and memory grow with the number of clients."""
    yield ["K", "batch", "tdcd, ms", "plain loop, ms", "MB above the data"]
    points = growth.measured()
    for p in points:
        yield [
            f"{p['clients']:,}", f"{p['batch']:,}", f"{1e3 * p['seconds']:.2f}", f"{1e3 * p['plain']:.0f}",
            f"{p['bytes'] / 2**20:.1f}",
        ]  # fmt: skip
    growth.draw(points, HERE / "growth.svg")


def loading_table(options: argparse.Namespace) -> Table:
    """Measure reading, aligning and preparing data."""
    yield ["data", "seconds", "most memory, MB", "the rows as float32, MB", "ratio"]
    for name, p in loading.measured(options.cifar10):
        yield [
            name, f"{p['seconds']:.1f}", f"{p['bytes'] / 1e6:.0f}", f"{p['data'] / 1e6:.0f}",
            f"{p['bytes'] / p['data']:.1f}×",
        ]  # fmt: skip


SECTIONS: dict[str, Section] = {
    "main": (
        "The workloads",
        main_table,
        """N=4, K=50, Q=10, batch 2000 unless said. The limit is what the round's matrix products would take at the rate
of one large product on all cores; nothing else of a round (planning, gathering, activations, averaging) is in it.
Where kernels multiply faster than torch does on a machine, a row may exceed it.""",
    ),
    "paths": ("Every path", paths_table, "Ratios to the plain loop; – where the path is not for the network."),
    "others": ("Any other module", others_table, ""),
    "codecs": ("Half precision", codecs_table, "N=4, Q=10, batch 2000; what travels is rounded, both ways."),
    "sweep": ("Clients, steps and silos", sweep_table, "N=4, K=50, Q=10, batch 2000 except for what the column says."),
    "growth": (
        "Many clients",
        growth_table,
        "One silo of linear models, 25 features, 200,000 samples (20 MB).\n\n![How time and memory grow](growth.svg)",
    ),
    "loading": (
        "Reading data",
        loading_table,
        """`tdcd.load_data` in a process of its own, from starting Python to a federation ready to train; most memory
of the process, of which Python, torch and polars take 250 MB.""",
    ),
}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60, help="stop repeating a workload after so long")
    parser.add_argument("--cifar10", type=Path, help="where the files of CIFAR-10 are, to measure reading them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    write_sections(SECTIONS, options.only, options)


if __name__ == "__main__":
    main()
