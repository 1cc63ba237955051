"""``tdcd compare``: runs side by side in the terminal, priced for any network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.pricing import Cost, Metric, Target, TComm, costs_of

if TYPE_CHECKING:
    from rich.table import Table

    from tdcd.reports.study import Line, Study

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
    console = Console()
    console.print(comparison(study), highlight=False)


def comparison(study: "Study") -> "Table":
    """Return a table with a row for every line of a study."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tdcd.reports.words import label

    score = label(study.metric)
    spent = "time" if study.goal is None else f"to {score} {study.goal:g}"
    table = Table(title=study.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in ("rate", "rounds", "training loss", f"test {score}", "sent"):
        table.add_column(name, justify="right")
    for t in study.t_comm:
        table.add_column(f"{spent}, t_comm {t:g}", justify="right")
    table.add_column("wall time", justify="right")
    for line in study.lines:
        if all(run.history for run in line.runs):
            table.add_row(line.full if study.sweep else line.label, *_cells(study, line))
    return table


def _cells(study: "Study", line: "Line") -> list[str]:
    from tdcd.reports.pricing import times
    from tdcd.reports.words import about, duration, mean, size, time

    sent, goal = sum(line.traffic().values()), study.goal
    cells = [
        "–" if line.rate is None else f"{line.rate:g}",
        f"{line.runs[0].history[-1]['round']:,}",
        about(line.finals("train", "loss")),
        about(line.finals("test", study.metric)),
        size(sent) if sent else "–",
    ]
    for t in study.t_comm:
        priced = study.costs.at(t)
        if goal is None:
            reached: list[float | None] = [times(run, priced)[-1] for run in line.runs]
        else:
            reached = line.times_to(study.metric, goal, priced)
        known = [value for value in reached if value is not None]
        cells.append(time(mean(known)) if len(known) == len(line.runs) else "never")
    return [*cells, duration(mean([run.history[-1]["seconds"] for run in line.runs]))]
