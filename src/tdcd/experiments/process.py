"""Worker processes: lines of JSON in, lines of JSON out."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tdcd.errors import RunError

GRACE = 120.0
"""Seconds for a worker to write a checkpoint when it is asked to stop."""
ADVICE = "if memory ran out, use fewer processes (--jobs)"


class Process(Protocol):
    """The near end of a worker process, here or at a node of a cluster."""

    @property
    def alive(self) -> bool:
        """Whether it can do a task, now or later."""

    @property
    def place(self) -> str:
        """Where it is, to begin the message of a failure: empty on this machine."""

    def ready(self) -> bool:
        """Wait a moment until it can begin a task; tell whether it can."""

    def send(self, line: str) -> None:
        """Write a line to its input; if it is gone, ``receive`` says so."""

    def receive(self) -> str:
        """Wait for a line of its output; return an empty one when there are no more."""

    def why_ended(self) -> Exception:
        """Return why there are no more lines: LostError where another process may go on with its task."""

    def stop(self) -> None:
        """Ask for a checkpoint and an end."""

    def close(self) -> None:
        """Wait until it has ended; it is killed if it does not."""


class LocalProcess:
    """A worker process on this machine. See Process."""

    place = ""

    def __init__(
        self, threads: int, command: Sequence[str], paths: Sequence[str], directory: Path | None = None
    ) -> None:
        """Start it.

        Args:
            threads: How many it computes with.
            command: What its runs record as the command of their sweep.
            paths: Where it finds modules.
            directory: Where it is started; default: here.
        """
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(paths)}
        words = [sys.executable, "-P", "-m", "tdcd.experiments.worker", str(threads), json.dumps(list(command))]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=directory,
            start_new_session=True,  # Ctrl-C is for the sweep, which then ends the worker's input
        )

    @property
    def alive(self) -> bool:
        """See Process."""
        return self._process.poll() is None

    def ready(self) -> bool:
        """See Process."""
        return self.alive

    def send(self, line: str) -> None:
        """See Process."""
        assert self._process.stdin  # noqa: S101
        with suppress(BrokenPipeError, ValueError):
            print(line, file=self._process.stdin, flush=True)

    def receive(self) -> str:
        """See Process."""
        assert self._process.stdout  # noqa: S101
        return self._process.stdout.readline()

    def exit_code(self) -> int:
        """Wait until it has ended; return its exit code, that of a signal below zero."""
        return self._process.wait()

    def why_ended(self) -> RunError:
        """See Process."""
        code = self.exit_code()
        if code < 0:
            return RunError(f"its process was killed by signal {-code}; {ADVICE}")
        self._errors.seek(0)
        return RunError(f"its process ended with exit code {code}:\n{self._errors.read()[-2000:]}".rstrip())

    def stop(self) -> None:
        """See Process."""
        if self._process.stdin and not self._process.stdin.closed:
            with suppress(OSError):  # it may be gone
                self._process.stdin.close()

    def close(self) -> None:
        """See Process."""
        self.stop()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            if self._process.stdout:
                self._process.stdout.close()
            self._errors.close()
