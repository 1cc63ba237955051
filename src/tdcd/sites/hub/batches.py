"""Questions that arrive together share an exchange between sites."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

from tdcd.data.arrays import Array
from tdcd.errors import TdcdError
from tdcd.sites.messages.frames import RefusedError

T = TypeVar("T")

WINDOW = 0.0005
"""Seconds that a question waits for others, while exchanges are under way; one alone waits for nobody."""
FLIGHT = 4
"""Exchanges under way at a time; what comes meanwhile shares the next."""
MOST_WAITING = 1 << 18
"""IDs that may wait."""


@dataclass
class Batches(Generic[T]):
    """Joins the IDs of several questions, as many as an exchange may have."""

    exchange: Callable[[Array], Awaitable[T]]
    most: int
    """IDs of an exchange."""
    _waiting: "deque[tuple[Array, asyncio.Future[tuple[T, slice]]]]" = field(default_factory=deque)
    _ids: int = 0
    _under_way: set["asyncio.Task[None]"] = field(default_factory=set)
    _timer: asyncio.Handle | None = None

    async def ask(self, ids: Array) -> tuple[T, slice]:
        """Return the result of the exchange that these IDs were in, and their place in it.

        Raises:
            RefusedError: too many wait already.
        """
        if self._ids + len(ids) > MOST_WAITING:
            raise RefusedError(f"{self._ids:,} IDs wait here already; ask again later")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[T, slice]] = loop.create_future()
        self._waiting.append((ids, future))
        self._ids += len(ids)
        if self._timer is None and len(self._under_way) < FLIGHT:
            self._timer = loop.call_later(WINDOW, self._send) if self._under_way else loop.call_soon(self._send)
        return await future

    def _send(self) -> None:
        """Begin exchanges with what waits, as far as they may be under way at a time."""
        self._timer = None
        while self._waiting and len(self._under_way) < FLIGHT:
            batch = self._next()
            task = asyncio.ensure_future(self._run(batch))
            self._under_way.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._under_way.discard(task)
        if self._timer is None:
            self._send()

    def _next(self) -> "list[tuple[Array, asyncio.Future[tuple[T, slice]]]]":
        """Take the first questions that fit into an exchange; whoever waits no more has none."""
        batch: list[tuple[Array, asyncio.Future[tuple[T, slice]]]] = []
        count = 0
        while self._waiting:
            ids, future = self._waiting[0]
            kinds = {ids.dtype.kind, *(other.dtype.kind for other, _ in batch)}
            if batch and (count + len(ids) > self.most or len(kinds) > 1):
                break
            self._waiting.popleft()
            self._ids -= len(ids)
            if not future.done():
                batch.append((ids, future))
                count += len(ids)
        return batch

    async def _run(self, batch: "list[tuple[Array, asyncio.Future[tuple[T, slice]]]]") -> None:
        if not batch:
            return
        try:
            result = await self.exchange(np.concatenate([ids for ids, _ in batch]))
        except BaseException as error:
            if isinstance(error, TdcdError) and len(batch) > 1:  # what is wrong with one question harms no other
                half = len(batch) // 2
                await asyncio.gather(self._run(batch[:half]), self._run(batch[half:]))
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else RefusedError("the hub ends"))
            if not isinstance(error, Exception):
                raise
            return
        start = 0
        for ids, future in batch:
            if not future.done():
                future.set_result((result, slice(start, start + len(ids))))
            start += len(ids)
