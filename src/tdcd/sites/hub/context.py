"""What all parts of a hub share."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdcd.errors import AbsentError
from tdcd.jobs.schema import Job
from tdcd.sites.event_loop import now
from tdcd.sites.hub.clients import Clients
from tdcd.sites.hub.peers import Peers


@dataclass
class Progress:
    """How far the hub is, for whoever asks."""

    stage: str = "starting"
    round: int = 0
    evaluation: dict[str, Any] = field(default_factory=dict)
    """The newest one: its round, its measures by part, and ``partial``: parts of which rows were absent, each with
    how many were measured and how many there are."""
    last_error: str = ""


@dataclass(frozen=True)
class HubContext:
    """A hub's job, its clients and its peers."""

    job: Job
    silo: str
    directory: Path
    clients: Clients
    peers: Peers
    log: Callable[[str], None]
    progress: Progress = field(default_factory=Progress)

    async def wait_for_clients(self, holders: Collection[str]) -> None:
        """Wait until as many clients are there as the job wants at least, of those that hold samples."""
        deployment = self.job.deployment
        await self.clients.enough(min(deployment.minimum_clients, len(holders)), holders, deployment.hub_deadline)


class News:
    """Lets tasks of a hub wait for what other tasks find out."""

    def __init__(self) -> None:
        self._condition = asyncio.Condition()

    async def tell(self) -> None:
        """Let everybody who waits look again."""
        async with self._condition:
            self._condition.notify_all()

    async def wait(self, done: Callable[[], bool]) -> None:
        """Wait until something is known."""
        async with self._condition:
            await self._condition.wait_for(done)

    async def wait_for_clients(self, context: HubContext, done: Callable[[], bool], what: str) -> None:
        """Wait until all clients have done something.

        Raises:
            AbsentError: they have not come in time.
        """
        seconds, clients = context.job.deployment.hub_deadline, context.clients
        try:
            async with asyncio.timeout(seconds):
                await self.wait(done)
        except TimeoutError as error:
            absent = sorted(set(clients.names) - set(clients.links))
            raise AbsentError(
                f"silo '{context.silo}': after {seconds:g} seconds not all clients did {what}; not connected: "
                f"{', '.join(absent) or 'none; some did not reply'}. Needed to begin: see deployment.start_with"
            ) from error


@dataclass
class Pause:
    """Waits again and again, each time longer, up to an end."""

    seconds: float
    """Before the end."""
    times: int = 0
    _began: float = 0.0

    async def wait(self) -> None:
        """Wait a little."""
        if not self.times:
            self._began = now()
        await asyncio.sleep(min(2.0, 0.1 * 2**self.times))
        self.times += 1

    @property
    def over(self) -> bool:
        """Whether the end has come."""
        return now() - self._began > self.seconds
