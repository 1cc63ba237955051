"""The round script by itself: whoever is lost, and whenever, all hubs end a round alike."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcd.core.meter import Call, Receive, Send, round_events
from tdcd.core.script import (
    NOTHING,
    Diverged,
    EmptyBatch,
    Hub,
    Lost,
    LostClients,
    Message,
    Plan,
    Topic,
    communication_round,
    plan_rounds,
)
from tdcd.core.turns import Mail, run_in_turns

BATCH = frozenset(range(12))


@dataclass
class World:
    """Silos whose clients hold one sample each, and fail where they are told to."""

    plan: Plan
    fails: set[tuple[str, int, int]]
    """A silo, the number of its call to clients in all attempts, and the sample whose client fails then."""
    diverging: Collection[str] = ()
    """Silos whose weights are not finite at the end."""
    infinite: tuple[str, int] = ("", 0)
    """A silo none of whose clients has finite numbers, from some call to them on."""
    calls: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, list[Lost]] = field(default_factory=dict)
    finished: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)


class Rows(frozenset[int]):
    """The samples that rows are of: adding up rows of other samples is a fault."""

    def __add__(self, other: object) -> "Rows":
        assert other == 0 or other == self, "rows of different mini-batches were added"
        return self


class FakeClients:
    def __init__(self, world: World, silo: str, batch: Lost) -> None:
        self.world, self.silo, self.batch, self.done = world, silo, batch, list[str]()

    def _call(self, what: str) -> Rows:
        number = self.world.calls[self.silo] = self.world.calls.get(self.silo, 0) + 1
        self.done.append(what)
        gone = {sample for silo, call, sample in self.world.fails if (silo, call) == (self.silo, number)} & self.batch
        if gone:
            raise LostClients(gone)
        if self.silo == self.world.infinite[0] and number >= self.world.infinite[1]:
            raise LostClients(self.batch, diverged=True)
        return Rows(self.batch)

    async def embed(self, state: str) -> Rows:
        return self._call("embed")

    async def step(self, gradients: Rows) -> Rows:
        assert gradients == self.batch
        return self._call("step")

    async def descend(self, rows: Rows | Literal[0] | None) -> str:
        assert rows in (0, None, self.batch)
        self._call("descend")
        return "new"

    async def first_gradients(self, others: Rows | Literal[0]) -> Rows:
        assert others == self.batch
        return self._call("gradients")

    async def gradients(self, scores: Mapping[str, Rows], step: int) -> Mapping[str, Rows]:
        assert all(rows == self.batch for rows in scores.values())
        rows = self._call("gradients")
        return dict.fromkeys(scores, rows)

    def away(self) -> Lost:
        return frozenset({100 + self.world.plan.silos.index(self.silo)})

    def diverged(self, state: str) -> bool:
        self.world.finished.setdefault(self.silo, []).append(tuple(self.done))
        return self.silo in self.world.diverging


class FakePeers:
    def __init__(self, silo: str, mail: Mail[Message[Rows]]) -> None:
        self.silo, self.mail = silo, mail

    async def send(self, topic: Topic, messages: Mapping[str, Message[Rows]]) -> None:
        for receiver, message in messages.items():
            self.mail.put(self.silo, receiver, topic, message)

    async def receive(self, topic: Topic, senders: Collection[str]) -> Mapping[str, Message[Rows]]:
        return await self.mail.take(self.silo, topic, senders)


def run(world: World, away: Lost = NOTHING) -> dict[str, object]:
    """Run a round at all hubs; return each one's outcome, or what it raised."""
    mails: dict[int, Mail[Message[Rows]]] = {}
    shared: Mail[Message[Rows]] = Mail()

    def attempt(silo: str, lost: Lost, number: int) -> Hub[Rows, str] | None:
        world.attempts.setdefault(silo, []).append(lost)
        left = BATCH - lost
        mails.setdefault(number, Mail())
        peers = Counted(silo, mails[number], shared)
        return Hub(silo, world.plan, FakeClients(world, silo, left), peers) if left else None

    async def caught(silo: str) -> object:
        try:
            return await communication_round(partial(attempt, silo), "old", away)
        except (EmptyBatch, Diverged) as error:
            return error

    return run_in_turns({silo: caught(silo) for silo in world.plan.silos}, shared)


class Counted(FakePeers):
    """Peers of one attempt; what is sent counts for all, so that a deadlock is noticed."""

    def __init__(self, silo: str, mail: Mail[Message[Rows]], shared: Mail[Message[Rows]]) -> None:
        super().__init__(silo, mail)
        self.shared = shared

    async def send(self, topic: Topic, messages: Mapping[str, Message[Rows]]) -> None:
        await super().send(topic, messages)
        self.shared.sent += len(messages)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    silos = [f"silo-{number}" for number in range(draw(st.integers(1, 4)))]
    steps = {silo: draw(st.integers(1, 4)) for silo in silos}
    sharing = draw(st.sampled_from(["shared", "exact", "stale"]))
    holder = draw(st.sampled_from([*silos, "registry"]))
    label_only = ["registry"] if holder == "registry" or (sharing == "shared" and draw(st.booleans())) else []
    return plan_rounds(steps, sharing, holder, label_only)  # type: ignore[arg-type]


