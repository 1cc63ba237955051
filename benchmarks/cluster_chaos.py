"""Kill actors, worker processes and nodes of a cluster at random while it trains, and compare with an undisturbed run.

    python benchmarks/cluster_chaos.py                          # 20 kills of each kind, in a run each
    python benchmarks/cluster_chaos.py any                      # 20 kills in one run, of actors, processes and nodes
    python benchmarks/cluster_chaos.py actor --count 5 --seed 3

The cluster is one of Ray with two nodes on this machine. A killed node is started again after a while, and gets actors
back. The schedule is drawn from the seed, which is printed. What counts: the states after the last round and all that
was measured on the way are those of the undisturbed run, to the bit, and no actor is left behind.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from nodes import Nodes, kill
from tdcd.cluster.engine import ClusterEngine
from tdcd.cluster.fleet import MemoryFleet
from tdcd.core.codecs import BFloat16
from tdcd.core.gradients import PrivateLabels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.objectives import BinaryCrossEntropy
from tdcd.core.optimizers import Adam
from tdcd.core.sampling import draw_batch
from tdcd.core.script import Sharing
from tdcd.core.state import States
from tdcd.core.task import Round
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.engines import Training
from workloads import workload

KINDS: tuple[str, ...] = ("actor", "process", "node", "any")
EVERY = 10
"""Rounds between evaluations."""
SOON = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "3000"}
"""A killed node is missed after some seconds."""


def training(sharing: Sharing) -> Training:
    """Make a federation that carries optimizer memory, encodes its messages, and is evaluated."""
    made = workload("linear", silos=3, clients=64, local_steps=3, batch=500, samples=4000, codec=BFloat16())
    steps = LocalSteps(3, optimizer=Adam(), carry=True)
    tasks = {silo: replace(task, steps=steps) for silo, task in made.tasks.items()}
    labels = next(iter(tasks.values())).labels
    private = (
        None if sharing == "shared" else PrivateLabels("silo-01", sharing, labels, BinaryCrossEntropy(), None, seed=0)
    )
    rows = {silo: task.features[:1000] for silo, task in tasks.items()}
    return Training(
        tasks,
        lambda number: draw_batch(0, number, 4000, 500),
        lambda _: 0.01,
        private=private,
        codecs=made.codecs,
        parts={Part.TEST: Samples(rows, labels[:1000])},
        measure=lambda scores, _: {"sum": float(scores.double().sum())},
    )


@dataclass
class Trace:
    """What a run has come to."""

    states: States
    measured: list[dict[str, float]]
    rounds: int = 0


def run(engine: ClusterEngine, goes_on: Callable[[int], bool]) -> Trace:
    """Train as long as it goes on."""
    trace = Trace(engine.training.initial(), [])
    while goes_on(trace.rounds):
        trace.rounds += 1
        given = Round(trace.rounds, engine.training.batch(trace.rounds), engine.training.rate(trace.rounds))
        trace.states = engine.compute_round(trace.states, given)
        if trace.rounds % EVERY == 0:
            trace.measured.append(dict(engine.measure(trace.states, Part.TEST)))
    return trace


def same(one: Trace, two: Trace) -> bool:
    """Tell whether two runs came to the same, to the bit."""
    return one.measured == two.measured and all(
        torch.equal(tensor, getattr(two.states[silo], part)[name])
        for silo, state in one.states.items()
        for part in ("weights", "memory")
        for name, tensor in getattr(state, part).items()
    )


class Killer(threading.Thread):
    """Kills something of a running engine, again and again."""

    def __init__(self, kind: str, count: int, nodes: Nodes, engine: ClusterEngine, generator: random.Random) -> None:
        super().__init__(daemon=True)
        self._kind, self._count, self._nodes, self._engine, self._random = kind, count, nodes, engine, generator
        self.kills = 0

    def run(self) -> None:
        """Kill so often."""
        began = time.monotonic()
        while self.kills < self._count:
            self._wait()
            kind = self._random.choice(KINDS[:3]) if self._kind == "any" else self._kind
            what = getattr(self, f"_{kind}")()
            if what:
                self.kills += 1
                print(f"{time.monotonic() - began:6.1f} s  {self.kills:3}  {what}", flush=True)

    def _wait(self) -> None:
        """Wait until rounds have gone well for a while; sometimes not, to strike while the last loss is mended."""
        if self._random.random() < 0.3:
            time.sleep(3 * self._random.random())
            return
        enough = self._engine.times.rounds + self._random.randint(1, 30)
        while self._engine.times.rounds < enough:
            time.sleep(0.01)
        time.sleep(0.1 * self._random.random())

    def _actor(self) -> str:
        import ray

        bundles = [member for own in self._engine._bundles.values() for member in own]
        handle: Any = self._random.choice([*bundles, *self._engine._hubs.values()]).handle
        ray.kill(handle.actor, no_restart=self._random.random() < 0.5)
        return f"actor {handle.name}"

    def _process(self) -> str:
        node = self._random.randrange(len(self._nodes))
        hosts = self._nodes.hosts(node)
        if not hosts:
            return ""
        victim = self._random.choice(hosts)
        kill(victim)
        return f"process {victim} on node {node}"

    def _node(self) -> str:
        if not self._nodes.hosts(1):
            return ""
        count = len(self._nodes.hosts(1))
        self._nodes.kill(1)
        time.sleep(3 * self._random.random())
        self._nodes.add()
        return f"node with {count} actors"


def chaos(kind: str, sharing: Sharing, count: int, generator: random.Random, nodes: Nodes) -> tuple[list[str], bool]:
    """Kill something of one kind in a run; return a row of the table, and whether it came to the same."""
    from tdcd.cluster.ray_fleet import connect

    engine = ClusterEngine(training(sharing), connect(nodes.address))
    killer, began = Killer(kind, count, nodes, engine, generator), time.monotonic()
    killer.start()
    trace = run(engine, lambda _: killer.is_alive())
    killer.join()
    seconds = time.monotonic() - began
    engine.close()
    undisturbed = run(ClusterEngine(training(sharing), MemoryFleet(1)), lambda done: done < trace.rounds)
    equal = killer.kills == count and same(trace, undisturbed)
    row = [kind, sharing, str(count), f"{seconds:.0f}", str(trace.rounds), str(engine.times.repeated)]
    row.append("yes" if equal else "NO")
    print("| " + " | ".join(row) + " |", flush=True)
    return row, equal


def left_behind(nodes: Nodes) -> int:
    """Leave the cluster; return how many actors there are after some seconds."""
    import ray

    ray.shutdown()
    until = time.monotonic() + 20
    while (count := sum(len(nodes.hosts(number)) for number in range(len(nodes)))) and time.monotonic() < until:
        time.sleep(0.2)
    return count


def main() -> None:
    """Run them all; exit with 1 if one does not end as it should."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "kinds",
        nargs="*",
        choices=[*KINDS, []],
        help="what to kill; default: actors, processes and nodes, in a run each",
    )
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    generator = random.Random(arguments.seed)  # noqa: S311
    sharings: tuple[Sharing, ...] = ("stale", "shared", "exact")
    rows, good = [], True
    with Nodes(2, environment=SOON) as nodes:
        for kind in arguments.kinds or KINDS[:3]:
            sharing = sharings[KINDS.index(kind) % len(sharings)]
            row, equal = chaos(kind, sharing, arguments.count, generator, nodes)
            rows.append(row)
            good = good and equal
        left = left_behind(nodes)
    print("\n| killed | labels | times | seconds | rounds | repeated | equal to the bit |\n|" + "---|" * 7)
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(f"\nactors left behind: {left}")
    sys.exit(0 if good and not left else 1)


if __name__ == "__main__":
    main()
