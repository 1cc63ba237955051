"""An actor at a node of a cluster: no more than a pipe to a worker process there.

It imports neither torch nor Ray, so that it costs a node little beside the process that computes. However the actor
ends, the pipe is closed, and its process writes a checkpoint and goes.
"""

import os
import socket
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcd.cluster.version import check_version
from tdcd.errors import ClusterError
from tdcd.experiments.process import LocalProcess

SETTLING = 5.0
"""Seconds until nodes that share a file system see what one of them has written."""


@dataclass(frozen=True)
class Marker:
    """A file by which nodes tell that they share a directory."""

    path: Path
    text: str


@dataclass(frozen=True)
class HostSpec:
    """What a worker process at a node is started with."""

    version: str
    threads: int
    command: Sequence[str]
    paths: Sequence[str]
    """Where the driver finds users' modules."""
    directory: Path
    """Where the driver was started."""
    marker: Marker


class ProcessHost:
    """Holds a worker process."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None

    def open(self, spec: HostSpec) -> str:
        """Start the process; return the name of the node.

        Raises:
            ClusterError: this node has another version, or does not see the sweep's directory.
        """
        check_version(spec.version)
        check_shared(spec.marker)
        directory = spec.directory if spec.directory.is_dir() else None
        self._process = LocalProcess(spec.threads, spec.command, [*_installed(), *spec.paths], directory)
        return socket.gethostname()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of this actor, or of its process."""
        return getattr(self if method == "open" else self._process, method)(*arguments)


def check_shared(marker: Marker) -> None:
    """Check that this machine sees the directory in which the driver has left a marker.

    Raises:
        ClusterError: it does not.
    """
    until = time.monotonic() + SETTLING
    while not marker.path.is_file() or marker.path.read_text() != marker.text:
        if time.monotonic() > until:
            raise ClusterError(
                f"node {socket.gethostname()} does not see the sweep's directory {marker.path.parent}: all nodes must "
                "share the file system that it lies on; choose another with --out"
            )
        time.sleep(0.2)


def _installed() -> list[str]:
    """Return where this Python finds what is installed, without what Ray adds for its own processes."""
    own = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    return [path for path in sys.path if os.path.realpath(path) in own]
