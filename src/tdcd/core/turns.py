"""All hubs of a federation in one process, in turns: the round script without an event loop."""

import types
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

from tdcd.core.script import Topic

T = TypeVar("T")
M = TypeVar("M")

Each = Callable[[Callable[[str], None], Iterable[str]], object]
"""Calls a function for every silo, several at once."""


@types.coroutine
def _pause() -> Generator[None, None, None]:
    yield


class Mail(Generic[M]):
    """Messages between hubs in one process."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[str, Topic], dict[str, M]] = {}
        self.sent = 0

    def put(self, sender: str, receiver: str, topic: Topic, message: M) -> None:
        """Deliver a message."""
        self._boxes.setdefault((receiver, topic), {})[sender] = message  # atomic: hubs may be in threads
        self.sent += 1

    async def take(self, receiver: str, topic: Topic, senders: Collection[str]) -> dict[str, M]:
        """Return a message from each sender; let other hubs run until all have arrived."""
        box = self._boxes.setdefault((receiver, topic), {})
        while len(box) < len(senders):
            await _pause()
        return self._boxes.pop((receiver, topic))


def run_in_turns(
    hubs: Mapping[str, Coroutine[Any, None, T]], mail: Mail[Any], each: Each | None = None
) -> dict[str, T]:
    """Run all hubs to their end: each in turn until it waits for a message, or several at once by ``each``.

    Raises:
        RuntimeError: hubs wait for messages that no hub sends.
    """
    results: dict[str, T] = {}
    failures: list[Exception] = []

    def advance(silo: str) -> None:
        try:
            hubs[silo].send(None)
        except StopIteration as stop:
            results[silo] = stop.value
        except Exception as error:  # raised when all have paused: hubs may be in threads
            failures.append(error)

    try:
        while waiting := [silo for silo in hubs if silo not in results]:
            before = mail.sent + len(results)
            if each:
                each(advance, waiting)
            else:
                for silo in waiting:
                    advance(silo)
            if failures:
                raise failures[0]
            if mail.sent + len(results) == before:
                raise RuntimeError(f"hubs wait for messages that no hub sends: {', '.join(waiting)}")
    finally:
        for hub in hubs.values():
            with suppress(ValueError):  # interrupted while a thread still runs it
                hub.close()
    return results
