"""A process of a sweep reads data once for all runs that share it."""

import io
import json
import queue
from typing import Any

import pytest

from tdcd.experiments import worker
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.schema import Job

TRAINING = {"loss": "binary-cross-entropy", "rounds": 2, "rate": 0.1}


def job(**more: Any) -> dict[str, Any]:
    return {
        "data": {"source": "breast-cancer", "clients": 2},
        "model": {"kind": "linear"},
        "silos": {"mean": {"rate": 0.1}},
        "training": TRAINING,
    } | more


@pytest.mark.parametrize(
    ("second", "readings"),
    [
        (job(training=TRAINING | {"rate": 0.2}), 1),
        (job(silos={"mean": {"rate": 0.2, "local_steps": 3}}), 1),
        (job(silos={"mean": {"rate": 0.1, "clients": 3}}), 2),
        (job(training=TRAINING | {"loss": "squared-error"}), 2),  # tables encode labels as the loss wants them
    ],
)
def test_runs_that_share_their_data_read_it_once(
    second: dict[str, Any], readings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []

    def count(job: Job) -> JobData:
        read.append(job)
        return load_data(job)

    monkeypatch.setattr(worker, "load_data", count)
    out = io.StringIO()
    tasks: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    for table in (job(), second):
        tasks.put({"do": "silos", "job": table, "where": "job"})
    tasks.put(None)
    worker.Worker(out, 1).serve(tasks)
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["done", "done"], out.getvalue()
    assert len(read) == readings
