"""Tabulate a sweep of damped hubs: rounds, bytes and simulated time to a target on validation data.

    tdcd sweep benchmarks/damping/physionet2012-n4.toml --set data.directory=DIRECTORY -o DIRECTORY
    python benchmarks/damping.py DIRECTORY --metric auroc --target 0.76

A run counts as having reached the target at the first evaluation that does; where a seed never does, the table says how
many did. Times are simulated: t_comm is the latency of the paper, in units of a local step.
"""

import argparse
from pathlib import Path
from statistics import mean

from tdcd.costs import Costs
from tdcd.reports.pricing import times, traffic_by_round
from tdcd.runs.reader import read_run, read_sweep
from tdcd.runs.records import CombinationRecord


def row(folder: Path, one: CombinationRecord, metric: str, target: float, t_comm: list[float]) -> list[str]:
    """Return what a combination took to reach the target, over its seeds."""
    best, rounds, megabytes = [], [], []
    waits: dict[float, list[float]] = {t: [] for t in t_comm}
    for seed in one.runs:
        run = read_run(folder / seed.path)
        values = [evaluation.validation[metric] for evaluation in run.history]
        best.append(max(values))
        place = next((place for place, value in enumerate(values) if value >= target), None)
        if place is None:
            continue
        rounds.append(run.history[place].round)
        sent = traffic_by_round(run)[: run.history[place].round]
        megabytes.append(sum(one.client_to_hub + one.hub_to_client + one.hub_to_hub for one in sent) / 1e6)
        for t, found in waits.items():
            found.append(times(run, Costs(t_comm=t))[place])
    reached = f"{mean(rounds):.0f}" + (f" ({len(rounds)} of {len(one.runs)})" if len(rounds) < len(one.runs) else "")
    cells = [f"{mean(found):,.0f}" for found in waits.values()] if rounds else ["-"] * len(waits)
    last = [reached, f"{mean(megabytes):,.1f}", *cells] if rounds else ["never", "-", *cells]
    return [one.name, f"{one.rate:g}" if one.rate else "-", f"{mean(best):.3f}", *last]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metric", default="auroc")
    parser.add_argument("--target", type=float, required=True)
    parser.add_argument("--t-comm", type=float, nargs="*", default=[10.0, 100.0])
    given = parser.parse_args()
    head = ["", "rate", f"best {given.metric}", f"rounds to {given.target:g}", "MB"]
    head += [f"time, t_comm {t:g}" for t in given.t_comm]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for one in read_sweep(given.folder).combinations:
        print("| " + " | ".join(row(given.folder, one, given.metric, given.target, given.t_comm)) + " |")


if __name__ == "__main__":
    main()
