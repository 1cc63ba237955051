"""What a cluster gives a training, and where the time of its rounds goes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeUsage:
    """A machine of a cluster."""

    name: str
    cores: int
    bundles: int
    """Actors on it that compute clients."""
    hubs: int
    seconds: float
    """How long its bundles computed, together."""


@dataclass(frozen=True)
class ClusterUsage:
    """A cluster, and its rounds so far in this session."""

    nodes: tuple[NodeUsage, ...]
    rounds: int
    seconds: float
    """What the rounds took."""
    computing: float
    """Of these, how long clients computed, at the slowest bundle of each call; a mean over the hubs."""
    waiting: float
    """How long hubs waited for each other; a mean over them."""
    repeated: int
    """Rounds that were begun again since an actor was lost."""

    @property
    def transfer(self) -> float:
        """The seconds that are left for messages between actors."""
        return max(0.0, self.seconds - self.computing - self.waiting)

    def share(self, node: NodeUsage) -> float:
        """Return the part of the time in which a node's bundles computed, 0 to 1."""
        return node.seconds / max(1e-9, self.seconds * node.bundles)

    @property
    def size(self) -> str:
        """How large the cluster is, in words."""
        nodes, cores = len(self.nodes), sum(node.cores for node in self.nodes)
        actors = sum(node.bundles + node.hubs for node in self.nodes)
        return f"{nodes} node{'s' * (nodes > 1)}, {cores} core{'s' * (cores > 1)}, {actors} actors"

    def __str__(self) -> str:
        """Tell where the time went, in a line; nothing before the first round."""
        if not self.rounds:
            return ""
        parts = {"compute": self.computing, "transfer": self.transfer, "waiting": self.waiting}
        text = ", ".join(f"{name} {seconds / max(self.seconds, 1e-9):.0%}" for name, seconds in parts.items())
        shares = [self.share(node) for node in self.nodes if node.bundles]
        if len(shares) > 1:
            text += f"; nodes busy {min(shares):.0%} to {max(shares):.0%}"
        if self.repeated:
            text += f"; {self.repeated} round{'s' * (self.repeated > 1)} repeated"
        return text
