"""Worker processes that share a list of tasks, and what they say."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

from tdcd.errors import RunError

Log = Callable[[int, Mapping[str, Any]], None]
"""Takes the number of a task and what its worker said about it."""
GRACE = 120.0
"""Seconds for a worker to write a checkpoint when it is asked to stop."""


@contextmanager
def processes(count: int, threads: int) -> Iterator["Processes"]:
    """Start worker processes, each with so many threads, and see to it that none outlives this block."""
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(threads)) for _ in range(count)]
        try:
            yield Processes(workers)
        finally:
            for worker in workers:  # all of them before waiting for the first
                worker.stop()


class Processes:
    """Workers that wait for tasks."""

    def __init__(self, workers: Sequence["_Worker"]) -> None:
        self._workers = workers

    def each(self, tasks: Sequence[Mapping[str, Any]], on_answer: Log) -> dict[int, str]:
        """Have every task done, in order, as many at once as there are workers; one that fails stops no other.

        Returns:
            Why tasks failed, or were not begun because no worker was left, by their numbers.
        """
        waiting: SimpleQueue[tuple[int, Mapping[str, Any]]] = SimpleQueue()
        for numbered in enumerate(tasks):
            waiting.put(numbered)
        failures: dict[int, str] = {}
        broken: list[Exception] = []
        stopping = threading.Event()

        def work(worker: _Worker) -> None:
            with suppress(Empty):
                while worker.alive and not stopping.is_set():
                    number, task = waiting.get_nowait()
                    try:
                        on_answer(number, {"event": "began"})
                        for answer in worker.do(task):
                            on_answer(number, answer)
                    except Exception as error:
                        if stopping.is_set():
                            return
                        if isinstance(error, RunError):
                            failures[number] = str(error)
                        else:
                            broken.append(error)
                        on_answer(number, {"event": "failed"})

        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():  # in short waits, so that Ctrl-C is heard
                    thread.join(0.1)
        except BaseException:
            stopping.set()
            raise
        if broken:
            raise broken[0]
        while not waiting.empty():  # all workers have died
            number, task = waiting.get_nowait()
            failures[number] = f"{task['where']}: not begun"
        return failures


class _Worker:
    """The near end of one worker process."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Any) -> None:
        self._process = process
        self._errors = errors

    @property
    def alive(self) -> bool:
        """Tell whether the process is there."""
        return self._process.poll() is None

    def do(self, task: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Have a task done; yield what is said of it, the last time when it is done."""
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        try:
            print(json.dumps(task), file=self._process.stdin, flush=True)
        except (BrokenPipeError, ValueError) as error:
            raise self._died(task) from error
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer["event"] == "failed":
                raise RunError(f"{task['where']}: {answer['message']}")
            yield answer
            if answer["event"] == "done":
                return
        raise self._died(task)

    def stop(self) -> None:
        """Ask for a checkpoint and an end."""
        if self._process.stdin and not self._process.stdin.closed:
            with suppress(OSError):  # it may be gone
                self._process.stdin.close()

    def _died(self, task: Mapping[str, Any]) -> RunError:
        code = self._process.wait()
        if code < 0:
            why = f"was killed by signal {-code}; if memory ran out, use fewer processes (--jobs)"
        else:
            self._errors.seek(0)
            why = f"ended with exit code {code}:\n{self._errors.read()[-2000:]}".rstrip()
        return RunError(f"{task['where']}: its process {why}")


@contextmanager
def _worker(threads: int) -> Iterator[_Worker]:
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(place for place in sys.path if place),
    }
    command = [sys.executable, "-P", "-m", "tdcd.experiments.worker", str(threads), json.dumps(sys.argv)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the sweep, which then ends the worker's input
        )
        worker = _Worker(process, errors)
        try:
            yield worker
        finally:
            worker.stop()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
