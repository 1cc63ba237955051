"""A real cluster of Ray on this machine, node by node, and what kills parts of it. Other clusters are left alone."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

STORE = 200 << 20
"""Bytes of shared memory of each node."""
PATIENCE = 60.0
"""Seconds that a node may take to start."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


class Nodes:
    """A head and other nodes, each with its own Ray processes. Ends them as a context, and no others."""

    def __init__(
        self,
        count: int = 2,
        *,
        cores: int = 1,
        store: int = STORE,
        environment: Mapping[str, str] = {},
        pinned: bool = False,
    ) -> None:
        """Start a head and further nodes.

        Args:
            count: How many nodes.
            cores: That each of them offers.
            store: Bytes of shared memory of each.
            environment: Further variables of all Ray processes.
            pinned: Whether each node, of one core, really has no more: Ray reserves cores, but confines nobody to them.
        """
        self._cores, self._store, self._pinned = cores, store, pinned
        self._environment = os.environ | QUIET | dict(environment or {})
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: sockets' paths are
        self._nodes: list[subprocess.Popen[bytes]] = []
        self.port = _free_port()
        try:
            for _ in range(count):
                self.add()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where drivers join it."""
        return f"127.0.0.1:{self.port}"

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self) -> None:
        """Start one more node; the first is the head."""
        head = not self._nodes
        more = [f"--address={self.address}"]
        if head:
            more = ["--head", f"--port={self.port}", "--include-dashboard=false"]
            more += [f"--ray-client-server-port={_free_port()}"]
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
            "--node-ip-address=127.0.0.1", f"--num-cpus={self._cores}", f"--object-store-memory={self._store}",
            f"--temp-dir={self._folder}", "--include-log-monitor=false", *more,
        ]  # fmt: skip
        log = (self._folder / f"node-{time.monotonic_ns()}.log").open("wb")
        with log:
            node = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)  # noqa: S603
            if self._pinned:  # what it starts inherits it
                own = sorted(os.sched_getaffinity(0))
                os.sched_setaffinity(node.pid, {own[len(self._nodes) % len(own)]})
        self._nodes.append(node)
        until = time.monotonic() + PATIENCE
        while b"Ray runtime started" not in (text := Path(log.name).read_bytes()):
            if node.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"a node of Ray does not start: {text.decode(errors='replace')}")
            time.sleep(0.1)

    def kill(self, number: int) -> None:
        """Kill a node at once: all of its processes get SIGKILL. Number 0 is the head."""
        node = self._nodes.pop(number)
        for process in [node.pid, *descendants(node.pid)]:
            kill(process)
        node.wait()

    def raylet(self, number: int) -> int:
        """Return the process of a node that starts its workers."""
        return next(
            p for p in descendants(self._nodes[number].pid) if command_of(p).split("/")[-1].startswith("raylet")
        )

    def hosts(self, number: int) -> list[int]:
        """Return the processes of a node's actors."""
        return [process for process in descendants(self._nodes[number].pid) if "Host" in command_of(process)]

    def close(self) -> None:
        """Leave the cluster, and end all nodes."""
        if "ray" in sys.modules:
            sys.modules["ray"].shutdown()  # Ray would wait for the cluster to hear of an error that ends this process
        while self._nodes:
            self.kill(len(self._nodes) - 1)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def kill(process: int) -> None:
    """Send SIGKILL to a process, if it is still there."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def command_of(process: int) -> str:
    """Return how a process names itself: Ray names workers by their actor."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split(" ")[0]
    except OSError:
        return ""


def descendants(process: int) -> list[int]:
    """Return all processes below one, parents first."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    result, left = [], [process]
    while left:
        own = children.get(left.pop(), [])
        result += own
        left += own
    return result


def _parents() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
