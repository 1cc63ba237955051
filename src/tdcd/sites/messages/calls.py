"""What hubs call each other with, and what a hub tells of itself."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hello:
    """A hub comes to a meeting."""

    protocol: int
    version: str
    silo: str
    job: str
    """What all sites share of the job, as JSON."""
    incarnation: str
    """Drawn when the hub started."""
    epoch: int
    """The epoch that it has been in."""
    topic: str
    brought: str
    """What it brings to the meeting, as JSON."""


@dataclass(frozen=True)
class Opening:
    """All hubs have come: an epoch begins."""

    epoch: int
    brought: str
    """What every hub brought, by silo, as JSON."""


@dataclass(frozen=True)
class ClientStatus:
    """A client, as its hub sees it."""

    name: str
    present: bool
    rows: int
    left_out: int
    """Rounds that it was left out of."""
    seconds_since_seen: float
    serves: int = 0
    """Rows that it has ready for predictions."""


@dataclass(frozen=True)
class PeerStatus:
    """Another hub."""

    silo: str
    address: str
    present: bool


@dataclass(frozen=True)
class HubStatus:
    """How a hub is doing."""

    silo: str
    job: str
    stage: str
    round: int
    rounds: int
    rounds_per_second: float
    clients: tuple[ClientStatus, ...]
    peers: tuple[PeerStatus, ...]
    bytes_sent: int
    bytes_received: int
    evaluation_bytes: int
    """Bytes of tensors that evaluations sent and received; not among those of rounds."""
    last_error: str
    evaluation: str
    """The newest evaluation, as JSON."""
    seconds: float
    version: str
    prediction_requests: int = 0
    """Of a hub that serves predictions."""
    predicted: int = 0
    """IDs that it has answered for."""
    prediction_errors: int = 0
