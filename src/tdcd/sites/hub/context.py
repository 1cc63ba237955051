"""What all parts of a hub share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tdcd.jobs.schema import Job
from tdcd.sites.hub.clients import Clients
from tdcd.sites.hub.peers import Peers


@dataclass
class Progress:
    """How far the hub is, for whoever asks."""

    stage: str = "starting"
    round: int = 0
    evaluation: dict[str, Any] = field(default_factory=dict)
    """The newest one."""
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

    async def wait_for_clients(self, holders: int) -> None:
        """Wait until as many clients are there as the job wants at least, of those that hold samples."""
        deployment = self.job.deployment
        await self.clients.enough(min(deployment.minimum_clients, holders), deployment.hub_deadline)
