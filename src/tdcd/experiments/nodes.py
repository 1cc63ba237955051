"""The worker processes of a sweep at the nodes of a Ray cluster, each held by an actor that reserves its cores.

A process that is lost, alone or with its node, is replaced wherever there is room.
"""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from tdcd.cluster.fleet import Node
from tdcd.cluster.hub import LostError
from tdcd.cluster.ray_fleet import LoneActor, RayFleet, users_folders
from tdcd.cluster.version import VERSION
from tdcd.errors import ClusterError, RunError
from tdcd.experiments.host import HostSpec, Marker, ProcessHost
from tdcd.experiments.pool import MOMENT, TRIES, Pool, pool
from tdcd.experiments.process import GRACE
from tdcd.files import write_atomically
from tdcd.runs.layout import MARKER

PATIENCE = 20.0
"""Seconds without a process until the user learns that there is no room for one."""


def cores_each(nodes: Sequence[Node], jobs: int) -> int:
    """Return how many cores each of so many runs can have at once, at least one."""
    fitting = [
        cores for cores in range(1, max(n.cores for n in nodes) + 1) if sum(n.cores // cores for n in nodes) >= jobs
    ]
    return max(fitting, default=1)


def describe(fleet: RayFleet, jobs: int, cores: int) -> str:
    """Say what computes a sweep."""
    total = sum(node.cores for node in fleet.nodes)
    return (
        f"{_count(len(fleet.nodes), 'node')} with {_count(total, 'core')}, up to {_count(jobs, 'run')} at once on "
        f"{_count(cores, 'core')} each: {fleet.description}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


@contextmanager
def mark(directory: Path) -> Iterator[Marker]:
    """Leave a marker in a directory, for nodes to see that they share it."""
    marker = Marker(directory.absolute() / MARKER, uuid4().hex)
    write_atomically(marker.path, marker.text)
    try:
        yield marker
    finally:
        marker.path.unlink(missing_ok=True)


@dataclass
class Room:
    """Whether the cluster has room for processes; says once when it has for none."""

    on_note: Callable[[str], None]
    taken: set[int] = field(default_factory=set)
    """Those that are placed."""
    since: float = field(default_factory=time.monotonic)
    said: bool = False

    def take(self, process: int) -> None:
        """A process was placed."""
        self.taken.add(process)
        self.said = False

    def leave(self, process: int) -> None:
        """A process is no more, if it was placed."""
        self.taken.discard(process)
        self.since = time.monotonic()

    def lack(self) -> None:
        """A process waits for room."""
        if not self.taken and not self.said and time.monotonic() - self.since > PATIENCE:
            self.said = True
            self.on_note(
                f"no process has started on the cluster for {PATIENCE:.0f} s: if it has no free cores, "
                "ray status shows who has them; waiting"
            )


class NodeProcess:
    """A worker process at some node. See Process."""

    alive = True

    def __init__(self, fleet: RayFleet, spec: HostSpec, gpus: int, room: Room) -> None:
        self._fleet, self._spec, self._gpus, self._room = fleet, spec, gpus, room
        self._actor: LoneActor | None = None
        self._opening: Any = None
        self._stopping: Any = None
        self._node = ""
        self._closed = False
        self._lock = threading.Lock()
        self._failures = 0

    @property
    def place(self) -> str:
        """See Process."""
        return f"node {self._node}: "

    def ready(self) -> bool:
        """See Process.

        Raises:
            ClusterError: a node does not fit.
        """
        if self._node:
            return True
        with self._lock:
            if self._closed:
                return False
            if self._actor is None:
                self._actor = self._fleet.place(ProcessHost, cores=self._spec.threads, gpus=self._gpus)
                self._opening = self._actor.start("open", self._spec)
            actor = self._actor
        try:
            self._node = actor.result(self._opening, 2 * MOMENT)
        except TimeoutError:
            self._room.lack()
            return False
        except LostError as error:
            self._failures += 1
            self._leave()
            if self._failures == TRIES:
                raise ClusterError(f"{error}, {TRIES} times before it began; see ray status") from error
            return False
        self._failures = 0
        self._room.take(id(self))
        return True

    def send(self, line: str) -> None:
        """See Process."""
        self._call("send", line)

    def receive(self) -> str:
        """See Process."""
        return str(self._call("receive"))

    def why_ended(self) -> Exception:
        """See Process."""
        code, reason, place = self._call("exit_code"), self._call("why_ended"), self.place
        self._leave()
        if code < 0:
            return LostError(f"{place}its process was killed by signal {-code}")
        return RunError(f"{place}{reason}")

    def stop(self) -> None:
        """See Process."""
        with self._lock:
            self._closed = True
            if self._actor and self._node and self._stopping is None:
                self._stopping = self._actor.start("close")

    def close(self) -> None:
        """See Process."""
        self.stop()
        if self._actor and self._stopping is not None:
            with suppress(LostError, TimeoutError):
                self._actor.result(self._stopping, 2 * GRACE)
        self._leave()

    def _call(self, method: str, *arguments: Any) -> Any:
        actor, place = self._actor, self.place
        try:
            if actor:
                return actor.result(actor.start(method, *arguments))
        except LostError:
            self._leave()
        raise LostError(f"{place}its process was lost")

    def _leave(self) -> None:
        with self._lock:
            if self._actor:
                self._actor.kill()
            self._room.leave(id(self))
            self._actor, self._node = None, ""


@contextmanager
def node_processes(
    fleet: RayFleet,
    directory: Path,
    jobs: int | None,
    planned: int,
    devices: Collection[str],
    on_note: Callable[[str], None],
) -> Iterator[Pool]:
    """Share tasks between processes at the nodes of a Ray cluster.

    Args:
        fleet: The cluster.
        directory: What all nodes must see.
        jobs: How many processes, at most; default: one for each core of the cluster.
        planned: No more than this are of use.
        devices: Of the runs; those on "cuda" have a GPU each.
        on_note: Takes what the user should know of the cluster.
    """
    count = min(jobs or sum(node.cores for node in fleet.nodes), planned)
    threads = cores_each(fleet.nodes, count)
    gpus = int(any(device.startswith("cuda") for device in devices))
    on_note(describe(fleet, count, threads))
    room = Room(on_note)
    with mark(directory) as marker:
        spec = HostSpec(VERSION, threads, tuple(sys.argv), tuple(users_folders()), Path.cwd(), marker)
        with pool(NodeProcess(fleet, spec, gpus, room) for _ in range(count)) as workers:
            yield workers
