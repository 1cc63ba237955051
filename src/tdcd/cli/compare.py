"""``tdcd compare``: runs side by side in the terminal, priced for any network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.pricing import Cost, Metric, Target, TComm, costs_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from tdcd.reports.lines import Line
    from tdcd.reports.study import Study

WIDE = 110
"""Columns of a terminal that shows everything."""
EXAMPLES = """Examples:

tdcd compare runs/a runs/b

tdcd compare sweeps/cifar10-small --t-comm 1 --t-comm 1000 --target 0.4  [dim]# other latencies, no training[/dim]

tdcd compare runs/a runs/b --cost hub_latency=5 --cost slow_clients=0.1 --cost slowdown=10

tdcd compare sweeps/cifar10-small --markdown  [dim]# a table for a text, and by how much larger Q is faster[/dim]
"""


def command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or those of sweeps.")],
    t_comm: TComm = None,
    cost: Cost = None,
    metric: Metric = None,
    target: Target = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write Markdown: the table, and what follows from it, for a text.")
    ] = False,
) -> None:
    """Show what runs reached, what they sent, and what time they would take on a network; nothing is trained."""
    from tdcd.cli.terminal import terminal
    from tdcd.reports.study import read_study

    study = read_study(runs, metric=metric, t_comm=t_comm, target=target, costs=costs_of(cost))
    if markdown:
        typer.echo(_markdown(study))
        return
    console = terminal()
    console.print(comparison(study, console))


def _notes(study: "Study", width: int) -> list[str]:
    """Return what must be said below the numbers."""
    from tdcd.reports.remarks import remarks
    from tdcd.reports.words import PLUS_MINUS

    several = any(len(line.visible_runs) > 1 for line in study.lines)
    return [
        *([PLUS_MINUS.format(study.over) if width >= WIDE else f"means over {study.over}"] if several else []),
        *remarks(study),
    ]


def comparison(study: "Study", console: "Console") -> "RenderableType":
    """Return a table with a row for every line of a study; or, where that does not fit, one below the other."""
    from rich.console import Group
    from rich.text import Text

    table = _table(study, console.width)
    drawn = "".join(segment.text for line in console.render_lines(table) for segment in line)
    if "…" in drawn:  # rich cuts words that do not fit
        return _list(study, console.width)
    return Group(table, *map(Text, _notes(study, console.width)))


def _markdown(study: "Study") -> str:
    """Return the table of a study, and how much faster some lines are than others, from the same numbers."""
    from tdcd.reports.findings import speedups

    lines = [f"{_title(study)}", ""]
    names = ["", *_names(study)]
    lines += [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for line in study.lines:
        cells = _cells(study, line, WIDE) if line.visible_runs else [_without(line), *[""] * (len(names) - 2)]
        row = [study.name_of(line), *cells]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |")
    return "\n".join([*lines, "", *(f"- {text}" for text in (*_notes(study, WIDE), *speedups(study)))])


def _title(study: "Study") -> str:
    target = _target(study)
    spent = "time of the whole run" if target is None else f"time to {study.measure.label} {target:g}, and stay there"
    return f"{study.title}: {spent}"


def _target(study: "Study") -> float | None:
    """Return the value that times are about: in a sweep one that all lines reach; else the time of the whole run."""
    return study.target if study.sweep or study.wanted is not None else None


def _names(study: "Study") -> list[str]:
    times = (f"t_comm {t:g}" for t in study.t_comm)
    return ["rate", "rounds", "loss", study.measure.label, "sent", *times, "wall time"]


def _list(study: "Study", width: int) -> "RenderableType":
    """Return a small table for every line of a study."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(_title(study), style="italic")]
    for line in study.lines:
        rows = (
            zip(_names(study), _cells(study, line, width), strict=True) if line.visible_runs else [(_without(line), "")]
        )
        table = Table.grid(padding=(0, 2, 0, 0))
        for name, cell in rows:
            table.add_row(f"  {name}", cell)
        parts += [Text(study.name_of(line), style="bold"), table]
    return Group(*parts, *map(Text, _notes(study, width)))


def _without(line: "Line") -> str:
    """Tell why a line has no numbers."""
    return "diverged" if line.runs else "every rate diverged"


def _table(study: "Study", width: int) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=_title(study), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    names = _names(study)
    for name in names if width >= WIDE else names[:-1]:
        table.add_column(name, justify="right")
    for line in study.lines:
        cells = _cells(study, line, width) if line.visible_runs else [_without(line)]
        table.add_row(study.name_of(line), *cells[: len(table.columns) - 1])
    return table


def _rounds(line: "Line") -> str:
    """Write the rounds of a line, and how many there should be where one of its runs has fewer."""
    from tdcd.reports.words import rounds_of

    return min((rounds_of(run) for run in line.visible_runs), key=lambda text: (" of " not in text, text))


def _cells(study: "Study", line: "Line", width: int) -> list[str]:
    from tdcd.reports.frame import LOSS
    from tdcd.reports.words import about, duration, mean, number, size, time

    def cell(values: list[float]) -> str:
        return about(values) if width >= WIDE or not values else number(mean(values))

    sent, target = sum(line.traffic().values()), _target(study)
    cells = [
        "–" if line.rate is None else f"{line.rate:g}",
        _rounds(line),
        cell(line.finals(LOSS)),
        cell(line.finals(study.measure)),
        size(sent) + (" (one silo)" if line.runs[0].is_hub else "") if sent else "–",
    ]
    for t in study.t_comm:
        priced = study.costs.at(t)
        whole = line.ends(priced)["time"].to_list()
        spent = whole if target is None else line.times_to(study.measure, target, priced)
        cells.append(time(mean(spent)) if spent else "never")
    return [*cells, duration(mean(line.ends()["seconds"].to_list()))]
