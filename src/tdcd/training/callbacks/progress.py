"""Showing a training as it goes, in a terminal or a notebook."""

import random
import time
from typing import TYPE_CHECKING

from tdcd.runs.records import Evaluation, Outcome
from tdcd.training.callbacks.base import Callback, FinishedRound, Start

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from tdcd.core.usage import ClusterUsage
    from tdcd.training.callbacks.bars import Bars

WIDE = 120
"""Columns of a terminal that shows everything."""


class Progress(Callback):
    """A bar with rounds, loss, metric, speed and the time left."""

    def __init__(self, name: str = "", console: "Console | None" = None) -> None:
        self.name = name
        """What to call the training."""
        self.bars, self._wide = _bars(console)
        self.metric = "loss"
        self.speed = Speed()
        self._task: TaskID | None = None

    def started(self, start: Start) -> None:
        """See Callback."""
        self.metric, self.speed = start.settings.objective.primary, Speed(start.done)
        self.bars.start()
        self._task = self.add(self.name, start.settings.rounds, start.done)
        for evaluation in start.history[-1:]:
            self.after_evaluation(evaluation)

    def add(self, name: str, total: int | None = None, done: int = 0) -> "TaskID":
        """Show one more bar, of so many rounds if that is known."""
        return self.bars.add_task(name, total=total, completed=done, measures="", speed="")

    def after_round(self, finished: FinishedRound) -> None:
        """See Callback."""
        if self._task is not None:
            speed = per_second(self.speed.at(finished.number))
            self.bars.update(self._task, completed=finished.number, speed=speed)
        self.show_usage(finished.usage)

    def show_usage(self, usage: "ClusterUsage | None") -> None:
        """Show below the bars where the time goes on a cluster."""
        self.bars.footer = f"  {usage.size}: {usage}" if usage else ""

    def after_evaluation(self, evaluation: Evaluation) -> None:
        """See Callback."""
        if self._task is not None:
            words = measures(evaluation, self.metric)
            self.bars.update(self._task, measures="  ".join(words if self._wide else [words[0], *words[1:][-1:]]))

    def ended(self, outcome: Outcome | None) -> None:  # noqa: ARG002
        """See Callback."""
        self.show_usage(None)
        self.bars.stop()


def _bars(console: "Console | None") -> "tuple[Bars, bool]":
    """Return what draws bars, and whether there is room for everything.

    Rich draws from Python's random numbers, which belong to the user, as it is imported and makes styles.
    """
    state = random.getstate()
    try:
        from rich import get_console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.table import Column

        from tdcd.training.callbacks.bars import Bars

        console = console or get_console()
        wide = console.width >= WIDE
        bars = Bars(
            TextColumn("  {task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=24 if wide else 8),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[measures]}", markup=False),
            *([TextColumn("{task.fields[speed]}", style="dim", markup=False)] if wide else []),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=console,
        )
    finally:
        random.setstate(state)
    return bars, wide


class Speed:
    """How fast rounds go in this session, which began after some round."""

    def __init__(self, first: int = 0) -> None:
        self.first, self._clock = first, time.perf_counter()

    def at(self, done: int) -> float:
        """Return rounds a second."""
        return (done - self.first) / max(1e-9, time.perf_counter() - self._clock)


def per_second(speed: float) -> str:
    """Write a speed."""
    return f"{speed:,.0f} rounds/s" if speed >= 100 else f"{speed:.3g} rounds/s"


def measures(evaluation: Evaluation, metric: str) -> list[str]:
    """Write an evaluation in a few words."""
    parts = {"validation": evaluation.validation, "test": evaluation.test}
    text = [f"{name} {metric} {result[metric]:.4f}" for name, result in parts.items() if metric in result]
    return [f"loss {evaluation.train['loss']:.4f}", *text]
