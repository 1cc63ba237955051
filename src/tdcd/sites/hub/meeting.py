"""A meeting of hubs: what each brings, and what all hear when it opens."""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from tdcd.errors import DeploymentError, join_names
from tdcd.sites.messages.calls import Hello, Opening
from tdcd.sites.messages.frames import RefusedError


@dataclass(frozen=True)
class Meeting:
    """A meeting that all came to."""

    epoch: int
    incarnations: Mapping[str, str]
    brought: Mapping[str, Any]

    @classmethod
    def of(cls, everyone: Mapping[str, Hello]) -> "Meeting":
        """Open the next epoch for all who have come, by silo."""
        return cls(
            epoch=1 + max(hello.epoch for hello in everyone.values()),
            incarnations={silo: hello.incarnation for silo, hello in everyone.items()},
            brought={silo: {"topic": hello.topic, **json.loads(hello.brought)} for silo, hello in everyone.items()},
        )

    @property
    def opening(self) -> Opening:
        """What every hub that came hears."""
        return Opening(self.epoch, json.dumps(self.brought))


def check_brought(text: str) -> None:
    """Check what a hub brings to a meeting: a table, as JSON."""
    try:
        valid = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        valid = False
    if not valid:
        raise RefusedError("a hub brings something malformed to the meeting")


def read_opening(opening: Opening, chair: str, silos: Set[str]) -> dict[str, dict[str, Any]]:
    """Read what the hubs of all silos brought, as the chair tells it.

    Raises:
        RefusedError: it is malformed.
    """
    try:
        everybody: dict[str, dict[str, Any]] = json.loads(opening.brought)
        valid = all(isinstance(brought["topic"], str) for brought in everybody.values())
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        everybody, valid = {}, False
    if not valid or set(everybody) != silos:
        raise RefusedError(f"the hub of silo '{chair}' opens the meeting with something malformed")
    return everybody


def check_topics(everybody: Mapping[str, Mapping[str, Any]], topic: str) -> None:
    """Check that all hubs came for the same thing.

    Raises:
        DeploymentError: they did not.
    """
    topics = {silo: brought["topic"] for silo, brought in everybody.items() if brought["topic"] != topic}
    if topics:
        odd = join_names(f"that of '{silo}' to {about}" for silo, about in topics.items())
        raise DeploymentError(
            f"the hubs are at different stages: this one came to {topic}, {odd}; stop all hubs and start them again"
        )
