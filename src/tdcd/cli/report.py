"""``tdcd report``: draw a run again."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = "Example: tdcd report runs/digits-20260101-120000"


def command(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write a run's report.html anew from its files, also of one that was stopped or is under way."""
    from tdcd.reports.page import write_report

    typer.echo(write_report(run))
