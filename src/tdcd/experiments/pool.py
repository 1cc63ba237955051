"""Worker processes that share a list of tasks, and what they say."""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from tdcd.cluster.hub import LostError
from tdcd.compute import cores
from tdcd.errors import ClusterError, RunError
from tdcd.experiments.process import ADVICE, LocalProcess, Process

Log = Callable[[int, Mapping[str, Any]], None]
"""Takes the number of a task and what its worker said about it."""
MOMENT = 0.1
"""Seconds between two looks at what others do."""
TRIES = 3
"""Workers that may be lost over the same task."""


@contextmanager
def pool(processes: Iterable[Process]) -> Iterator["Pool"]:
    """Share tasks between worker processes, and see to it that none outlives this block."""
    with ExitStack() as stack:
        started: list[Process] = []
        try:
            for process in processes:
                stack.callback(process.close)
                started.append(process)
            yield Pool(started)
        finally:
            for process in started:  # all of them before waiting for the first
                process.stop()


@contextmanager
def local_processes(jobs: int | None, planned: int) -> Iterator["Pool"]:
    """Share tasks between processes on this machine, which share its cores.

    Args:
        jobs: How many, at most; default: one for each core.
        planned: No more than this are of use.
    """
    count = min(jobs or cores(), planned)
    threads, paths = max(1, cores() // count), [path for path in sys.path if path]
    with pool(LocalProcess(threads, sys.argv, paths) for _ in range(count)) as workers:
        yield workers


class Pool:
    """Workers that wait for tasks."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    def each(self, tasks: Sequence[Mapping[str, Any]], on_answer: Log) -> dict[int, str]:
        """Have every task done, in order, as many at once as there are workers; one that fails stops no other.

        A task whose worker is lost is done again by another.

        Returns:
            Why tasks failed, or were not begun because no worker was left, by their numbers.
        """
        waiting: SimpleQueue[tuple[int, Mapping[str, Any]]] = SimpleQueue()
        for numbered in enumerate(tasks):
            waiting.put(numbered)
        unfinished = set(range(len(tasks)))
        failures: dict[int, str] = {}
        losses: Counter[int] = Counter()
        broken: list[Exception] = []
        stopping = threading.Event()

        def do(process: Process, number: int, task: Mapping[str, Any]) -> None:
            try:
                on_answer(number, {"event": "began"})
                for answer in _answers(process, task):
                    on_answer(number, answer)
            except ClusterError:
                raise
            except Exception as error:
                if stopping.is_set():
                    return
                if isinstance(error, LostError):
                    losses[number] += 1
                    if losses[number] < TRIES:
                        on_answer(number, {"event": "lost", "message": str(error)})
                        waiting.put((number, task))
                        return
                    failures[number] = f"{task['where']}: {error}; {TRIES} were lost over it; {ADVICE}"
                elif isinstance(error, RunError):
                    failures[number] = f"{task['where']}: {error}"
                else:
                    broken.append(error)
                on_answer(number, {"event": "failed"})
            unfinished.discard(number)

        def work(process: Process) -> None:
            try:
                while unfinished and process.alive and not stopping.is_set():
                    if process.ready():
                        try:
                            number, task = waiting.get(timeout=MOMENT)
                        except Empty:  # what others do may come back
                            continue
                        do(process, number, task)
            except ClusterError as error:
                broken.insert(0, error)
                stopping.set()

        threads = [threading.Thread(target=work, args=(process,), daemon=True) for process in self._processes]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive() and not stopping.is_set():  # in short waits, so that Ctrl-C is heard
                    thread.join(MOMENT)
        finally:
            stopping.set()
        if broken:
            raise broken[0]
        while not waiting.empty():  # all workers have died
            number, task = waiting.get_nowait()
            failures[number] = f"{task['where']}: not begun"
        return failures


def _answers(process: Process, task: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Have a task done; yield what is said of it, the last time when it is done."""
    process.send(json.dumps(task))
    while line := process.receive():
        answer = json.loads(line)
        if answer["event"] == "failed":
            raise RunError(f"{process.place}{answer['message']}")
        yield answer
        if answer["event"] == "done":
            return
    raise process.why_ended()
