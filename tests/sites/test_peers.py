"""Hubs meet, exchange, lose each other and meet again."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sites.memory import run_virtually
from sites.test_rounds import job
from tdcd.engines.base import RewoundError
from tdcd.errors import AbsentError, DeploymentError
from tdcd.sites.event_loop import now
from tdcd.sites.hub.peers import Peer, Peers
from tdcd.sites.hub.reception import Reception
from tdcd.sites.messages.frames import Frame, Message, RefusedError, Stamp, frames
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.types import MaskedPoints
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.transport.memory import MemoryHub

NAMES = ("a", "b", "c")


class NobodyKnows(MemoryHub):
    async def explain(self) -> str:
        return "nobody knows"


class World:
    """Some hubs that can be killed and started again."""

    def __init__(self, names: Iterable[str] = NAMES, deadline: float = 10.0) -> None:
        self.names, self.deadline = tuple(names), deadline
        self.stubs = {name: NobodyKnows() for name in self.names}
        self.hubs: dict[str, Peers] = {}
        self.log: list[str] = []

    def start(self, name: str, shared: SharedJob | None = None) -> Peers:
        others = {n: Peer(n, "memory:1", self.stubs[n]) for n in self.names if n != name}
        own: Any = SimpleNamespace(names=())  # nobody calls but hubs
        shared = shared or SharedJob.of(job())
        peers = self.hubs[name] = Peers(name, shared, others, self.deadline, self.log.append)
        self.stubs[name].service = Reception(name, shared, own, peers, own)
        return peers

    def kill(self, name: str) -> None:
        self.stubs[name].service = None
        del self.hubs[name]

    async def meet(self) -> list[dict[str, dict[str, object]]]:
        return list(await asyncio.gather(*(hub.meeting("start", {"from": name}) for name, hub in self.hubs.items())))


def note(number: int, value: float, attempt: int = 0) -> tuple[MaskedPoints, Stamp]:
    return MaskedPoints(torch.tensor([value])), Stamp("", 0, number, attempt)


async def exchanged(world: World, number: int) -> None:
    result = await asyncio.gather(*(hub.exchange(*note(number, float(ord(name)))) for name, hub in world.hubs.items()))
    for name, got in zip(world.hubs, result, strict=True):
        assert {silo: float(m.points) for silo, m in got.items()} == {
            other: float(ord(other)) for other in world.names if other != name
        }


def test_all_learn_what_all_bring_and_exchange() -> None:
    async def run() -> None:
        world = World()
        for name in reversed(NAMES):
            world.start(name)
        everybody = {name: {"topic": "start", "from": name} for name in NAMES}
        assert await world.meet() == [everybody] * 3
        assert {hub.epoch for hub in world.hubs.values()} == {1}
        for number in (1, 2, 3):
            for hub in world.hubs.values():
                hub.advance(number)
            await exchanged(world, number)

    run_virtually(run())


@pytest.mark.parametrize("victim", NAMES)
def test_a_hub_that_was_started_again_is_met(victim: str) -> None:
    """Also the one that chairs. The others are waiting for its message, and are called."""

    async def run() -> None:
        world = World()
        for name in NAMES:
            world.start(name)
        await world.meet()
        world.kill(victim)
        waiting: dict[str, asyncio.Future[Any]] = {
            name: asyncio.ensure_future(hub.exchange(*note(1, 0.0))) for name, hub in world.hubs.items()
        }
        await asyncio.sleep(0.1)
        again = world.start(victim)
        meeting = asyncio.ensure_future(again.meeting("start", {}))
        for name, task in waiting.items():
            with pytest.raises(RewoundError):
                await asyncio.wait_for(task, 5)
            waiting[name] = asyncio.ensure_future(world.hubs[name].meeting("start", {}))
        await asyncio.wait_for(asyncio.gather(meeting, *waiting.values()), 5)
        assert {hub.epoch for hub in world.hubs.values()} == {2}
        await exchanged(world, 1)

    run_virtually(run())


def test_a_hub_that_does_not_come_is_waited_for_and_then_told_of() -> None:
    async def run() -> None:
        world = World(deadline=0.3)
        world.start("a")
        world.start("b")
        absent = r"waiting for the hub of silo 'b' \(memory:1\), 'c' \(memory:1\).*start the hubs again"
        with pytest.raises(DeploymentError, match=absent):
            await world.hubs["a"].meeting("start", {})
        world.kill("a")
        with pytest.raises(DeploymentError, match=r"the hub of silo 'a' \(memory:1\): nobody knows"):
            await world.hubs["b"].meeting("start", {})

    run_virtually(run())


def test_hubs_at_different_stages_say_so() -> None:
    async def run() -> None:
        world = World("ab")
        for name in "ab":
            world.start(name)
        result = await asyncio.gather(
            world.hubs["a"].meeting("start", {}), world.hubs["b"].meeting("something else", {}), return_exceptions=True
        )
        assert all(isinstance(one, DeploymentError) and "different stages" in str(one) for one in result)

    run_virtually(run())


def test_another_job_is_refused_with_the_difference() -> None:
    async def run() -> None:
        world = World("ab")
        world.start("a")
        world.start("b", SharedJob.of(job(rate=0.2)))
        with pytest.raises(
            DeploymentError, match=r"silo 'b' \('there'\) has another job.*\n  training.rate: 0.2 there, 0.1 here"
        ):
            await world.hubs["b"].meeting("start", {})

    run_virtually(run())


async def stream(*messages: Message) -> AsyncIterator[Frame]:
    for one in messages:
        for frame in frames(one):
            yield frame


def test_what_is_stale_replayed_or_strange_does_no_harm() -> None:
    async def run() -> None:
        world = World("ab")
        for name in "ab":
            world.start(name)
        await world.meet()
        a, b = world.hubs["a"], world.hubs["b"]
        fingerprint = a.job.fingerprint
        good = pack(note(1, 1.0)[0], Stamp(fingerprint, 1, 1, 0))
        for _ in range(3):  # a repeat is harmless
            assert not (await a.delivered("b", stream(good)))
        assert len(a._inbox.messages) == 1
        await asyncio.gather(a.exchange(*note(1, 1.0)), b.exchange(*note(1, 1.0)))
        for hub in (a, b):
            hub.advance(2)
        assert "over" in (await a.delivered("b", stream(good)))
        old = good.stamped(Stamp(fingerprint, 0, 5, 0))
        assert "over" in (await a.delivered("b", stream(old)))
        assert not a._inbox.messages
        with pytest.raises(RefusedError, match="another job"):
            await a.delivered("b", stream(good.stamped(Stamp("f00", 1, 2, 0))))
        with pytest.raises(RefusedError, match="an incomplete message"):
            await a.delivered("b", _cut(good))
        with pytest.raises(RefusedError, match="more than one"):
            await a.delivered("b", stream(good, good))

    run_virtually(run())


async def _cut(one: Message) -> AsyncIterator[Frame]:
    yield Frame(next(frames(one)).header, b"")


def test_a_hub_that_left_and_is_back_can_be_met() -> None:
    async def run() -> None:
        world = World(deadline=100.0)
        for name in "abc":
            world.start(name)
        await world.hubs["b"].leave("its clients stay away")
        world.kill("b")
        world.start("b")
        results = await asyncio.gather(*(hub.meeting("start", {}) for hub in world.hubs.values()))
        assert all(set(result) == set("abc") for result in results)

    run_virtually(run())


def test_whoever_leaves_ends_the_waiting_of_all_who_wait() -> None:
    async def run() -> None:
        world = World(deadline=100.0)
        for name in "abc":
            world.start(name)
        began = now()
        waiting = [asyncio.ensure_future(world.hubs[name].meeting("start", {})) for name in "ac"]
        await asyncio.sleep(3)
        await world.hubs["b"].leave("its clients stay away")
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, AbsentError)
            assert "the hub of silo 'b' has ended: its clients stay away" in str(error)
        assert now() - began < 5

    run_virtually(run())


def test_a_large_message_that_came_at_once_gives_no_more_time() -> None:
    async def run() -> None:
        world = World(names=("a", "b"), deadline=10.0)
        for name in "ab":
            world.start(name)
        await world.meet()
        await world.hubs["b"].send("a", MaskedPoints(torch.zeros(1_000_000)), Stamp("", 0, 1))
        await world.hubs["a"].receive("b", MaskedPoints, Stamp("", 0, 1))
        world.kill("b")
        began = now()
        with pytest.raises(AbsentError):
            await world.hubs["a"].receive("b", MaskedPoints, Stamp("", 0, 2))
        assert 9 < now() - began < 12

    run_virtually(run())
