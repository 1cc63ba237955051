"""How sites reach each other, whatever carries the messages.

A hub answers calls (``HubService``). Its clients, other hubs and its operator reach it through a ``RemoteHub``. Two
implementations: gRPC over mutual TLS, and memory, for tests and for trying things out in one process.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tdcd.errors import AbsentError, DeploymentError
from tdcd.sites.messages.calls import Hello, HubStatus, Opening
from tdcd.sites.messages.frames import Frame
from tdcd.sites.security.identity import Identity

FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0
"""Seconds before a failed call is tried again: the first, doubled each time up to the longest."""
BACK_OFF = 60.0
"""The longest where TLS is refused: each try is a line in the other side's log."""
STALL = 30.0
"""Seconds in which a frame has to get through, of a quarter of a megabyte at most."""
SLOWEST = 16_000
"""Bytes a second: whoever is waited for has more time while so much comes from it, or goes to it."""


class UnreachableError(DeploymentError):
    """The other side is not there, or the line was cut. It may be back soon."""


class RefusalError(DeploymentError):
    """The other side refuses; its message says why."""


class NotAllowedError(DeploymentError):
    """Whoever calls may not."""


class ExpiredError(DeploymentError):
    """A certificate that was good when the stream was opened is not any more; there may be another by now."""


class EarlyError(DeploymentError):
    """A message that came too early: it should be brought again."""


class AwayError(AbsentError):
    """A hub or a client that is needed for an answer is away: ask again later."""


class Stream(Protocol):
    """Frames both ways between a hub and one of its clients."""

    async def send(self, frame: Frame) -> None:
        """Send a frame.

        Raises:
            UnreachableError: the stream has ended.
        """

    async def receive(self) -> Frame | None:
        """Wait for the next frame; nothing when the stream has ended."""


class HubService(Protocol):
    """What a hub answers. ``caller`` is whose certificate was shown, or nobody where there are none."""

    async def attend(self, caller: Identity | None, stream: Stream) -> None:
        """Keep a client's stream until it ends."""

    async def meet(self, caller: Identity | None, hello: Hello) -> Opening:
        """Let another hub come to a meeting; answer when all have come."""

    async def deliver(self, caller: Identity | None, silo: str, frames: AsyncIterator[Frame]) -> str:
        """Take a message of another hub; tell why it is of no use, if it is not."""

    async def predict(self, caller: Identity | None, silo: str, frame: Frame) -> Frame:
        """Answer a question about IDs; ``silo`` is whose hub asks, as it says."""

    async def report(self, caller: Identity | None) -> HubStatus:
        """Tell how the hub is doing."""


class RemoteHub(Protocol):
    """A hub, as others reach it.

    Every call may raise UnreachableError or RefusalError.
    """

    def attend(self) -> AbstractAsyncContextManager[Stream]:
        """Open a client's stream to its hub. Its end raises RefusalError if the hub refuses the client."""

    async def meet(self, hello: Hello, timeout: float) -> Opening:
        """Come to a meeting."""

    async def deliver(self, silo: str, frames: AsyncIterator[Frame], timeout: float) -> str:
        """Bring a message of a silo's hub, each frame within ``timeout``; return why it is of no use, if it is not."""

    async def predict(self, silo: str, frame: Frame, timeout: float) -> Frame:
        """Ask about IDs, for the hub of a silo; one round trip."""

    async def report(self, timeout: float) -> HubStatus:
        """Ask how the hub is doing."""

    async def answers(self, timeout: float) -> bool:
        """Tell whether the hub answers at all; raises nothing."""

    async def explain(self) -> str:
        """Find out why the hub cannot be reached, in a sentence."""

    def renew(self) -> bool:
        """Dial again if this site's certificates have changed; tell whether they have."""
