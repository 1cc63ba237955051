"""``tdcd predict``: what a trained model says of new rows."""

import json as json_
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.models import Allow, ImportFrom, load
from tdcd.cli.site import Insecure
from tdcd.errors import JobError
from tdcd.runs.layout import check_run

EXAMPLES = """Examples:

tdcd predict runs/loans-20260101-120000 --table bank=new-bank.csv --table insurer=new-insurer.csv

tdcd predict models/loans --table bank/south=new-south.csv --table insurer=new.parquet  [dim]# written as the files of
south are[/dim]

tdcd predict models/loans --table bank=new-bank.csv --without insurer --shares --out partial.parquet

tdcd predict runs/digits-20260101-120000 --out test.csv  [dim]# the job's own test samples[/dim]

tdcd predict --site hub.toml --ids new.csv  [dim]# across sites, whose hubs and clients were started with --serve[/dim]
"""


def command(
    model: Annotated[
        Path | None,
        typer.Argument(help="A model that tdcd assemble made, or a run that has ended; nothing with --site."),
    ] = None,
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
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="SILO", help="Leave a silo out: partial predictions, marked as such."),
    ] = None,
    shares: Annotated[bool, typer.Option("--shares", help="Add the score, and each silo's share of it.")] = False,
    shapley: Annotated[
        bool, typer.Option("--shapley", help="Add each silo's Shapley value for the probability, or predicted value.")
    ] = False,
    import_from: ImportFrom = None,
    allow: Allow = None,
    site: Annotated[
        Path | None,
        typer.Option("--site", help="The site file of this silo's hub: rows and weights stay at their sites."),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option("--ids", help="With --site: a .csv or .parquet with the column of IDs, or a .txt, one a line."),
    ] = None,
    insecure: Insecure = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict from new tables, for the IDs that all silos have; or from the job's own test samples; or across sites.

    Where the new tables have labels, the predictions are measured. Columns that differ much from the training are
    named. Code that the model names, such as a network, a loss or a data function of one's own, runs only if it lies in
    a folder named with --import-from, or its module is named with --allow.
    """
    check_out(out, force=force)
    if site or ids:
        if model or table or without or shares or shapley or not (site and ids):
            raise JobError("across sites: tdcd predict --site hub.toml --ids FILE, without a model or tables")
        across_sites(site, ids, out, insecure=insecure, json=json)
        return
    if model is None:
        raise JobError("name a model that tdcd assemble made, or a run that has ended; or --site and --ids")
    from tdcd.serving.frame_file import FrameFile
    from tdcd.serving.record import holds_model

    if not holds_model(model):
        check_run(model)
    loaded = load(model, import_from, allow)
    for finding in loaded.result.failures:
        typer.echo(f"warning: this model learned nothing in training: {finding}", err=True)
    if table:
        from tdcd.cli.terminal import progress

        with progress("predicting", quiet=json) as advance:
            result = loaded.predict_tables(
                files_of(table), without=without or (), shares=shares, shapley=shapley, out=out, on_progress=advance
            )
    elif without or shares or shapley:
        raise JobError("--without, --shares and --shapley go with new tables: --table SILO=FILE")
    else:
        result = loaded.predict_held_out()
        with FrameFile(out) as file:
            file.write(result.frame)
    if json:
        drift = {silo: [asdict(column) for column in columns] for silo, columns in result.drift.items()}
        record = {"measures": dict(result.measures), "warnings": list(result.warnings), "drift": drift}
        partial = {"without": sorted(without)} if without else {}
        typer.echo(json_.dumps({"file": str(out), "predictions": result.count, **partial, **record}))
        return
    typer.echo(f"{model}: {loaded.origin}")
    typer.echo(result.note)
    for warning in result.warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"{out}: {result.count:,} predictions" + (" without " + ", ".join(without) if without else ""))
    if result.measures:
        typer.echo("  ".join(f"{name} {value:.4f}" for name, value in result.measures.items()))


def across_sites(site: Path, ids: Path, out: Path, *, insecure: bool, json: bool) -> None:
    """Ask all silos by way of the silo's own hub."""
    from tdcd.cli.terminal import progress
    from tdcd.serving.frame_file import FrameFile
    from tdcd.serving.tables import WITHOUT
    from tdcd.sites.asking import predict_across_sites

    with progress("predicting", quiet=json) as advance:
        result = predict_across_sites(site, ids, insecure=insecure, on_progress=advance)
    with FrameFile(out) as file:
        file.write(result.frame)
    if json:
        record = {"file": str(out), "predictions": result.frame.height, "partial": result.partial}
        typer.echo(json_.dumps(record))
        return
    typer.echo(f"{out}: {result.frame.height:,} predictions")
    if result.partial:
        typer.echo(f"warning: {result.partial:,} of them are partial: see the column '{WITHOUT}'", err=True)


def files_of(tables: Sequence[str]) -> dict[str, list[Path | str]]:
    """Read SILO=FILE options.

    Raises:
        JobError: one is written otherwise.
    """
    files: dict[str, list[Path | str]] = {}
    for text in tables:
        silo, separator, path = text.partition("=")
        if not separator or not path:
            raise JobError(f"--table {text}: write it as SILO=FILE, such as bank=new-bank.csv")
        files.setdefault(silo, []).append(path)
    return files


def check_out(out: Path, *, force: bool) -> None:
    """Check that a file of predictions can be written, before anything is computed.

    Raises:
        JobError: it has another kind of name, or is there.
    """
    from tdcd.serving.frame_file import SUFFIXES

    if out.suffix not in SUFFIXES:
        raise JobError(f"--out {out}: name a .csv or a .parquet file")
    if out.is_dir():
        raise JobError(f"--out {out}: this is a folder; name a file")
    if out.exists() and not force:
        raise JobError(f"{out} exists already and is left as it is; choose another with --out, or say --force")
    if not out.parent.is_dir():
        raise JobError(f"--out {out}: there is no folder {out.parent}; make it first")
