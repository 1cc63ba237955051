"""``tdcd compare``: runs side by side in the terminal, priced for any network."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.pricing import Cost, Metric, Target, TComm, costs_of

if TYPE_CHECKING:
    from rich.table import Table

    from tdcd.reports.study import Line, Study

WIDE = 110
"""Columns of a terminal that shows everything."""
EXAMPLES = """Examples:

tdcd compare runs/a runs/b

tdcd compare sweeps/cifar10-small --t-comm 1 --t-comm 1000 --target 0.4  [dim]# other latencies, no training[/dim]

tdcd compare runs/a runs/b --cost hub_latency=5 --cost slow_clients=0.1 --cost slowdown=10
"""


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or those of sweeps.")],
    t_comm: TComm = None,
    cost: Cost = None,
    metric: Metric = None,
    target: Target = None,
) -> None:
    """Show what runs reached, what they sent, and what time they would take on a network; nothing is trained."""
    from rich.console import Console

    from tdcd.reports.study import read_study

    study = read_study(runs, metric=metric, t_comm=t_comm, target=target, costs=costs_of(cost))
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=160)
    console.print(comparison(study, console.width), highlight=False)


def comparison(study: "Study", width: int) -> "Table":
    """Return a table with a row for every line of a study, fit for a terminal of so many columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    several = any(len(line.shown) > 1 for line in study.lines)
    caption = "± is half of the range over seeds" if width >= WIDE else "means over seeds"
    spent = "time of the whole run" if study.goal is None else f"time to {study.measure.label} {study.goal:g}"
    table = Table(title=f"{study.title}: {spent}", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    if several:
        table.caption, table.caption_justify = caption, "left"
    table.add_column("", no_wrap=True)
    names = ["rate", "rounds", "loss", study.measure.label, "sent", *(f"t_comm {t:g}" for t in study.t_comm)]
    for name in [*names, "wall time"] if width >= WIDE else names:
        table.add_column(name, justify="right")
    for line in study.lines:
        cells = _cells(study, line, width) if line.shown else ["every rate diverged" if not line.runs else "diverged"]
        table.add_row(study.name_of(line), *cells[: len(table.columns) - 1])
    return table


def _cells(study: "Study", line: "Line", width: int) -> list[str]:
    from tdcd.reports.pricing import times
    from tdcd.reports.study import LOSS
    from tdcd.reports.words import about, duration, mean, number, size, time

    def told(values: list[float]) -> str:
        return about(values) if width >= WIDE or not values else number(mean(values))

    sent, goal = sum(line.traffic().values()), study.goal
    cells = [
        "–" if line.rate is None else f"{line.rate:g}",
        f"{max(run.history[-1]['round'] for run in line.shown):,}",
        told(line.finals(LOSS)),
        told(line.finals(study.measure)),
        size(sent) if sent else "–",
    ]
    for t in study.t_comm:
        priced = study.costs.at(t)
        whole = [times(run, priced)[-1] for run in line.shown]
        spent = whole if goal is None else line.times_to(study.measure, goal, priced)
        cells.append(time(mean(spent)) if spent else "never")
    return [*cells, duration(mean([run.history[-1]["seconds"] for run in line.shown]))]
