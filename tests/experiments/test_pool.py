"""What becomes of tasks whose workers fail, are lost, or do not fit."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tdcd.cluster.hub import LostError
from tdcd.errors import ClusterError, RunError
from tdcd.experiments.pool import TRIES, pool
from tdcd.experiments.process import ADVICE


class Actor:
    """A process that does as its tasks say: "done", "failed", "lost", or "slow" until it is stopped."""

    alive, place = True, "node pc7: "

    def __init__(self, misfit: bool = False) -> None:
        self.misfit, self.stopped, self.closed = misfit, False, False
        self.task = ""

    def ready(self) -> bool:
        if self.misfit:
            raise ClusterError("node pc8 does not fit")
        return True

    def send(self, line: str) -> None:
        self.task = json.loads(line)["do"]

    def receive(self) -> str:
        while self.task == "slow" and not self.stopped:
            time.sleep(0.01)
        if self.task in ("slow", "lost"):
            return ""
        return json.dumps({"event": self.task, "message": "no memory"})

    def why_ended(self) -> Exception:
        return LostError("node pc7: its process was lost")

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


def do(workers: Sequence[Actor], *tasks: str, log: Callable[[int, Any], None] = lambda number, answer: None) -> Any:
    with pool(workers) as started:
        return started.each([{"do": task, "where": f"runs/{number}"} for number, task in enumerate(tasks)], log)


@pytest.mark.parametrize("count", [1, 3])
def test_a_task_that_loses_every_worker_fails_and_stops_no_other(count: int) -> None:
    events: dict[int, list[str]] = {0: [], 1: [], 2: []}
    workers = [Actor() for _ in range(count)]
    failures = do(workers, "lost", "done", "failed", log=lambda number, answer: events[number].append(answer["event"]))
    assert failures == {
        0: "runs/0: node pc7: its process was lost; 3 were lost over it; " + ADVICE,
        2: "runs/2: node pc7: no memory",
    }
    assert events == {
        0: [*["began", "lost"] * (TRIES - 1), "began", "failed"],
        1: ["began", "done"],
        2: ["began", "failed"],
    }
    assert all(worker.stopped and worker.closed for worker in workers)


def test_a_node_that_does_not_fit_stops_all_at_once() -> None:
    workers = [Actor(), Actor(misfit=True)]
    with pytest.raises(ClusterError, match="node pc8 does not fit"):
        do(workers, "slow", "slow")
    assert all(worker.stopped and worker.closed for worker in workers)


def test_a_process_that_cannot_be_started_leaves_no_other() -> None:
    first = Actor()

    def starting() -> Any:
        yield first
        raise RunError("too many processes")

    with pytest.raises(RunError, match="too many"), pool(starting()):
        pass
    assert first.stopped
    assert first.closed