@given(st.data())
def test_whoever_is_lost_all_hubs_end_alike(data: st.DataObject) -> None:
    plan = data.draw(plans())
    events = st.tuples(st.sampled_from(plan.silos), st.integers(1, 20), st.sampled_from(sorted(BATCH)))
    fails = data.draw(st.sets(events, max_size=8))
    away = data.draw(st.frozensets(st.sampled_from(sorted(BATCH)), max_size=3))
    world = World(plan, fails)
    outcomes = list(run(world, away).values())
    assert len({tuple(lost) for lost in world.attempts.values()}) == 1, "all hubs make the same attempts"
    attempts = next(iter(world.attempts.values()))
    assert attempts[0] == away
    assert all(before < after for before, after in pairwise(attempts)), "each on fewer samples"
    if isinstance(outcomes[0], EmptyBatch):
        assert all(isinstance(outcome, EmptyBatch) for outcome in outcomes)
        return
    for outcome in outcomes:
        assert outcome.lost == attempts[-1]  # type: ignore[attr-defined]
        assert outcome.away == {100 + number for number in range(len(plan.silos))}  # type: ignore[attr-defined]
    lost = {sample for silo, call, sample in fails if call <= world.calls.get(silo, 0)}
    assert attempts[-1] <= away | lost, "nobody is lost who did not fail"


@given(plans())
def test_a_round_that_loses_nobody_is_one_attempt(plan: Plan) -> None:
    world = World(plan, set())
    outcomes = run(world)
    for silo, outcome in outcomes.items():
        assert outcome.state == ("new" if silo in plan.features else "old")  # type: ignore[attr-defined]
        requests = plan.requests.get(silo, 0)
        expected = ["embed", *["step"] * max(0, requests - 1), "descend"] if silo in plan.features else []
        if silo == plan.label_holder:
            expected = [*expected[:1], "gradients", *expected[1:], *["gradients"] * (plan.most_requests - 1)]
        assert world.finished[silo] == [tuple(expected)]
    assert {silo: len(lost) for silo, lost in world.attempts.items()} == dict.fromkeys(plan.silos, 1)


def test_all_hubs_learn_that_a_silo_diverged() -> None:
    plan = plan_rounds({"a": 2, "b": 2, "c": 2}, "exact", "b")
    outcomes = run(World(plan, set(), diverging={"c"}))
    assert [outcome.silos for outcome in outcomes.values()] == [("c",)] * 3  # type: ignore[attr-defined]


@given(st.data())
def test_whenever_a_silo_diverges_all_hubs_learn_which(data: st.DataObject) -> None:
    plan = data.draw(plans())
    calls = World(plan, set())
    run(calls)
    silo = data.draw(st.sampled_from(sorted(calls.calls)))
    number = data.draw(st.integers(1, calls.calls[silo]))
    events = st.tuples(st.sampled_from(plan.silos), st.integers(1, 8), st.sampled_from(sorted(BATCH)[:6]))
    world = World(plan, data.draw(st.sets(events, max_size=3)), infinite=(silo, number))
    outcomes = list(run(world).values())
    assert [outcome.silos for outcome in outcomes] == [(silo,)] * len(plan.silos)  # type: ignore[attr-defined]
    assert len({tuple(lost) for lost in world.attempts.values()}) == 1


def test_an_empty_mini_batch_is_never_a_finished_round() -> None:
    plan = plan_rounds({"a": 1, "b": 1})
    world = World(plan, {("a", 1, sample) for sample in BATCH})
    outcomes = run(world)
    assert all(isinstance(outcome, EmptyBatch) and outcome.attempt == 1 for outcome in outcomes.values())
    assert not world.finished


def test_a_silo_without_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="silo 'idle' has neither features nor the labels"):
        plan_rounds({"a": 1, "b": 1}, "exact", "a", ["idle"])


def test_hubs_that_wait_for_each_other_are_noticed() -> None:
    mail: Mail[int] = Mail()

    async def waits(silo: str) -> None:
        await mail.take(silo, Topic("end"), ["nobody"])

    with pytest.raises(RuntimeError, match="hubs wait for messages that no hub sends: a, b"):
        run_in_turns({silo: waits(silo) for silo in "ab"}, mail)


def test_the_events_of_a_round() -> None:
    events = round_events(plan_rounds({"a": 3, "b": 3}, "exact", "a"), {"a": 3, "b": 3})
    calls = {silo: [event for event in events if isinstance(event, Call) and event.silo == silo] for silo in "ab"}
    assert [call.steps for call in calls["a"]] == [0, 0, 3, 0, 0]
    assert [call.steps for call in calls["b"]] == [0, 1, 1, 1]
    assert sum(event.messages for event in events if isinstance(event, Send)) == 3 + 3
    assert {event.silo for event in events if isinstance(event, Receive)} == {"a", "b"}
