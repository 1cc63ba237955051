"""Joins a cluster of Ray, or starts one on this machine, which then ends with this process."""

import atexit
import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tdcd.errors import ClusterError, LostClusterError

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody was asked
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of attempts that were given up
try:
    import ray
    from ray._private import worker as ray_worker
    from ray.exceptions import RayError
except ImportError as error:
    raise ClusterError(f"Ray is not installed ({error}); pip install 'tdcd[ray]'") from error

STORE = 1 << 30
"""Bytes of shared memory of a cluster that is started here, at most."""
START = "start one with: ray start --head, and name its address; or leave --address out to start one on this machine"
GLANCE = 5.0
"""Seconds between two looks at whether the cluster is still there."""
HEAD_PATIENCE = 30.0
"""Seconds after which a head that does not answer is gone; it may be started again."""
VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")


@dataclass
class Session:
    """A cluster that this process is in."""

    address: str | None
    """As the user wrote it; nothing for one that was started here."""
    head: str
    """HOST:PORT of the process that all nodes know."""
    logs: Path
    dashboard: str = ""
    """Where it can be looked at; nothing where no dashboard answers."""
    mine: bool = False
    """Whether it ends with this process."""
    failed: bool = False
    """Whether somebody was told to look at the logs."""
    _next_look: float = 0.0
    _answered: float = field(default_factory=time.monotonic)

    def where_logs_are(self) -> str:
        """Return the end of a message about what is in the logs, which are then kept."""
        self.failed = True
        return f"Ray's logs are in {self.logs}{'' if self.mine else ' on each node'}"

    def check_head(self) -> None:
        """Fail if the head of the cluster is gone, which actors survive for a while; cheap enough for every call.

        After a minute Ray would end this process.

        Raises:
            LostClusterError: it has not answered for half a minute.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + GLANCE
        if _answers(self.head):
            self._answered = now
        elif now - self._answered > HEAD_PATIENCE:
            logs = self.where_logs_are()
            ray.shutdown()
            raise LostClusterError(
                f"the head of the Ray cluster at {self.head} is gone; start the cluster again, then resume the run; "
                f"{logs}"
            )

    def wait_for_head(self) -> None:
        """Wait until the head answers: without it, no actor can be started again.

        Raises:
            LostClusterError: it has not answered for half a minute.
        """
        while not _answers(self.head):
            self.check_head()
            time.sleep(0.2)

    def end(self) -> None:
        """Leave the cluster; end one that was started here, with what it has written."""
        ray.shutdown()
        if self.mine and not self.failed:
            folder = self.logs.parent
            shutil.rmtree(folder, ignore_errors=True)
            latest = folder.with_name("session_latest")
            if latest.is_symlink() and not latest.exists():
                latest.unlink(missing_ok=True)


def announce(address: str | None) -> str:
    """Say what is about to be done, which takes seconds."""
    address = address or os.environ.get("RAY_ADDRESS")
    return f"joining the Ray cluster at {address}" if address else "starting a Ray cluster on this machine"


def join(address: str | None) -> Session:
    """Join a cluster, or start one on this machine; one that this process is in already is the user's.

    Raises:
        ClusterError: there is none, or it does not fit; the message says what to do.
    """
    others = ray.is_initialized()
    if not others:
        _check_address(address)
        _drop_reports()
    context = _init(address)
    info, url = context.address_info, context.dashboard_url
    session = Session(
        address,
        info["gcs_address"],
        Path(info["session_dir"]) / "logs",
        f"http://{url}" if url and _answers(url) else "",
        mine=address is None and not others,
    )
    if not others:
        atexit.register(session.end)  # before Ray's own end
    return session


def _init(address: str | None) -> Any:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "ignore_reinit_error": True}
    if address is None:
        options["object_store_memory"] = min(STORE, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
    main, on_end = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    try:
        with _quiet() as written:
            return ray.init(address=address or "local", **options)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ClusterError(_explain(f"{error}\n{written()}".strip() or type(error).__name__, address)) from error
    finally:
        if main:  # Ray would end this process without a checkpoint
            signal.signal(signal.SIGTERM, on_end)


def _drop_reports() -> None:
    """Keep off standard output what nodes report of lost workers: Ray prints it there, whatever is done with logs."""
    forward = getattr(ray_worker, "print_to_stdstream", None)
    if forward is None or getattr(forward, "drops_reports", False):
        return

    def print_other(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        if data.get("pid") != "raylet":
            forward(data, *arguments, **options)

    print_other.drops_reports = True  # type: ignore[attr-defined]
    ray_worker.print_to_stdstream = print_other


@contextmanager
def _quiet() -> Iterator[Callable[[], str]]:
    """Keep off the terminal what Ray's compiled code writes there; give what it was, later."""
    text = ""
    with TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text = file.read().decode(errors="replace")


def _explain(text: str, address: str | None) -> str:
    """Say why there is no cluster, and what to do."""
    why = text.splitlines()[0]
    versions = VERSIONS.findall(text)
    if len(versions) == 2:
        (ray_there, python_there), (ray_here, python_here) = versions
        return (
            f"the Ray cluster at {address} has Ray {ray_there} and Python {python_there}, this machine Ray {ray_here} "
            f"and Python {python_here}; install the same on all nodes"
        )
    if "InvalidAuthToken" in text:
        return (
            f"the Ray cluster at {address} wants a token: set RAY_AUTH_MODE=token, and bring that of its head here, "
            "in ~/.ray/auth_token or RAY_AUTH_TOKEN (there, ray get-auth-token prints it)"
        )
    if address is None:
        return f"Ray cannot be started on this machine: {why}"
    if address == "auto":
        return f"no Ray cluster on this machine; {START}"
    return f"the Ray cluster at {address} cannot be joined: {why}; run tdcd on one of its nodes"


def _check_address(address: str | None) -> None:
    """Refuse what is no address, and fail at once where nobody listens: Ray tries for half a minute.

    Raises:
        ClusterError: nobody does.
    """
    if address in (None, "auto", "local"):
        return
    if "://" in str(address):
        raise ClusterError(
            f"address {address}: Ray Client is not used; run tdcd on a node of the cluster and name HOST:PORT, or auto"
        )
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdecimal():
        example = f"{address}:6379" if port and not port.isdecimal() else f"HOST:{port or 6379}"
        raise ClusterError(f"address {address}: HOST:PORT is wanted, as in {example}, or auto")
    try:
        _reach(str(address))
    except OSError as error:
        raise ClusterError(f"no Ray cluster at {address}: {error.strerror or error}; {START}") from error


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
        pass


def _answers(address: str) -> bool:
    try:
        _reach(address)
    except OSError:
        return False
    return True
