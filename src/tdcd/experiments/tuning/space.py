"""What is searched: settings, how long their trials are, and what all of it costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import ceil
from typing import Any, Literal

from tdcd.core.aggregators import Average, HubStep
from tdcd.costs import Costs
from tdcd.jobs.schema import Job
from tdcd.training.schedules import Constant, Cosine

FACTOR = 3
"""A rung is so many times as long as the one before. Rates are that far apart."""
KEPT = 4
"""One in so many trials goes on to the next rung, and the best of every Q."""
GRID = 6
"""Rates that a full grid would try for each of the other settings."""
TRIES = 4.0
"""Rates that the first rung tries for each of the other settings, on average: three, and more at the edge."""
LEAST = 2
"""Rounds of the fewest local steps in the shortest trial, at least."""


@dataclass(frozen=True, order=True)
class Point:
    """One choice of all that is searched."""

    local_steps: int
    """Q."""
    hub_step: float
    """β; 1 is the paper's rule, and 0 stands for the job's own aggregator."""
    batch_size: int | Literal["full"]
    proximal: float
    rate: float
    decay: float = 0.0
    """The part of a whole training over which the rate falls as a cosine, and that it takes; 0: it does not fall."""

    @property
    def name(self) -> str:
        """Its name, for people and files."""
        parts = [f"Q={self.local_steps}", *([f"beta={self.hub_step:g}"] if self.hub_step else [])]
        parts += [f"batch={self.batch_size}"]
        parts += [f"proximal={self.proximal:g}"] if self.proximal else []
        fall = {0.0: [], 1.0: ["cosine"]}.get(self.decay, [f"cosine over {self.decay:g}"])
        return ",".join([*parts, f"rate={self.rate:g}", *fall])

    @property
    def span(self) -> float:
        """The part of a whole training that it takes."""
        return self.decay or 1.0

    @property
    def group(self) -> "Point":
        """All but the rate."""
        return replace(self, rate=0.0)

    def settings(self, rounds: int) -> dict[str, Any]:
        """Return the settings of ``[training]`` that it stands for."""
        aggregator = Average() if self.hub_step == 1 else HubStep(self.hub_step) if self.hub_step else None
        return ({"aggregator": aggregator} if aggregator else {}) | {
            "local_steps": self.local_steps,
            "batch_size": self.batch_size,
            "proximal": self.proximal,
            "rate": self.rate,
            "schedule": Cosine() if self.decay else Constant(),
            "rounds": rounds,
        }


@dataclass(frozen=True)
class Space:
    """All that is searched."""

    local_steps: tuple[int, ...]
    hub_steps: tuple[float, ...]
    batch_sizes: tuple[int | Literal["full"], ...]
    proximals: tuple[float, ...]
    horizon: float
    """The simulated time that a whole training may take."""
    costs: Costs
    silos: int
    """N, the silos that have features."""
    rate: float | None = None
    """The rate of all trials, where it is not searched."""

    @classmethod
    def of(cls, job: Job, silos: int, costs: Costs, given: Mapping[str, Any]) -> "Space":
        """Return what is searched for a job: what is ``given``, and for the rest what usually matters."""
        own = job.training
        steps = {1.0, *((0.5, round(1 / silos, 6)) if silos > 1 else ())}
        by_default = {
            "local_steps": (1, 2, 5, 10, 20),
            "hub_steps": tuple(sorted(steps, reverse=True))
            if isinstance(own.aggregator, Average | HubStep)
            else (0.0,),
            "batch_sizes": (own.batch_size,),
            "proximals": (own.proximal,),
        }
        chosen = {key: tuple(given[key]) if given.get(key) else value for key, value in by_default.items()}
        space = cls(**chosen, horizon=1.0, costs=costs, silos=silos, rate=given.get("rate"))
        return replace(space, horizon=given.get("horizon") or own.rounds * space.round_time(own.local_steps))

    def round_time(self, local_steps: int) -> float:
        """Return the simulated time of a round, by the paper's formula, with the latencies of both tiers."""
        trips = 2 * self.costs.client_latency + (self.costs.hub_latency if self.silos > 1 else 0.0)
        return self.costs.t_comm * trips + local_steps * self.costs.step

    @property
    def groups(self) -> list[Point]:
        """Every choice of all but the rate."""
        choices = product(self.local_steps, self.hub_steps, self.batch_sizes, self.proximals)
        points = (Point(steps, step, size, mu, 0.0) for steps, step, size, mu in choices)
        return [point for point in points if not (point.proximal and point.local_steps == 1)]

    def rounds(self, point: Point, time: float) -> int:
        """Return how many rounds of a choice fit into some time."""
        return max(1, int(time / self.round_time(point.local_steps) + 1e-9))

    def rungs(self, budget: float) -> list[float]:
        """Return the lengths of trials, the longest last, so that all of them cost at most a part of the full grid.

        The first is no shorter than needs be for that, as short trials mislead, and never below some rounds.
        """
        most = 1
        while self.horizon / FACTOR ** (most + 1) >= LEAST * self.round_time(min(self.local_steps)) and most < 6:
            most += 1
        for count in range(1, most + 1):
            if self.cost(count) <= budget * GRID * len(self.groups):
                break
        return [self.horizon / float(FACTOR**k) for k in range(count, -1, -1)]

    def cost(self, rungs: int) -> float:
        """Return what a search with so many shorter rungs costs, in whole trainings."""
        total = TRIES * len(self.groups) / FACTOR**rungs
        kept = TRIES * len(self.groups)
        for k in range(rungs - 1, 0, -1):
            kept = max(ceil(kept / KEPT), len(self.local_steps) + 1)
            total += kept * (1 - 1 / FACTOR) / FACTOR**k
        return float(total + 2 * (1 - 1 / FACTOR) + 2)  # two to the end, a rate that falls, and another seed
