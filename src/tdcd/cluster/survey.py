"""What each node of a cluster says of itself: runs there, without torch and Ray."""

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tdcd.errors import ClusterError

SAME = ("tdcd", "torch")
"""Packages that must have the same version everywhere."""
SHARED = "/dev/shm"  # noqa: S108 - nothing is written there
TAIL = 1 << 20
"""Bytes of a log that are looked at."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node has."""

    host: str
    versions: tuple[str, ...]
    """Of each package in SAME."""
    shared: int
    """Bytes of its shared memory; 0 where that is not known."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {number}" for name, number in zip(SAME, self.versions, strict=True))


def look() -> NodeFacts:
    """Look at this machine."""
    shared = 0
    if os.path.isdir(SHARED):
        facts = os.statvfs(SHARED)
        shared = facts.f_frsize * facts.f_blocks
    return NodeFacts(socket.gethostname(), tuple(map(_version, SAME)), shared)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(none)"


def check_versions(nodes: Sequence[NodeFacts]) -> None:
    """Check that all nodes have what this machine has.

    Raises:
        ClusterError: some have not; names them.
    """
    own = look()
    if others := [f"node {node.host} has {node}" for node in nodes if node.versions != own.versions]:
        more = f"; and {len(others) - 3} nodes more" * (len(others) > 3)
        raise ClusterError(f"{'; '.join(others[:3])}{more}; this machine has {own}; install the same on all nodes")


def describe_shortage(node: NodeFacts, wanted: int) -> str:
    """Tell that a node's shared memory is smaller than what Ray was to use of it, if it is."""
    if not 0 < node.shared < wanted:
        return ""
    return (
        f"node {node.host}: {SHARED} has {node.shared / 1e6:,.0f} MB, so Ray shares arrays through files, which is "
        f"slower; start the container with --shm-size={wanted / 1e9:.1f}g"
    )


def read_tail(log: str) -> str:
    """Return the end of a log on this machine; nothing if it cannot be read."""
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, os.path.getsize(log) - TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def memory_kills(log: str, actor: str) -> tuple[int, str]:
    """Tell how often a node's log says that Ray ended an actor for want of memory, and who used how much the last time.

    Args:
        log: What the node's raylet wrote.
        actor: The actor's ID.
    """
    kills = re.findall(rf"Selected to kill: \(Actor\({actor}\).*?actual memory used=([\d.]+)GB", log)
    return len(kills), f"it took {kills[-1]} GB, and {memory_use(log)}" if kills else ""


def memory_use(text: str) -> str:
    """Return what Ray last said of a node's memory, if it says something."""
    nodes = re.findall(r"Memory on the node \(.*?\) was ([\d.]+)GB used / ([\d.]+)GB limit", text)
    return "all programs of its node {} of {} GB".format(*nodes[-1]) if nodes else ""
