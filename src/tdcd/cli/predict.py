"""``tdcd predict``: what a finished run says of new rows."""

import json as json_
import sys
from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.imports import Allowed
from tdcd.errors import DataError, JobError
from tdcd.runs.layout import check_run

EXAMPLES = """Examples:

tdcd predict runs/loans-20260101-120000 --table bank=new-bank.csv --table insurer=new-insurer.csv

tdcd predict runs/loans-20260101-120000 --table bank/south=new-south.csv --table insurer=new-insurer.csv  [dim]# written
as the files of south are[/dim]

tdcd predict runs/digits-20260101-120000 --out test.csv  [dim]# the job's own test samples[/dim]
"""


def command(
    run: Annotated[Path, typer.Argument(help="The directory of a run that has ended.")],
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="SILO=FILE",
            help="A silo's new rows, CSV or Parquet; may be repeated. SILO/CLIENT=FILE reads them as that client's.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the predictions: .csv or .parquet.")] = Path(
        "predictions.csv"
    ),
    import_from: Annotated[
        list[Path] | None,
        typer.Option(
            "--import-from", metavar="DIR", help="A folder of code of one's own, which may run; may be repeated."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="MODULE", help="An installed module whose code may run; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict from new tables, for the IDs that all silos have; or from the job's own test samples.

    Where the new tables have labels, the predictions are measured. Code that the run names, such as a model, a loss or
    a data function of one's own, runs only if it lies in a folder named with --import-from, or its module is named
    with --allow.
    """
    if out.suffix not in (".csv", ".parquet"):
        raise JobError(f"--out {out}: name a .csv or a .parquet file")
    if out.exists():
        raise JobError(f"{out} exists already and is left as it is; choose another with --out")
    check_run(run)
    folders = import_from or []
    sys.path.extend(str(folder.resolve()) for folder in folders)
    from tdcd.jobs.predict import load_run

    loaded = load_run(run, imports=Allowed(allow or [], folders))
    if table:
        files: dict[str, list[Path | str]] = {}
        for text in table:
            silo, separator, path = text.partition("=")
            if not separator or not path:
                raise JobError(f"--table {text}: write it as SILO=FILE, such as bank=new-bank.csv")
            files.setdefault(silo, []).append(path)
        result = loaded.predict_tables(files)
    else:
        result = loaded.predict_held_out()
    try:
        result.frame.write_csv(out) if out.suffix == ".csv" else result.frame.write_parquet(out)
    except OSError as error:
        raise DataError(f"{out}: cannot be written: {error}") from error
    if json:
        record = {"measures": dict(result.measures), "warnings": list(result.warnings)}
        typer.echo(json_.dumps({"file": str(out), "predictions": result.frame.height, **record}))
        return
    typer.echo(f"{run}: {loaded.ended}")
    typer.echo(result.note)
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{out}: {result.frame.height:,} predictions")
    if result.measures:
        typer.echo("  ".join(f"{name} {value:.4f}" for name, value in result.measures.items()))
