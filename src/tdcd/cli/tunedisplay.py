"""How a search for settings is shown: as a sweep is, with what it tries, and what it comes to."""

import sys
from pathlib import Path

from rich.table import Table

from tdcd.cli.sweepdisplay import Live, Plain, SweepDisplay
from tdcd.cli.terminal import terminal
from tdcd.experiments.tuning import Space, TuneObserver
from tdcd.experiments.tuning.search import Trials
from tdcd.reports.tuning import by_local_steps, common_target
from tdcd.runs.records import Evaluation
from tdcd.runs.tuning import TuningRecord


class _Words(TuneObserver):
    def searching(self, space: Space, rungs: list[float], start: str, expected: str) -> None:
        """See TuneObserver."""
        assert isinstance(self, SweepDisplay)  # noqa: S101
        lengths = ", ".join(f"{time:,.0f}" for time in rungs)
        self.say(start)
        self.say(f"{len(space.groups)} choices of Q, hub step and batch, each with several rates, for times {lengths}")
        self.say(expected)

    def trying(self, trials: Trials) -> None:
        """See TuneObserver."""
        assert isinstance(self, SweepDisplay)  # noqa: S101
        self.say(f"{trials.why}, for {trials.time:,.0f}:")

    def describe_measures(self, evaluated: Evaluation) -> list[str]:
        """Write the validation measures: settings are not chosen on the test samples."""
        return [f"validation {name} {value:.4f}" for name, value in evaluated.shown("validation").items()][:3]


class QuietTuning(_Words, SweepDisplay):
    """Shows nothing."""


class PlainTuning(_Words, Plain):
    """A line a trial."""


class LiveTuning(_Words, Live):
    """Bars."""


def display(*, quiet: bool) -> QuietTuning | PlainTuning | LiveTuning:
    """Choose how to show a search."""
    if quiet:
        return QuietTuning()
    return LiveTuning(terminal()) if sys.stdout.isatty() else PlainTuning(terminal())


def show(shown: QuietTuning | PlainTuning | LiveTuning, record: TuningRecord, directory: Path, report: Path) -> None:
    """Print what a search has come to."""
    if isinstance(shown, QuietTuning):
        return
    columns, rows = by_local_steps(record)
    target = common_target(record)
    table = Table(title="What each Q reached", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(
            name if name != "time to the target" or target is None else f"time to {target:.4g}", justify="right"
        )
    for name, cells in rows:
        table.add_row(name, *cells)
    shown.console.print()
    shown.console.print(table)
    for line in record.log:
        shown.say(f"· {line}")
    shown.say(f"It took {record.cost:.1f} whole trainings; a full grid has {record.grid:g}.")
    shown.say(f"Report: {report}")
    shown.say(f"Train with it: tdcd train {directory / 'tuned.toml'}")
