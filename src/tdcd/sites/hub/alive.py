"""Waiting for somebody's answer while looking whether they are there: silence is noticed within a second."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tdcd.sites.event_loop import now
from tdcd.sites.transport.base import AwayError

T = TypeVar("T")

UNDISTURBED = 0.1
"""Seconds that an answer may take before anybody looks; most take less."""
SILENCE = 0.75
"""Seconds in which whoever is there says so."""
BETWEEN = 1.0
"""Seconds between two looks."""


async def while_alive(answer: Awaitable[T], alive: Callable[[float], Awaitable[bool]], deadline: float) -> T:
    """Wait for an answer as long as whoever gives it is there.

    Args:
        answer: What is waited for.
        alive: Tells within so many seconds whether they are there.
        deadline: Seconds that the answer may take in any case.

    Raises:
        AwayError: they are not there, or take too long.
    """
    task, end, pause = asyncio.ensure_future(answer), now() + deadline, UNDISTURBED
    try:
        while True:
            await asyncio.wait({task}, timeout=pause)
            if task.done():
                return task.result()
            if now() > end:
                raise AwayError(f"it has not answered in {deadline:g} seconds")
            look = asyncio.ensure_future(alive(SILENCE))
            try:
                await asyncio.wait({task, look}, return_when=asyncio.FIRST_COMPLETED)
                if not task.done() and not look.result():
                    raise AwayError("it does not answer")
            finally:
                look.cancel()
            pause = BETWEEN
    finally:
        task.cancel()
