"""How a training is shown: live on a terminal, in plain lines elsewhere, as JSON, or not at all."""

import json
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tdcd.cli.screen import Screen
from tdcd.cli.terminal import terminal
from tdcd.data.federation import Federation
from tdcd.errors import TdcdError
from tdcd.jobs.run import JobCallback, JobResult
from tdcd.jobs.schema import Job
from tdcd.runs.records import Evaluation, Outcome
from tdcd.training.callbacks import FinishedRound, Progress, Start
from tdcd.training.callbacks.progress import Speed, measures, per_second

STYLES = {"failure": "bold red", "warning": "bold yellow", "note": "dim"}
"""How findings are printed, by level."""


class Display(Screen, JobCallback, ABC):
    """Shows how a job goes. Also a context manager, for displays that own the screen."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.metric = job.training.objective.primary
        self.name = ""

    def training(self, name: str, federation: Federation) -> None:  # noqa: ARG002
        """See JobCallback."""
        self.name = name

    @abstractmethod
    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """Show what came out."""

    def failed(self, error: TdcdError, directory: Path | None = None) -> None:
        """Something went wrong; the error output says so as well. With a directory, what is there can go on."""

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
        """See JobCallback."""
        self._say("note", note=note)

    def training(self, name: str, federation: Federation) -> None:
        """See JobCallback."""
        super().training(name, federation)
        clients = {silo: len(roster.clients) for silo, roster in federation.rosters.items()}
        self._say("training", samples=len(federation), clients=clients)

    def waiting(self, what: str) -> None:
        """See JobCallback."""
        self._say("waiting", what=what)

    def started(self, start: Start) -> None:
        """See Callback."""
        self._say("started", round=start.done, rounds=start.settings.rounds, compute=dict(start.compute_plan))

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """See Callback."""
        self._say("evaluation", **evaluation.as_dict())
        self._measured = evaluation.round

    def after_round(self, finished: FinishedRound) -> None:
        """See Callback."""
        if finished.usage and finished.number == self._measured:
            self._say("cluster", round=finished.number, **asdict(finished.usage))

    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """See Display."""
        self.name = "job"
        kept = {name: part.kept.as_dict() for name, part in result.all.items()}
        findings = [asdict(finding) for finding in result.federation.findings]
        self._say("finished", directory=str(directory), report=str(report), results=kept, findings=findings)

    def stopped(self, directory: Path | None) -> None:
        """See Display."""
        self._say("stopped", directory=str(directory) if directory else None)

    def failed(self, error: TdcdError, directory: Path | None = None) -> None:
        """See Display."""
        more = {"directory": str(directory)} if directory else {}
        self._say("failed", kind=type(error).__name__, message=str(error), **more)

    def _say(self, event: str, **facts: Any) -> None:
        print(json.dumps({"event": event, "of": self.name, **facts}), flush=True)


class Spoken(Display):
    """What plain lines and the live display have in common: the words around the training."""

    def __init__(self, job: Job, where: str, console: Console) -> None:
        super().__init__(job)
        self.console = console
        console.print(f"Job: {where}", soft_wrap=True)

    def noted(self, note: str) -> None:
        """See JobCallback."""
        self.console.print(note, soft_wrap=True)

    def waiting(self, what: str) -> None:
        """See JobCallback."""
        self.console.print(f"{what} …", soft_wrap=True)

    def training(self, name: str, federation: Federation) -> None:
        """See JobCallback."""
        super().training(name, federation)
        clients = ", ".join(f"{silo} {len(roster.clients)}" for silo, roster in federation.rosters.items())
        self.console.print(Text.assemble((name, "bold"), f": {len(federation):,} samples; clients: {clients}"))

    def started(self, start: Start) -> None:
        """See Callback."""
        done, rounds = start.done, start.settings.rounds
        for silo, why in start.compute_plan.items():
            self.console.print(f"  {silo}: {why}", style="dim")
        if done >= rounds:
            self.console.print(f"  finished before: {done} of {rounds} rounds")
        elif done:
            self.console.print(f"  goes on after round {done} of {rounds}")

    def ended(self, outcome: Outcome | None) -> None:
        """See Callback."""
        if outcome and outcome.stopped:
            self.console.print(f"  {outcome.stopped}")
        if outcome and outcome.cluster and outcome.cluster.rounds:
            self.console.print(f"  {outcome.cluster.size}: {outcome.cluster}", style="dim", soft_wrap=True)

    def finished(self, result: JobResult, directory: Path, report: Path) -> None:
        """See Display."""
        kept = {name: part.kept for name, part in result.all.items()}
        names = list(kept["federation"].shown("test"))
        table = Table(title="On the test samples", title_justify="left")
        table.add_column("trained by")
        validated = self.metric in kept["federation"].validation
        for name in ["training loss", *([f"validation {self.metric}"] if validated else []), *names]:
            table.add_column(name, justify="right")
        for name, own in kept.items():
            cells = [
                f"{own.train['loss']:.4f}",
                *([f"{own.validation[self.metric]:.4f}"] if validated else []),
                *(f"{own.test[m]:.4f}" if m in own.test else "–" for m in names),
            ]
            table.add_row(name, *cells, style="bold" if name == "federation" else "")
        self.console.print()
        self.console.print(table)
        for name, part in result.all.items():
            if part.selected != part.history[-1].round:
                measure = self.job.training.select_by
                self.console.print(
                    f"{name}: the weights of round {part.selected:,}, the best by validation {measure}, are kept"
                )
        for finding in result.federation.findings:
            self.console.print(
                Text.assemble((f"{finding.level}: ", STYLES[finding.level]), str(finding)), soft_wrap=True
            )
        self.console.print(f"Run:    {directory}", soft_wrap=True)
        self.console.print(f"Report: {report}", soft_wrap=True)

    def stopped(self, directory: Path | None) -> None:
        """See Display."""
        if directory is None:
            self.console.print("\nStopped before the training began; nothing is written.")
            return
        self.console.print("\nStopped.", end=" ")
        self._say_how_to_resume(directory)

    def failed(self, error: TdcdError, directory: Path | None = None) -> None:  # noqa: ARG002
        """See Display."""
        if directory:
            self._say_how_to_resume(directory)

    def _say_how_to_resume(self, directory: Path) -> None:
        self.console.print("Everything up to the last finished round is kept; go on with:")
        self.console.print(f"  tdcd train --resume {quote(str(directory))}", soft_wrap=True)


class Plain(Spoken):
    """A line an evaluation, for logs and pipes."""

    def started(self, start: Start) -> None:
        """See Callback."""
        super().started(start)
        self._rounds, self._speed, self._usage = start.settings.rounds, Speed(start.done), ""

    def after_round(self, finished: FinishedRound) -> None:
        """See Callback."""
        self._usage = str(finished.usage or "")

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """See Callback."""
        done, rounds = evaluation.round, self._rounds
        parts = [
            f"  round {done:>{len(str(rounds))}}/{rounds}",
            f"iteration {evaluation.iteration}",
            *measures(evaluation, self.metric),
        ]
        if done > self._speed.first:
            speed = self._speed.at(done)
            left = timedelta(seconds=round((rounds - done) / max(speed, 1e-9)))
            parts += [per_second(speed), f"{left} left", *([self._usage] if self._usage else [])]
        self.console.print("  ".join(parts), soft_wrap=True)


class Live(Spoken):
    """A progress bar for each training."""

    def __init__(self, job: Job, where: str, console: Console) -> None:
        super().__init__(job, where, console)
        self._progress = Progress(console=console)
        self._waiting = self._progress.add("")
        self._progress.bars.update(self._waiting, visible=False)

    def reading(self, what: str) -> None:
        """See JobCallback."""
        self.waiting(f"reading {what}")

    def waiting(self, what: str) -> None:
        """See JobCallback."""
        self._progress.bars.update(self._waiting, description=what, visible=True)

    def training(self, name: str, federation: Federation) -> None:
        """See JobCallback."""
        self._progress.bars.update(self._waiting, visible=False)
        super().training(name, federation)
        if self.job.engine == "ray":
            self.waiting("starting actors")

    def __enter__(self) -> Self:
        self._progress.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing, so that what follows is not drawn over."""
        self._progress.bars.stop()

    def started(self, start: Start) -> None:
        """See Callback."""
        self._progress.bars.update(self._waiting, visible=False)
        super().started(start)
        self._progress.name = self.name
        self._progress.started(start)

    def after_round(self, finished: FinishedRound) -> None:
        """See Callback."""
        self._progress.after_round(finished)

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """See Callback."""
        self._progress.after_evaluation(evaluation)

    def ended(self, outcome: Outcome | None) -> None:
        """See Callback."""
        self._progress.show_usage(None)
        super().ended(outcome)


def display(job: Job, where: str, *, quiet: bool, json: bool) -> Display:
    """Choose how to show a job."""
    if quiet:
        return Quiet(job)
    if json:
        return Json(job)
    return Live(job, where, terminal()) if sys.stdout.isatty() else Plain(job, where, terminal())
