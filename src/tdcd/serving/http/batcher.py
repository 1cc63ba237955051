"""Requests that wait, and the one thread that answers them: those that come together are answered together."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tdcd.compute import one_torch_thread

R = TypeVar("R")

GATHER = 0.001
"""Seconds in which an idle thread waits for further requests after the first."""
MOST = 64
"""Requests that are answered together."""
BYTES = 1_000_000
"""Of such requests; a larger one is answered alone."""


@dataclass(eq=False)
class _Waiting(Generic[R]):
    body: bytes
    future: "asyncio.Future[R]"
    since: float = field(default_factory=time.monotonic)


class Batcher(Generic[R]):
    """Answers requests in a thread of its own, several at a time: those that come while it computes are next."""

    def __init__(self, answer: Callable[[Sequence[bytes]], Sequence[R]]) -> None:
        """Start the thread.

        Args:
            answer: Returns an outcome for each body; it may raise nothing.
        """
        self._answer = answer
        self._waiting: deque[_Waiting[R]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="predict", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    async def submit(self, body: bytes) -> R:
        """Have a request answered."""
        waiting = _Waiting(body, asyncio.get_running_loop().create_future())
        with self._changed:
            self._waiting.append(waiting)
            self._changed.notify()
        outcome: R = await waiting.future
        return outcome

    def close(self) -> None:
        """Answer what waits, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _take(self) -> list[_Waiting[R]]:
        """Wait for requests; return those to answer next, none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return []
            left = self._waiting[0].since + GATHER - time.monotonic()
            if left > 0:
                self._changed.wait_for(lambda: len(self._waiting) >= MOST or self._closed, left)
            taken = [self._waiting.popleft()]
            size = len(taken[0].body)
            while self._waiting and len(taken) < MOST and size + len(self._waiting[0].body) <= BYTES:
                size += len(self._waiting[0].body)
                taken.append(self._waiting.popleft())
            return taken

    def _run(self) -> None:
        with one_torch_thread():
            while taken := self._take():
                wanted = [one for one in taken if not one.future.cancelled()]
                if wanted:
                    outcomes = self._answer([one.body for one in wanted])
                    wanted[0].future.get_loop().call_soon_threadsafe(_deliver, wanted, outcomes)


def _deliver(waiting: Sequence[_Waiting[R]], outcomes: Sequence[R]) -> None:
    for one, outcome in zip(waiting, outcomes, strict=True):
        if not one.future.done():
            one.future.set_result(outcome)
