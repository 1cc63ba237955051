"""``tdcd check``: read a job's data and show how it is understood, without training."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

tdcd check loans.toml  [dim]# every column of the silos' tables: what it holds, and what becomes of it[/dim]

tdcd check physionet2012 --data physionet2012
"""


def command(
    job: Annotated[Path, typer.Argument(help="A job file, or the name of an embedded job.")],
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
) -> None:
    """Read a job's data, align and prepare it, and show who has what; reports all column problems at once.

    Warns of columns that can be read, but look wrong: constants, codes for missing values, outliers, amounts and dates
    that are taken as categories, hundreds of categories, and columns that are nearly the label.
    """
    from rich.table import Table
    from rich.text import Text

    from tdcd.cli.imports import importable_for
    from tdcd.cli.terminal import terminal
    from tdcd.data.label_encoding import must_name
    from tdcd.jobs.data import load_data
    from tdcd.jobs.load import load_job
    from tdcd.jobs.run import plan_computation
    from tdcd.jobs.schema import TableJob

    read = load_job(job, {"data.directory": str(data)} if data else None)
    importable_for(job)
    with terminal(stderr=True).status("") as status:
        result = load_data(read, str(job), lambda what: status.update(Text(f"reading {what}")))
        warnings = []
        if isinstance(read, TableJob):
            from tdcd.jobs.check import find_warnings

            status.update("looking at the columns")
            warnings = find_warnings(read, result)
    console = terminal()
    for note in result.federation.notes:
        console.print(note, markup=False, soft_wrap=True)
    for silo, made in result.federation.preparations.items():
        table = Table(title=f"Columns of {silo}", title_justify="left")
        for name in ("column", "holds", "inputs"):
            table.add_column(name, justify="right" if name == "inputs" else "left")
        for column in made.columns:
            table.add_row(column.name, column.describe(), str(len(column.outputs)))
        console.print(table)
    table = Table(title="Silos", title_justify="left")
    for name in ("silo", "a row", "clients", "training rows a client"):
        table.add_column(name, justify="left" if name == "silo" else "right")
    for silo, roster in result.federation.rosters.items():
        counts = roster.counts()
        rows = result.federation.samples.features.get(silo)
        shape = "only labels" if rows is None else " × ".join(map(str, rows.shape[1:]))
        table.add_row(silo, shape, f"{len(counts):,}", f"{min(counts):,} to {max(counts):,}")
    console.print(table)
    if (
        read.labels.private
        and not read.labels.classes
        and must_name(read.training.objective.meaning, read.labels.positive)
    ):
        names = ", ".join(f'"{name}"' for name in result.federation.classes)
        advice = f"To deploy it, name the labels in the job, as nobody can look at all of them: classes = [{names}]"
        console.print(advice, markup=False, soft_wrap=True)
    parts = ", ".join(f"{part.word} {len(ids):,}" for part, ids in result.ids.items())
    console.print(f"Samples: {parts}")
    paths, notes = plan_computation(read, result)
    for silo, why in paths.items():
        console.print(f"Computed {silo}: {why}", markup=False, soft_wrap=True)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
    if result.federation.classes:
        counts = result.federation.samples.labels.bincount(minlength=len(result.federation.classes)).tolist()
        text = ", ".join(f"{name} {count:,}" for name, count in zip(result.federation.classes, counts, strict=True))
        console.print(f"Training labels: {text}", markup=False, soft_wrap=True)
    for warning in warnings:
        console.print(f"warning: {warning}", markup=False, soft_wrap=True)
