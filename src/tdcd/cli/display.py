"""How a training is shown: live on a terminal, in plain lines elsewhere, as JSON, or not at all."""

import json
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from tdcd.cli.screen import Screen
from tdcd.cli.terminal import terminal
from tdcd.data.federation import Federation
from tdcd.errors import TdcdError
from tdcd.jobs.run import JobObserver, JobResult
from tdcd.jobs.schema import Job
from tdcd.runs.records import Evaluation

WIDE = 120
"""Columns of a terminal that shows everything."""


class Display(Screen, JobObserver, ABC):
    """Shows how a job goes. Also a context manager, for displays that own the screen."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.metric = job.training.objective.primary
        self.name = ""
        self.first = self.rounds = 0
        self.clock = time.perf_counter()

    def training(self, name: str, federation: Federation) -> None:  # noqa: ARG002
        """See JobObserver."""
        self.name = name

    def started(self, done: int, rounds: int, paths: Mapping[str, str]) -> None:  # noqa: ARG002
        """See Observer."""
        self.first, self.rounds = done, rounds
        self.clock = time.perf_counter()

    def speed(self, done: int) -> float:
        """Return rounds a second in this session."""
        return (done - self.first) / max(1e-9, time.perf_counter() - self.clock)

    def measures(self, evaluation: Evaluation) -> list[str]:
        """Tell an evaluation in a few words."""
        parts = {"validation": evaluation.validation, "test": evaluation.test}
        text = [
            f"{name} {self.metric} {result[self.metric]:.4f}" for name, result in parts.items() if self.metric in result
        ]
        return [f"loss {evaluation.train['loss']:.4f}", *text]

    @abstractmethod
    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """Show what came out."""

    def failed(self, error: TdcdError) -> None:
        """Something went wrong; the error output says so as well."""

    @abstractmethod
    def stopped(self, directory: Path | None) -> None:
        """Tell a user who stopped the job how to go on; without a directory, nothing had begun."""


class Quiet(Display):
    """Shows nothing."""

    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """Show nothing."""

    def stopped(self, directory: Path | None) -> None:
        """Show nothing."""


class Json(Display):
    """One JSON object a line, for programs."""

    def noted(self, note: str) -> None:
        """See JobObserver."""
        self._say("note", note=note)

    def training(self, name: str, federation: Federation) -> None:
        """See JobObserver."""
        super().training(name, federation)
        clients = {silo: len(roster.clients) for silo, roster in federation.rosters.items()}
        self._say("training", samples=len(federation), clients=clients)

    def started(self, done: int, rounds: int, paths: Mapping[str, str]) -> None:
        """See Observer."""
        super().started(done, rounds, paths)
        self._say("started", round=done, rounds=rounds, compute=dict(paths))

    def evaluated(self, evaluation: Evaluation) -> None:
        """See Observer."""
        self._say("evaluation", **evaluation.as_dict())

    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """See Display."""
        self.name = "job"
        final = {name: part.final.as_dict() for name, part in result.all.items()}
        self._say("finished", directory=str(directory), report=str(report), results=final)

    def stopped(self, directory: Path | None) -> None:
        """See Display."""
        self._say("stopped", directory=str(directory) if directory else None)

    def failed(self, error: TdcdError) -> None:
        """See Display."""
        self._say("failed", kind=type(error).__name__, message=str(error))

    def _say(self, event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, "of": self.name, **facts}), flush=True)


class Spoken(Display):
    """What plain lines and the live display have in common: the words around the training."""

    def __init__(self, job: Job, where: str, console: Console) -> None:
        super().__init__(job)
        self.console = console
        console.print(f"Job: {where}", soft_wrap=True)

    def noted(self, note: str) -> None:
        """See JobObserver."""
        self.console.print(note, soft_wrap=True)

    def training(self, name: str, federation: Federation) -> None:
        """See JobObserver."""
        super().training(name, federation)
        clients = ", ".join(f"{silo} {len(roster.clients)}" for silo, roster in federation.rosters.items())
        self.console.print(Text.assemble((name, "bold"), f": {len(federation):,} samples; clients: {clients}"))

    def started(self, done: int, rounds: int, paths: Mapping[str, str]) -> None:
        """See Observer."""
        super().started(done, rounds, paths)
        for silo, why in paths.items():
            self.console.print(f"  {silo}: {why}", style="dim")
        if done >= rounds:
            self.console.print(f"  finished before: {done} of {rounds} rounds")
        elif done:
            self.console.print(f"  goes on after round {done} of {rounds}")

    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """See Display."""
        finals = {name: part.final for name, part in result.all.items()}
        names = list(finals["federation"].test)
        table = Table(title="On the test samples", title_justify="left")
        table.add_column("trained by")
        validated = self.metric in finals["federation"].validation
        for name in ["training loss", *([f"validation {self.metric}"] if validated else []), *names]:
            table.add_column(name, justify="right")
        for name, final in finals.items():
            cells = [
                f"{final.train['loss']:.4f}",
                *([f"{final.validation[self.metric]:.4f}"] if validated else []),
                *(f"{final.test[m]:.4f}" if m in final.test else "–" for m in names),
            ]
            table.add_row(name, *cells, style="bold" if name == "federation" else "")
        self.console.print()
        self.console.print(table)
        for name, part in result.all.items():
            if part.selected != part.history[-1].round:
                kept = f"{name}: the weights of round {part.selected:,}, where the validation loss was lowest, are kept"
                self.console.print(kept)
        first, last = result.federation.history[0].train["loss"], finals["federation"].train["loss"]
        if last > first:
            self.console.print(
                f"The training loss grew from {first:.4g} to {last:.4g}: "
                f"try a smaller rate than {self.job.training.rate:g}.",
                style="bold yellow",
            )
        self.console.print(f"Run:    {directory}", soft_wrap=True)
        self.console.print(f"Report: {report}", soft_wrap=True)

    def stopped(self, directory: Path | None) -> None:
        """See Display."""
        if directory is None:
            self.console.print("\nStopped before the training began; nothing is written.")
            return
        self.console.print("\nStopped. Everything up to the last finished round is kept; go on with:")
        self.console.print(f"  tdcd train --resume {quote(str(directory))}", soft_wrap=True)


class Plain(Spoken):
    """A line an evaluation, for logs and pipes."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """See Observer."""
        done = evaluation.round
        parts = [
            f"  round {done:>{len(str(self.rounds))}}/{self.rounds}",
            f"iteration {evaluation.iteration}",
            *self.measures(evaluation),
        ]
        if done > self.first:
            speed = self.speed(done)
            left = timedelta(seconds=round((self.rounds - done) / max(speed, 1e-9)))
            parts += [_per_second(speed), f"{left} left"]
        self.console.print("  ".join(parts), soft_wrap=True)


class Live(Spoken):
    """A progress bar for each training."""

    def __init__(self, job: Job, where: str, console: Console) -> None:
        super().__init__(job, where, console)
        self._wide = console.width >= WIDE
        self._progress = Progress(
            TextColumn("  {task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24 if self._wide else 8),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[measures]}", markup=False),
            *([TextColumn("{task.fields[speed]}", style="dim", markup=False)] if self._wide else []),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=console,
        )
        self._task = self._progress.add_task("", visible=False, measures="", speed="")
        self._reading = self._progress.add_task("", visible=False, total=None, measures="", speed="")

    def reading(self, what: str) -> None:
        """See JobObserver."""
        self._progress.update(self._reading, description=f"reading {what}", visible=True)

    def training(self, name: str, federation: Federation) -> None:
        """See JobObserver."""
        self._progress.update(self._reading, visible=False)
        super().training(name, federation)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing, so that what follows is not drawn over."""
        self._progress.stop()

    def started(self, done: int, rounds: int, paths: Mapping[str, str]) -> None:
        """See Observer."""
        super().started(done, rounds, paths)
        self._task = self._progress.add_task(self.name, total=rounds, completed=done, measures="", speed="")

    def advanced(self, done: int) -> None:
        """See Observer."""
        self._progress.update(self._task, completed=done, speed=_per_second(self.speed(done)))

    def evaluated(self, evaluation: Evaluation) -> None:
        """See Observer."""
        text = self.measures(evaluation)
        self._progress.update(self._task, measures="  ".join(text if self._wide else [text[0], *text[1:][-1:]]))


def _per_second(speed: float) -> str:
    return f"{speed:,.0f} rounds/s" if speed >= 100 else f"{speed:.3g} rounds/s"


def display(job: Job, where: str, *, quiet: bool, json: bool) -> Display:
    """Choose how to show a job."""
    if quiet:
        return Quiet(job)
    if json:
        return Json(job)
    return Live(job, where, terminal()) if sys.stdout.isatty() else Plain(job, where, terminal())
