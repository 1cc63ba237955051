"""How close ``tdcd tune`` comes to a full grid, at what part of its cost, and whether what it chooses holds.

    python benchmarks/tuning.py JOB.toml --out DIRECTORY [--set KEY=VALUE …] [--rounds 300] [--data DIRECTORY]

trains a grid of Q, hub step and rate once, prices it at every latency, and compares the best of it with what a search
chooses: the simulated time to the target validation loss, which is the lowest of the whole grid and a fiftieth of the
descent. The choice is then trained with four more seeds. Everything that has ended is kept, so it can be stopped and
started again. The test samples are not looked at. Prints rows of a table.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

from tdcd.costs import Costs
from tdcd.experiments.sweep_plan import SweepRun
from tdcd.experiments.sweep_run import SweepObserver, check_failures, ended, open_pool, train_runs
from tdcd.experiments.tuning import Space, tune
from tdcd.experiments.tuning.space import GRID, Point
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job
from tdcd.jobs.schema import Job
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.records import Evaluation
from tdcd.strict import parse_setting
from tdcd.training.settings import Settings

T_COMM = (1.0, 10.0, 100.0)
STEPS = 5
"""The Q whose rounds are given: the time of a whole training is theirs."""
SEEDS = 5
CLOSE = 0.02
"""The target: so much of the descent above the lowest validation loss of the grid."""
POINTS = 150
"""Evaluations of a run of the grid."""


class Progress(SweepObserver):
    """A line for every tenth run."""

    def __init__(self) -> None:
        self.count = 0

    def ended(self, name: str, outcome: Any) -> None:  # noqa: ARG002
        """See SweepObserver."""
        self.count += 1
        if self.count % 10 == 0:
            print(f"  {self.count} runs, {name}", flush=True)


def space_at(job: Job, silos: int, t_comm: float, rounds: int) -> Space:
    """Return what is searched at a latency."""
    space = Space.of(job, silos, Costs(t_comm=t_comm), {})
    return replace(space, horizon=rounds * space.round_time(STEPS))


def grid(spaces: list[Space], top: float) -> Iterator[tuple[Point, int]]:
    """Yield every point, and the rounds that it needs at the latency where these are the most."""
    for group in spaces[0].groups:
        for k in range(GRID):
            point = replace(group, rate=float(f"{top / group.local_steps**0.5 / 3**k:.2g}"))
            yield point, max(space.rounds(point, space.horizon) for space in spaces)


def run_of(job: Job, point: Point, rounds: int, name: str, **more: Any) -> SweepRun:
    """Return the training of a point."""
    every = max(1, rounds // POINTS)
    settings = job.training.model_copy(
        update=point.settings(rounds)
        | {"evaluate_every": every, "checkpoint_every": 10_000, "select": "last", "patience": None}
        | more
    )
    return SweepRun(name, "federation", job.model_copy(update={"training": settings, "baselines": []}))


def time_to(lines: list[Evaluation], target: float, round_time: float, horizon: float = inf) -> float:
    """Return the simulated time at which the validation loss first reaches the target."""
    times = (line.round * round_time for line in lines if line.validation["loss"] <= target)
    return min((time for time in times if time <= horizon), default=inf)


def seeds(job: Job, settings: Settings, out: Path, name: str, space: Space, target: float) -> list[tuple[bool, float]]:
    """Train some settings with several seeds; tell of each if its loss rose again, and when it reached the target."""
    result = []
    for number in range(SEEDS):
        every = max(1, settings.rounds // POINTS)
        chosen = settings.model_copy(
            update={"seed": settings.seed + number, "evaluate_every": every, "checkpoint_every": 10_000}
        )
        run = SweepRun(f"{name}/{number}", "federation", job.model_copy(update={"training": chosen, "baselines": []}))
        if not ended(out / run.name, run):
            with open_pool(out, [job], 1, 1, "local", None, SweepObserver(), job.name) as workers:
                check_failures(train_runs("seeds", [run], out, workers, SweepObserver()))
        outcome, history = read_outcome(out / run.name), read_history(out / run.name)
        trains = [line.train["loss"] for line in history]
        risen = trains[-1] > min(trains) + 0.1 * (trains[0] - min(trains))
        bad = risen or not outcome or outcome.status != "finished"
        result.append((bad, time_to(history, target, space.round_time(chosen.local_steps))))
    return result


def main() -> None:
    """Train and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--data")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--top", type=float, default=8.0, help="the largest rate of the grid, at Q = 1")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    overrides = dict(parse_setting(text) for text in given.set)
    overrides |= {"data.directory": str(Path(given.data).resolve())} if given.data else {}
    job = load_job(given.job, overrides)
    silos = len(load_data(job).federation.with_features)
    spaces = [space_at(job, silos, t, given.rounds) for t in T_COMM]
    points = dict(grid(spaces, given.top))
    runs = {point: run_of(job, point, rounds, f"grid/{point.name}") for point, rounds in points.items()}
    watch = Progress()
    with open_pool(given.out, [job], len(runs), given.jobs, "local", None, watch, given.job) as workers:
        check_failures(train_runs("runs of the grid", list(runs.values()), given.out, workers, watch))
    lines: dict[Point, list[Evaluation]] = {}
    for point, run in runs.items():
        outcome = read_outcome(given.out / run.name)
        if outcome and outcome.status == "finished":
            lines[point] = read_history(given.out / run.name)
    first = next(iter(lines.values()))[0].validation["loss"]
    for t_comm, space in zip(T_COMM, spaces, strict=True):
        within = {
            point: [line for line in own if line.round * space.round_time(point.local_steps) <= space.horizon]
            for point, own in lines.items()
        }
        lowest = min(line.validation["loss"] for own in within.values() for line in own)
        target = lowest + CLOSE * (first - lowest)
        times = {p: time_to(own, target, space.round_time(p.local_steps), space.horizon) for p, own in within.items()}
        best = min(times, key=lambda point: times[point])
        record = tune(
            job,
            given.out / f"tune-{t_comm:g}",
            costs=space.costs,
            given={"horizon": space.horizon},
            target=target,
            jobs=given.jobs,
        )
        chosen = {key: record.settings[key] for key in ("local_steps", "aggregator", "rate", "schedule", "rounds")}
        kept = {key: value for key, value in record.settings.items() if key not in ("select", "select_by")}
        tuned = job.training.replace(**kept)
        ours = seeds(job, tuned, given.out, f"seeds-{t_comm:g}", space, target)
        theirs_settings = runs[best].job.training.model_copy(update={"rounds": space.rounds(best, space.horizon)})
        theirs = seeds(job, theirs_settings, given.out, f"grid-seeds-{t_comm:g}", space, target)
        print(
            json.dumps(
                {
                    "t_comm": t_comm,
                    "target": round(target, 4),
                    "grid best": best.name,
                    "grid time": round(times[best]),
                    "tuned": chosen,
                    "grid times": [round(time) if time < inf else None for _, time in theirs],
                    "grid risen": sum(bad for bad, _ in theirs),
                    "tuned times": [round(time) if time < inf else None for _, time in ours],
                    "ratio": round(ours[0][1] / times[best], 2),
                    "ratio of medians": round(median(t for _, t in ours) / median(t for _, t in theirs), 2),
                    "tuned risen": sum(bad for bad, _ in ours),
                    "cost": round(record.cost, 1),
                    "grid": record.grid,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
