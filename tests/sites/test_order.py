"""Large replies are taken in the order of names, whoever is first to send: sums are the same to the bit."""

import asyncio
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from sites.memory import run_virtually
from tdcd.sites.event_loop import now
from tdcd.sites.hub.clients import Clients, Request
from tdcd.sites.hub.link import Link
from tdcd.sites.messages.frames import Stamp, frames
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.types import Descend, Embed, Weights
from tdcd.sites.transport.memory import MemoryStream

NAMES = ("east", "north", "south", "west")
DEADLINE = 8.0
CHUNK = 1 << 16


async def welcome(_: Link) -> None:
    return


async def ask(delays: Mapping[str, float], pause: float = 0.0, numbers: int = 100) -> tuple[list[str], set[str], float]:
    """Ask clients that reply after some seconds, if at all; return whose replies are taken, who is lost, and when."""
    clients = Clients("bank", NAMES, "job", DEADLINE, lambda _: None, welcome)
    pairs = {name: MemoryStream.pair() for name in NAMES}
    attending = [asyncio.ensure_future(clients.attend(name, far)) for name, (_, far) in pairs.items()]
    while len(clients.present()) < len(NAMES):
        await asyncio.sleep(0.01)

    async def reply(name: str) -> None:
        near, _ = pairs[name]
        frame = await near.receive()
        assert frame
        assert frame.header
        await asyncio.sleep(delays[name])
        stamp = Stamp("job", frame.header.epoch, frame.header.round)
        for piece in frames(pack(Weights((torch.ones(numbers),)), stamp)):
            await near.send(piece)
            await asyncio.sleep(pause)

    replies = [asyncio.ensure_future(reply(name)) for name in NAMES if name in delays]
    taken: list[str] = []

    def take(name: str, _: str, tensor: Tensor) -> None:
        assert tensor.numel() == numbers
        taken.append(name)

    request = Request(Descend(None), Weights, 8 * numbers + 1000, lambda _: None)
    began = now()
    _, lost = await clients.ask(dict.fromkeys(NAMES, request), Stamp("job"), take)
    seconds = now() - began
    for task in (*attending, *replies):
        task.cancel()
    await asyncio.gather(*attending, *replies, return_exceptions=True)
    return taken, set(lost), seconds


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcd.sites.hub.clients.LARGE", 0)
    monkeypatch.setattr("tdcd.sites.messages.frames.CHUNK", CHUNK)


def test_the_last_by_name_sends_first() -> None:
    taken, lost, seconds = run_virtually(ask({"west": 0.0, "south": 1.0, "north": 2.0, "east": 3.0}))
    assert taken == list(NAMES)
    assert not lost
    assert seconds < DEADLINE


def test_one_that_never_replies_takes_no_other_with_it() -> None:
    taken, lost, seconds = run_virtually(ask({"west": 0.0, "south": 1.0, "north": 2.0}))
    assert taken == ["north", "south", "west"]
    assert lost == {"east"}
    assert seconds < 2 * DEADLINE


def test_slow_lines_cost_nobody_its_turn() -> None:
    """Each reply takes longer than the deadline, at more than 16 kB a second."""
    numbers = 4 * CHUNK  # 1 MB in frames of 64 kB, one a second
    taken, lost, seconds = run_virtually(ask(dict.fromkeys(NAMES, 0.0), pause=1.0, numbers=numbers))
    assert taken == list(NAMES)
    assert not lost
    assert seconds > DEADLINE


def test_one_that_hangs_after_many_bytes_is_not_waited_for_much_longer() -> None:
    async def hang() -> float:
        clients = Clients("bank", ("north",), "job", DEADLINE, lambda _: None, welcome)
        near, far = MemoryStream.pair()
        attending = asyncio.ensure_future(clients.attend("north", far))
        while not clients.present():
            await asyncio.sleep(0.01)
        began = now()
        request = Request(
            Embed(1, (torch.zeros(1_000_000),), torch.empty(0).long(), torch.empty(0).long()),
            Weights,
            1000,
            lambda _: None,
        )
        _, lost = await clients.ask({"north": request}, Stamp("job"))
        assert set(lost) == {"north"}
        seconds = now() - began
        near.cut()
        await asyncio.gather(attending, return_exceptions=True)
        return seconds

    assert run_virtually(hang()) < DEADLINE + 70  # 4 MB would be 250 seconds at the slowest
