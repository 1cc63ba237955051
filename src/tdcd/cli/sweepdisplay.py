"""How a sweep is shown: live on a terminal, in plain lines elsewhere, or not at all."""

import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from tdcd.cli.compare import comparison
from tdcd.cli.screen import Screen
from tdcd.cli.terminal import terminal
from tdcd.experiments.sweep_run import SweepObserver
from tdcd.reports.advice import advice
from tdcd.reports.study import Study
from tdcd.runs.records import Evaluation, Outcome


class SweepDisplay(Screen, SweepObserver):
    """Shows nothing. Also a context manager, for displays that own the screen."""

    def say(self, text: str) -> None:
        """Print a line, if anything is to be printed."""

    def finished(self, study: Study, report: Path) -> None:
        """Show what came out."""


class Plain(SweepDisplay):
    """A line a run, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.total = self.done = 0
        self.lock = threading.Lock()

    def say(self, text: str) -> None:
        """See SweepDisplay."""
        self.console.print(text, soft_wrap=True)

    def reading(self, job: str) -> None:
        """See SweepObserver."""
        self.say(f"reading the data of {job}")

    def planned(self, what: str, names: Sequence[str], done: Sequence[str], iterations: Mapping[str, int]) -> None:  # noqa: ARG002
        """See SweepObserver."""
        self.total, self.done = len(names), len(done)
        ended = f", of which {len(done)} have ended before" if done else ""
        self.say(f"{len(names)} {what}{ended}")

    def ended(self, name: str, outcome: Outcome) -> None:
        """See SweepObserver."""
        with self.lock:
            self.done += 1
            self.say(f"  {self.done}/{self.total}  {self.describe_run(name, outcome)}")

    def describe_run(self, name: str, outcome: Outcome) -> str:
        """Write how a run has ended."""
        evaluated, words = outcome.evaluated, [name.split("/", 1)[-1]]
        if outcome.status == "diverged":
            words.append(f"diverged; its last good round is {outcome.round}")
        elif evaluated:
            words.append(f"loss {evaluated.train['loss']:.4f}")
            words += self.describe_measures(evaluated)
            words += [finding.kind for finding in outcome.findings if finding.level == "failure"]
        words.append(f"{outcome.seconds:.0f} s")
        return "  ".join(words)

    def describe_measures(self, evaluated: Evaluation) -> list[str]:
        """Write what is of interest of an evaluation, besides the training loss."""
        return [f"test {name} {value:.4f}" for name, value in evaluated.shown("test").items() if name != "loss"][:3]

    def failed(self, name: str) -> None:
        """See SweepObserver."""
        with self.lock:
            self.done += 1
            self.say(f"  {self.done}/{self.total}  {name.split('/', 1)[-1]}  failed")

    def noted(self, text: str) -> None:
        """See SweepObserver."""
        self.say(text)

    def lost(self, name: str, why: str) -> None:
        """See SweepObserver."""
        self.say(f"  {name.split('/', 1)[-1]}: {why}; it goes on from its checkpoint")

    def stopping(self) -> None:
        """See SweepObserver."""
        self.say("Stopping: runs under way write their checkpoints …")

    def chose(self, combination: str, rate: float | None, losses: Mapping[float, float]) -> None:
        """See SweepObserver."""
        if rate is None:
            self.say(f"  {combination}: every rate diverged, so it is not run; try smaller ones than {min(losses):g}")
            return
        text = ", ".join(f"{loss:.4f} at {tried:g}" for tried, loss in losses.items())
        self.say(f"  {combination}: rate {rate:g} (loss {text})")

    def finished(self, study: Study, report: Path) -> None:
        """See SweepDisplay."""
        self.console.print()
        self.console.print(comparison(study, self.console))
        for finding in advice(study):
            self.say(f"{finding.level}: {finding}")
        self.say(f"Report: {report}")


class Live(Plain):
    """A bar for the whole, and one for each run under way."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True)),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=console,
        )
        self._whole: TaskID | None = None
        self._bars: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}
        self._at: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing, so that what follows is not drawn over."""
        self._progress.stop()

    def planned(self, what: str, names: Sequence[str], done: Sequence[str], iterations: Mapping[str, int]) -> None:
        """See SweepObserver."""
        super().planned(what, names, done, iterations)
        self._steps = dict(iterations)
        self._at = {name: iterations[name] for name in done}
        if self._whole is not None:
            self._progress.remove_task(self._whole)
        total = sum(iterations.values())
        self._whole = self._progress.add_task(what, total=total, status=f"{self.done}/{self.total}")
        self._progress.update(self._whole, completed=sum(self._at.values()))

    def began(self, name: str) -> None:
        """See SweepObserver."""
        text = name.split("/", 1)[-1]
        self._bars[name] = self._progress.add_task(f"  {text}", total=self._steps[name], status="reading")

    def advanced(self, name: str, iteration: int, loss: float | None) -> None:
        """See SweepObserver."""
        text = "" if loss is None else f"loss {loss:.4f}"
        self._progress.update(self._bars[name], completed=iteration, status=text)
        self._update(name, iteration)

    def ended(self, name: str, outcome: Outcome) -> None:
        """See SweepObserver."""
        super().ended(name, outcome)
        self._progress.remove_task(self._bars.pop(name))
        self._update(name, self._steps[name])

    def failed(self, name: str) -> None:
        """See SweepObserver."""
        super().failed(name)
        self._progress.remove_task(self._bars.pop(name))

    def lost(self, name: str, why: str) -> None:
        """See SweepObserver."""
        super().lost(name, why)
        self._progress.remove_task(self._bars.pop(name))

    def _update(self, name: str, iteration: int) -> None:
        with self.lock:
            self._at[name] = iteration
            if self._whole is not None:
                self._progress.update(self._whole, completed=sum(self._at.values()), status=f"{self.done}/{self.total}")


def display(*, quiet: bool) -> SweepDisplay:
    """Choose how to show a sweep."""
    if quiet:
        return SweepDisplay()
    return Live(terminal()) if sys.stdout.isatty() else Plain(terminal())
