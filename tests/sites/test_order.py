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
from tdcd.sites.messages.types import Descend, Weights
from tdcd.sites.transport.memory import MemoryStream

NAMES = ("east", "north", "south", "west")
DEADLINE = 8.0


async def welcome(_: Link) -> None:
    return


async def ask(delays: Mapping[str, float]) -> tuple[list[str], set[str], float]:
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
        for piece in frames(pack(Weights((torch.ones(100),)), stamp)):
            await near.send(piece)

    replies = [asyncio.ensure_future(reply(name)) for name in NAMES if name in delays]
    taken: list[str] = []

    def take(name: str, _: str, tensor: Tensor) -> None:
        assert tensor.numel() == 100
        taken.append(name)

    request = Request(Descend(None), Weights, 1000, lambda _: None)
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
    monkeypatch.setattr("tdcd.sites.messages.frames.CHUNK", 64)


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
