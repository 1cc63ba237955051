"""The clock: how long rounds take, given what trips and local steps cost.

It reads the events of the round script along the critical path. As the paper times it, a call of a hub to its clients
is one round trip; between hubs a reply is part of the request's trip, so embeddings cost a trip and the bytes of both
directions, and gradients nothing more; the agreement at the end of a round is free. Without bandwidths and slow
clients a round then takes 3·t_comm + Q·t_comp.

Rounds follow each other without a barrier, so when one ends depends on where each hub stood before it. The script runs
once for all rounds: a time is an array (R, N) that says, for every round, how long after the start of each hub l it is,
as far as it depends on that hub. Then the rounds are chained: T_j ← max_l (T_l + A_{j,l}).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tdcd.core.ledger import Counts
from tdcd.core.meter import Call, Receive, Send, round_events
from tdcd.core.script import Plan

Times = npt.NDArray[np.float64]


class Costs(Protocol):
    """What takes time; see ``tdcd.costs``."""

    @property
    def t_comm(self) -> float: ...  # noqa: D102
    @property
    def client_latency(self) -> float: ...  # noqa: D102
    @property
    def hub_latency(self) -> float: ...  # noqa: D102
    @property
    def step(self) -> float: ...  # noqa: D102
    @property
    def client_bandwidth(self) -> float | None: ...  # noqa: D102
    @property
    def hub_bandwidth(self) -> float | None: ...  # noqa: D102


class _Clock:
    """The time at every hub, relative to the start of the round at each hub."""

    def __init__(self, plan: Plan, costs: Costs, load: "Load") -> None:
        self._plan, self._costs, self._load = plan, costs, load
        some = next(iter(load.counts.values()))
        self._batch = some.sum(1)
        self._arrivals: dict[int, Times] = {}
        self.now: dict[str, Times] = {}
        for place, silo in enumerate(plan.silos):
            self.now[silo] = np.full((len(some), len(plan.silos)), -np.inf)
            self.now[silo][:, place] = 0.0

    def call(self, event: Call) -> None:
        """A hub waits for its slowest client that has rows."""
        costs, load = self._costs, self._load
        counts = load.counts[event.silo]
        each = event.steps * costs.step * load.slowness[event.silo]
        if costs.client_bandwidth:
            weights = (event.weights_down + event.weights_up) * load.blocks.get(event.silo, 0)
            rows = (event.rows_down + event.rows_up) * (counts * load.row + load.message)
            numbers = event.opens * counts * load.number
            each = each + (rows + weights + numbers) / costs.client_bandwidth
        slowest = ((counts > 0) * each).max(1)
        self.now[event.silo] = self.now[event.silo] + (costs.client_latency * costs.t_comm + slowest)[:, np.newaxis]

    def send(self, event: Send) -> None:
        """Rows travel for a round trip, in which the reply comes back."""
        costs, arrival = self._costs, self.now[event.silo]
        if event.topic.kind == "embeddings" and event.messages:
            times = 2 * len(self._plan.requests) if self._plan.requests else event.messages
            size = times * (self._batch * self._load.row + self._load.message)
            carried = size / costs.hub_bandwidth if costs.hub_bandwidth else 0.0
            arrival = arrival + np.reshape(costs.hub_latency * costs.t_comm + carried, (-1, 1))
            if not self._plan.requests:
                self.now[event.silo] = arrival  # a hub's own embeddings must have been acknowledged, too
        if event.topic.kind != "end":
            self._arrivals[event.number] = arrival

    def receive(self, event: Receive) -> None:
        """A hub waits for the last message; at the end of a round, where hubs only agree, nobody waits."""
        for number in event.sends:
            if (arrival := self._arrivals.get(number)) is not None:
                self.now[event.silo] = np.maximum(self.now[event.silo], arrival)


@dataclass(frozen=True)
class Load:
    """What clients compute and lines carry in each round."""

    counts: Mapping[str, Counts]
    """Rows of every client of each silo in every round, (R, K_j); a single line (1, K_j) if all rounds are alike."""
    blocks: Mapping[str, int]
    """Bytes of θ_j."""
    row: int
    """Bytes of one sample's embedding, as it travels."""
    slowness: Mapping[str, Times]
    """How many times as long a step takes each client, (K_j,), by silo."""
    message: int = 0
    """Bytes of a message with embeddings besides these."""
    number: int = 0
    """Bytes of a sample's number, where hubs tell clients which rows a mini-batch has."""


def round_ends(
    plan: Plan, steps: Mapping[str, int], costs: Costs, loads: Iterable[tuple[Load, int]]
) -> npt.NDArray[np.float64]:
    """Return when each round is over at all hubs, from 0 before the first: (R + 1,).

    Args:
        plan: The roles of the silos.
        steps: Q of each silo that has features.
        costs: What takes time.
        loads: What is computed and carried: of some rounds each, and how many they are.
    """
    now, ends = np.zeros(len(plan.silos)), [0.0]
    for load, rounds in loads:
        passed = _passed(plan, steps, costs, load)
        pace, last = np.nan, len(ends) - 1 + rounds
        while len(ends) <= last:
            before, now = now, (now + passed[len(ends) - 1 - last + rounds if len(passed) > 1 else 0]).max(1)
            ends.append(float(now.max()))
            moved = now - before
            if len(passed) == 1 and np.ptp(np.append(moved, pace)) <= 1e-12 * now[0]:
                left = last + 1 - len(ends)  # so it goes on, because A ⊗ (T + c) = (A ⊗ T) + c
                ends += (ends[-1] + pace * np.arange(1, left + 1)).tolist()
                now = now + left * pace
            pace = moved[0]
    return np.array(ends)


def _passed(plan: Plan, steps: Mapping[str, int], costs: Costs, load: Load) -> Times:
    """Return how long after each hub's start of a round each hub ends it: (R, N, N), hubs that end first."""
    clock = _Clock(plan, costs, load)
    for event in round_events(plan, steps):
        if isinstance(event, Call):
            clock.call(event)
        elif isinstance(event, Send):
            clock.send(event)
        else:
            clock.receive(event)
    return np.stack([clock.now[silo] for silo in plan.silos], 1)
