"""The event loop of a site: in a thread of its own, and the only clock that hubs and clients know."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


def now() -> float:
    """Return the time of the event loop, in seconds: in tests it may be a virtual one."""
    return asyncio.get_running_loop().time()


@contextmanager
def event_loop() -> Iterator[Callable[[Coroutine[Any, Any, T]], T]]:
    """Run an event loop in a thread of its own; give a way to run coroutines in it and to wait for them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="network", daemon=True)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    try:
        yield run
    finally:
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_all_cancelled(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        if not thread.is_alive():
            loop.close()


async def _all_cancelled() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
