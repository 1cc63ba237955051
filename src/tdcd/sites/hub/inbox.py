"""What other hubs have brought, until it is waited for: messages of known kinds, few of each hub, within a budget."""

from dataclasses import dataclass, field

from tdcd.sites.messages.frames import Message, RefusedError, Stamp
from tdcd.sites.messages.packing import kind_of
from tdcd.sites.messages.types import (
    AllIDs,
    Call,
    CommonPlaces,
    Concluded,
    Digests,
    End,
    Evaluated,
    Fall,
    HandedOver,
    Leave,
    MaskedPoints,
    ModelPart,
    SiloEmbeddings,
    SiloGradients,
    SiloHolders,
    SiloScores,
    Waiting,
)

_ROUNDS = (SiloHolders, SiloEmbeddings, SiloGradients, End, Waiting, SiloScores, Evaluated, Fall, Concluded, ModelPart)
_ALIGNMENT = (AllIDs, MaskedPoints, CommonPlaces, HandedOver, Digests)
KINDS = frozenset(map(kind_of, (Call, Leave, *_ROUNDS, *_ALIGNMENT)))
"""Kinds of messages that hubs bring each other."""
WAITING = 64
"""Messages of one hub that may wait here."""


@dataclass(frozen=True)
class Inbox:
    """Messages by kind, moment and silo; their epoch is the present one."""

    messages: dict[tuple[str, Stamp, str], Message] = field(default_factory=dict)

    def keep(self, silo: str, message: Message, most: int) -> None:
        """Keep a message; one that comes again is the same.

        Raises:
            RefusedError: too many of its silo wait here already, or more bytes than twice what one may have.
        """
        key = _key(message.kind, message.stamp, silo)
        held = [other for (_, _, origin), other in self.messages.items() if origin == silo]
        size = sum(other.nbytes for other in held) + message.nbytes
        if key not in self.messages and (len(held) >= WAITING or size > 2 * most):
            raise RefusedError(f"{len(held)} messages of silo '{silo}' wait here already; no more are expected")
        self.messages.setdefault(key, message)

    def has(self, kind: str, stamp: Stamp, silo: str) -> bool:
        """Tell whether a message has come."""
        return _key(kind, stamp, silo) in self.messages

    def take(self, kind: str, stamp: Stamp, silo: str) -> Message:
        """Return a message that has come, and forget it."""
        return self.messages.pop(_key(kind, stamp, silo))

    def forget_before(self, number: int) -> None:
        """Forget what belongs to earlier rounds."""
        for key in [key for key in self.messages if key[1].round < number]:
            del self.messages[key]


def _key(kind: str, stamp: Stamp, silo: str) -> tuple[str, Stamp, str]:
    return kind, stamp._replace(job="", epoch=0), silo
