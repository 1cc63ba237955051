"""A meeting of hubs: what each brings, and what all hear when it opens."""

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from tdcd.sites.messages.calls import Opening
from tdcd.sites.messages.frames import RefusedError


@dataclass(frozen=True)
class Meeting:
    """A meeting that all came to."""

    epoch: int
    incarnations: Mapping[str, str]
    brought: Mapping[str, Any]

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
