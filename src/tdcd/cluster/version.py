"""What must be the same on all nodes of a cluster."""

import socket
from importlib.metadata import version

from tdcd.errors import ClusterError

VERSION = f"{version('tdcd')} with torch {version('torch')}"


def check_version(driver: str) -> None:
    """Check that a driver has what this node has.

    Raises:
        ClusterError: it has another version.
    """
    if driver != VERSION:
        raise ClusterError(
            f"node {socket.gethostname()} has tdcd {VERSION}, this machine {driver}; install the same on all nodes"
        )
