"""``tdcd report``: draw runs and sweeps."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.pricing import Cost, Metric, Target, TComm, costs_of
from tdcd.errors import RunError

EXAMPLES = """Examples:

tdcd report runs/digits-20260101-120000  [dim]# one run[/dim]

tdcd report sweeps/cifar10-small --t-comm 10 --t-comm 1000 --cost hub_latency=5

tdcd report runs/a runs/b --out comparison  [dim]# several in one picture[/dim]
"""


def command(
    runs: Annotated[list[Path], typer.Argument(help="A run, a sweep, or several to be seen together.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write; default: into the run or sweep.")
    ] = None,
    t_comm: TComm = None,
    cost: Cost = None,
    metric: Metric = None,
    target: Target = None,
) -> None:
    """Write report.html, and a folder report with its figures (SVG, PNG) and numbers (CSV), from files only.

    Works also for what was stopped or is under way; other latencies need no training.
    """
    from tdcd.costs import T_COMM
    from tdcd.reports.comparison import write_run_extras, write_study
    from tdcd.reports.page import write_report
    from tdcd.reports.study import read_study
    from tdcd.runs.layout import holds_run, holds_sweep
    from tdcd.runs.reader import read_run

    costs = costs_of(cost)
    if len(runs) == 1 and not holds_sweep(runs[0]):
        if out is not None:
            raise RunError("--out is for a sweep or several runs; the report of a single run goes into its directory")
        if target is not None:
            raise RunError("--target is for a sweep or several runs")
        page = write_report(runs[0], metric=metric, t_comm=t_comm or T_COMM, costs=costs)
        write_run_extras(read_run(runs[0]), metric)
        typer.echo(page)
        return
    if len(runs) > 1 and out is None:
        raise RunError("say with --out where the report on several runs is to be written")
    if out is not None and [out] != runs and (holds_run(out) or holds_sweep(out)):
        raise RunError(f"--out {out}: its own report would be replaced; choose another directory")
    study = read_study(runs, metric=metric, t_comm=t_comm, target=target, costs=costs)
    typer.echo(write_study(study, out or runs[0]))
