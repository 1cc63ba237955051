"""What benchmarks have in common: how they measure side by side, and the sections of RESULTS.md that they write."""

import argparse
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from arithmetic import product_rate
from tdcd.compute import cores
from tdcd.runs.environment import describe_session

RESULTS = Path(__file__).parent / "RESULTS.md"
Table = Iterator[list[str]]
Ways = dict[str, Callable[[], object]]
Section = tuple[str, Callable[[argparse.Namespace], Table], str]
"""Its title, what makes its rows, and what is said before them."""


def seconds(function: Callable[[], object], least: float = 0.1) -> float:
    """Return how long a call takes when it follows others like it, as in a training."""
    calls, passed, start = 0, 0.0, time.perf_counter()
    while passed < least:
        function()
        calls, passed = calls + 1, time.perf_counter() - start
    return passed / calls


def medians(ways: Ways, options: argparse.Namespace, repeats: int | None = None, least: float = 0.1) -> list[float]:
    """Return each way's median, measured in turn; slow ones less often, but once at least."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    start = time.perf_counter()
    for _ in range(repeats or options.repeats):
        for way, function in ways.items():
            times[way].append(seconds(function, least))
        if time.perf_counter() - start > options.seconds:
            break
    return [statistics.median(result) for result in times.values()]


def write_sections(sections: Mapping[str, Section], chosen: Sequence[str], options: argparse.Namespace) -> None:
    """Measure some sections, print them, and put each in its place in RESULTS.md, or at the end; others stay."""
    for key in chosen:
        title, make, note = sections[key]
        print(f"\n{title}", flush=True)
        lines = []
        for row in make(options):
            lines.append("| " + " | ".join(row) + " |")
            print(lines[-1], flush=True)
        lines.insert(1, "|" + "---|" * (lines[0].count("|") - 1))
        text = RESULTS.read_text() if RESULTS.exists() else HEAD
        head, *parts = re.split(r"^## ", text, flags=re.M)
        bodies = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
        bodies[title] = "\n\n".join(filter(None, (note, signed(), "\n".join(lines))))
        RESULTS.write_text(head.rstrip() + "\n" + "".join(f"\n## {name}\n\n{body}\n" for name, body in bodies.items()))


HEAD = """# Measured speed

Whole rounds (plan, embed, exchange, Q steps, average) in float32 with all cores, against the plain loop (`plain.py`) on
one thread in the same run, interleaved, each round after others like it; medians. Made by `make bench`. Other programs
share the machine: ratios of one row vary by a quarter from run to run, single times by more.
"""


def signed() -> str:
    """Return the machine and the date."""
    machine = describe_session()
    return (
        f"{machine.processor}, {cores()} cores, {product_rate(cores()) / 1e9:.0f} GF/s in one large product; "
        f"torch {machine.packages['torch']}; {datetime.now(UTC):%Y-%m-%d}."
    )
