"""A process of a sweep that trains one run after another: ``python -m tdcd.experiments.worker``.

It reads tasks as lines of JSON from its standard input and replies on its standard output. When its input ends,
because the sweep is over or is no more, it writes a checkpoint of what it is at and goes.

    {"do": "silos", "job": …}                              -> {"event": "done", "silos": […]}
    {"do": "train", "job": …, "variant": …, "run": path}   -> {"event": "progress", …} … {"event": "done", "status": …}
"""

import _thread
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from tdcd.compute import cores
from tdcd.errors import DivergedError, TdcdError
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.run import run_variant
from tdcd.jobs.schema import Job, data_settings
from tdcd.runs.records import Evaluation
from tdcd.runs.store import wait_until_free
from tdcd.training.callbacks import Callback, FinishedRound, Start

EVERY = 0.3
"""Seconds between two words of progress."""
PATIENCE = 60.0
"""Seconds to wait for the process of an earlier sweep that is still writing its checkpoint."""


class Worker(Callback):
    """Does tasks, and reports the progress of its trainings."""

    def __init__(self, out: TextIO, threads: int) -> None:
        self.out = out
        self.threads = threads
        self.data: tuple[str, JobData] | None = None
        self.steps = 1
        self.loss: float | None = None
        self.log = 0.0

    def serve(self, tasks: "queue.SimpleQueue[dict[str, Any] | None]") -> None:
        """Do tasks until there are no more."""
        while (task := tasks.get()) is not None:
            try:
                self._say(event="done", **self._do(task))
            except TdcdError as error:
                self._say(event="failed", message=str(error))

    def started(self, start: Start) -> None:
        """See Callback."""
        self._say(event="progress", iteration=start.done * self.steps, loss=None)

    def after_round(self, finished: FinishedRound) -> None:
        """See Callback."""
        now = time.monotonic()
        if now - self.log >= EVERY:
            self.log = now
            self._say(event="progress", iteration=finished.number * self.steps, loss=self.loss)

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """See Callback."""
        self.loss = evaluation.train["loss"]

    def _do(self, task: dict[str, Any]) -> dict[str, Any]:
        job = parse_job(task["job"], task["where"])
        if task["do"] == "silos":
            return {"silos": list(self._read(job).federation.with_features)}
        self.steps, self.loss, self.log = task["steps"], None, 0.0
        run = Path(task["run"])
        wait_until_free(run, PATIENCE)
        try:
            run_variant(job, self._read(job), task["variant"], run, resume=True, callbacks=[self], workers=self.threads)
        except DivergedError:
            return {"status": "diverged"}
        return {"status": "finished"}

    def _read(self, job: Job) -> JobData:
        """Read a job's data, unless it is what was read last."""
        key = json.dumps(data_settings(job.as_table()))
        if not self.data or self.data[0] != key:
            self.data = None  # two at once may not fit
            self.data = key, load_data(job)
        return self.data[1]

    def _say(self, **facts: Any) -> None:
        print(json.dumps(facts), file=self.out, flush=True)


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a sweep in the background has it ignored
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    threads, sys.argv = int(sys.argv[1]), json.loads(sys.argv[2])  # runs record the command of their sweep
    torch.set_num_threads(threads)
    tasks: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(json.loads(line))
        tasks.put(None)
        _thread.interrupt_main()

    threading.Thread(target=listen, daemon=True).start()
    try:
        Worker(out, min(threads, cores())).serve(tasks)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)


if __name__ == "__main__":
    main()
