"""``tdcd explain``: how much silos and columns matter to a trained model."""

import json as json_
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.models import Allow, ImportFrom, load

EXAMPLES = """Examples:

tdcd explain runs/loans-20260101-120000  [dim]# on the job's own test samples[/dim]

tdcd explain models/loans --table bank=labelled.csv --table insurer=insurer.csv --out importance.csv

tdcd predict models/loans --table bank=new.csv --table insurer=new2.csv --shares --shapley  [dim]# by prediction[/dim]
"""
MOST = 25
"""Columns that are shown; the file has all."""


def command(
    model: Annotated[Path, typer.Argument(help="A model that tdcd assemble made, or a run that has ended.")],
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="SILO=FILE", help="A silo's rows, one silo with labels; may be repeated."),
    ] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="What is measured; default: the loss's first.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="How often a column is dealt anew.")] = 5,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Decides on how.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A CSV or Parquet file for all of it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    import_from: ImportFrom = None,
    allow: Allow = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how much worse the model is where the values of a column, or of a whole silo, are dealt anew.

    Only rows that were not trained on tell what matters for new ones: the job's test samples, or labelled tables. Of
    the former, a run gets importance.json, and tdcd report draws it.
    """
    import polars as pl

    from tdcd.cli.predict import check_out, files_of
    from tdcd.cli.terminal import progress
    from tdcd.runs.layout import IMPORTANCE
    from tdcd.runs.records import write_record
    from tdcd.serving.frame_file import FrameFile

    if out:
        check_out(out, force=force)
    loaded = load(model, import_from, allow)
    files = files_of(table) if table else None
    with progress("columns", quiet=json) as advance:
        result = loaded.importance(files, metric=metric, repeats=repeats, seed=seed, on_progress=advance)
    if files is None and loaded.record is None:
        write_record(model / IMPORTANCE, result)
    if out:
        rows = [
            {"silo": one.silo, "column": one.column or None, result.metric: one.mean, "deviation": one.deviation}
            | {f"auroc of {name}": fall for name, fall in one.classes.items()}
            for one in (*result.silos(), *result.sorted())
        ]
        with FrameFile(out) as file:
            file.write(pl.DataFrame(rows, infer_schema_length=None))
    if json:
        typer.echo(json_.dumps(asdict(result)))
        return
    from rich.table import Table

    from tdcd.cli.terminal import terminal

    console = terminal()
    what = "rise of the loss" if result.metric == "loss" else f"fall of {result.metric}"
    console.print(f"{result.metric} {result.score:.4f} on {result.rows:,} rows; {what} where values are dealt anew:")
    shown = Table()
    for name in ("silo", "column"):
        shown.add_column(name)
    for name in (what, "±"):
        shown.add_column(name, justify="right")
    for one in (*result.silos(), *result.sorted()[:MOST]):
        style = None if one.column else "bold"
        shown.add_row(one.silo, one.column or "all columns", f"{one.mean:+.4f}", f"{one.deviation:.4f}", style=style)
    console.print(shown)
    if len(result.sorted()) > MOST:
        console.print(f"and {len(result.sorted()) - MOST} columns more" + (f", in {out}" if out else "; see --out"))
    if files is None and loaded.record is None:
        console.print(f"tdcd report {model} shows it, too")
