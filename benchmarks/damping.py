"""Tabulate and draw a sweep of damped hubs: rounds, bytes and simulated time to a target on validation data.

    tdcd sweep benchmarks/damping/physionet2012-n4.toml --data DIRECTORY -o RUNS
    python benchmarks/damping.py RUNS --metric auroc --target 0.76 --figure docs/damping-physionet2012-n4.svg

A run reaches the target at its first evaluation that does; the table has means over the seeds that reach it, and says
how many do where some do not. Times are simulated: t_comm is the latency of the paper, in units of a local step. The
figure has a panel for every Q: lines are means over seeds, bands reach from the lowest to the highest.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, NullFormatter

from tdcd.costs import Costs
from tdcd.reports.figures import COLOURS, STYLES, Curve, Drawing
from tdcd.reports.pricing import times, traffic_by_round
from tdcd.runs.layout import holds_run
from tdcd.runs.reader import RunRecord, read_run, read_sweep
from tdcd.runs.records import CombinationRecord


@dataclass(frozen=True)
class Reached:
    """What a run took to reach the target."""

    round: int
    megabytes: float
    times: Sequence[float]
    """Simulated, for each t_comm."""


def reach(run: RunRecord, metric: str, target: float, t_comm: Sequence[float]) -> Reached | None:
    """Return what a run took to reach the target on validation data; nothing if it never does."""
    place = next((n for n, line in enumerate(run.history) if line.validation[metric] >= target), None)
    if place is None:
        return None
    number = run.history[place].round
    sent = sum(one.client_to_hub + one.hub_to_client + one.hub_to_hub for one in traffic_by_round(run)[:number])
    return Reached(number, sent / 1e6, [times(run, Costs(t_comm=t))[place] for t in t_comm])


def describe(values: Mapping[str, Any]) -> str:
    """Return the values of a combination in words: the size of a hub step is β, any other setting has its own name."""
    return ", ".join(
        f"β = {size(value)}" if isinstance(value, dict) and "size" in value else f"{axis} = {value}"
        for axis, value in values.items()
    )


def size(aggregator: Mapping[str, Any]) -> str:
    """Return β as people write it."""
    written = {1.0: "1", 0.5: "1/2"}
    return written.get(aggregator["size"], str(aggregator["size"]))


def step(rate: float | None, run: RunRecord) -> str:
    """Return β times the rate: how far a hub moves for each local step, as long as gradients do not change."""
    beta = run.job["training"]["aggregator"].get("size", 1.0)
    if beta == "1/N":
        beta = 1 / sum(silo.features for silo in run.federation.silos)
    return f"{beta * (rate or run.job['training']['rate']):.2g}"


def row(
    one: CombinationRecord, runs: Sequence[RunRecord], metric: str, target: float, t_comm: Sequence[float]
) -> list[str]:
    """Return what a combination took to reach the target, over its seeds."""
    best = [max(line.validation[metric] for line in run.history) for run in runs]
    last = [run.history[-1].validation[metric] for run in runs]
    reached = [found for run in runs if (found := reach(run, metric, target, t_comm))]
    diverged = sum(run.status == "diverged" for run in runs)
    rate = (f"{one.rate:.3g}" if one.rate else "all diverge") + (f" ({diverged} diverged)" if diverged else "")
    head = [describe(one.values) or one.variant, rate]
    head += [step(one.rate, runs[0]), f"{mean(best):.3f}", f"{mean(last):.3f}"] if runs else ["-"] * 3
    if not reached:
        return [*head, "never", "-", *("-" for _ in t_comm)]
    some = f" ({len(reached)} of {len(runs)})" if len(reached) < len(runs) else ""
    spans = sorted(found.round for found in reached)
    rounds = f"{mean(spans):.0f}{some}" + (f", {spans[0]} to {spans[-1]}" if spans[0] < spans[-1] else "")
    prices = [f"{mean(found.times[place] for found in reached):,.0f}" for place in range(len(t_comm))]
    return [*head, rounds, f"{mean(found.megabytes for found in reached):,.1f}", *prices]


def curve(label: str, runs: Sequence[RunRecord], metric: str, colour: int) -> Curve | None:
    """Return the mean and the range over seeds of a metric on validation data, from the first evaluation on."""
    length = min((len(run.history) for run in runs), default=0)
    if length < 2:
        return None
    rounds = [line.round for line in runs[0].history[1:length]]
    values = [[run.history[place].validation[metric] for run in runs] for place in range(1, length)]
    return Curve(
        label, rounds, [mean(v) for v in values], [min(v) for v in values], [max(v) for v in values], colour=colour
    )


@dataclass(frozen=True)
class Panels(Drawing):
    """A panel of curves for every Q; all have the same axes."""

    y: str
    panels: Mapping[str, Sequence[Curve]]
    """The curves by the titles of the panels."""
    target: float

    @property
    def summary(self) -> str:
        """What it shows, for whoever cannot see it."""
        return f"{self.y} over {self.x}: {', '.join(self.panels)}"

    def draw(self) -> Figure:
        """Draw it."""
        figure = Figure(figsize=(2.9 * len(self.panels) + 0.4, 3.1), layout="constrained")
        drawn: dict[str, Any] = {}
        for axes, (title, curves) in zip(
            figure.subplots(1, len(self.panels), sharex=True, sharey=True, squeeze=False)[0],
            self.panels.items(),
            strict=True,
        ):
            axes.set_title(title, fontsize="medium")
            axes.set_xlabel(self.x)
            axes.axhline(self.target, color="#888888", linestyle=(0, (1, 1)), linewidth=1.1, zorder=1)
            for one in curves:
                place = one.colour if isinstance(one.colour, int) else 0
                (drawn[one.label],) = axes.plot(one.x, one.y, color=COLOURS[place], linestyle=STYLES[place])
                axes.fill_between(one.x, one.low, one.high, color=COLOURS[place], alpha=0.15, linewidth=0)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        figure.axes[0].set_ylabel(self.y)
        lowest = min(min(one.y) for curves in self.panels.values() for one in curves)
        highest = max(max(one.high or one.y) for curves in self.panels.values() for one in curves)
        figure.axes[0].set_ylim(max(lowest, highest - 3 * (highest - self.target) - 0.15), highest + 0.01)
        figure.legend(drawn.values(), drawn, frameon=False, loc="outside lower center", ncols=len(drawn))
        return figure


def panels(
    name: str, seen: Sequence[tuple[CombinationRecord, Sequence[RunRecord]]], metric: str, target: float
) -> Panels:
    """Return the figure of a sweep: its panels are all that is varied but β, whose values are the lines."""
    lines: dict[str, int] = {}
    result: dict[str, list[Curve]] = {}
    for one, runs in seen:
        label = describe({axis: value for axis, value in one.values.items() if isinstance(value, dict)})
        title = describe({axis: value for axis, value in one.values.items() if not isinstance(value, dict)})
        drawn = curve(label, runs, metric, lines.setdefault(label, len(lines)))
        result.setdefault(title, []).extend([drawn] if drawn else [])
    return Panels(name, "", "rounds", f"validation {metric_name(metric)}", result, target)


def metric_name(metric: str) -> str:
    """Return a metric as people write it."""
    return {"auroc": "AUROC", "auprc": "AUPRC", "f1": "F1"}.get(metric, metric)


def main() -> None:
    """Print the table; draw the figure if one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metric", default="auroc")
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--t-comm", type=float, nargs="*", default=[10.0, 100.0])
    parser.add_argument("--figure", type=Path, help="an SVG file to write")
    given = parser.parse_args()
    seen = [(one, existing(given.folder, one)) for one in read_sweep(given.folder).combinations]
    head = ["", "rate", "β × rate", f"best {metric_name(given.metric)}", "last", f"rounds to {given.target:g}", "MB"]
    head += [f"time, t_comm {t:g}" for t in given.t_comm]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for one, runs in seen:
        print("| " + " | ".join(row(one, runs, given.metric, given.target, given.t_comm)) + " |")
    if given.figure:
        given.figure.write_text(panels(given.figure.stem, seen, given.metric, given.target).svg(), encoding="utf-8")


def existing(folder: Path, one: CombinationRecord) -> list[RunRecord]:
    """Return the runs of a combination that have been evaluated; a sweep may be under way."""
    runs = [read_run(folder / seed.path) for seed in one.runs if holds_run(folder / seed.path)]
    return [run for run in runs if run.history]


if __name__ == "__main__":
    main()
