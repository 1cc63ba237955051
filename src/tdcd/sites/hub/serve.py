"""From a finished training to a hub that serves predictions."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from tdcd.sites.hub.hub import Hub
from tdcd.sites.hub.serving import build_serving
from tdcd.sites.messages.types import FINISHED
from tdcd.sites.participants import check_serves
from tdcd.sites.transport.base import HubService


class Port(Protocol):
    """Where a hub is called."""

    service: HubService


def serve_run(hub: Hub, port: Port, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Serve what a hub has trained until somebody stops it.

    Args:
        hub: It has finished its training.
        port: Gets another service: from then on, predictions are answered.
        run: Runs a coroutine in the event loop and waits for it.

    Raises:
        RunError: the run directory is not what was written.
        KeyboardInterrupt: somebody has stopped it.
    """
    context = hub.context
    job, names = check_serves(context.job), context.clients.names
    serving = build_serving(job, context.silo, names, context.peers.peers, context.directory, context.log)

    async def until_stopped() -> None:
        port.service = serving  # before clients hear that the training is over, and come back
        await hub.farewell(FINISHED, wait=False)
        serving.open()
        try:
            await asyncio.Event().wait()
        finally:
            with suppress(TimeoutError):
                await asyncio.shield(asyncio.wait_for(serving.close(), 3.0))

    run(until_stopped())
