"""``tdcd evaluate``: how good a model is on labelled rows."""

import json as json_
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.models import Allow, ImportFrom, load
from tdcd.cli.predict import files_of
from tdcd.errors import JobError
from tdcd.runs.layout import check_run

if TYPE_CHECKING:
    from rich.console import Console

    from tdcd.reports.words import Table as Rows
    from tdcd.runs.quality import QualityRecord

EXAMPLES = """Examples:

tdcd evaluate runs/loans-20260101-120000  [dim]# the job's own test samples[/dim]

tdcd evaluate models/loans --table bank=new-bank.csv --table insurer=new-insurer.csv

tdcd evaluate runs/loans-20260101-120000 --threshold 0.3 --out evaluation.html

tdcd evaluate runs/loans-20260101-120000 --best youden --json
"""


class Best(StrEnum):
    """What a threshold may be chosen by."""

    F1 = "f1"
    YOUDEN = "youden"


def command(
    model: Annotated[Path, typer.Argument(help="A run that has ended, or a model that tdcd assemble made.")],
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="SILO=FILE",
            help="A silo's labelled rows, CSV or Parquet; may be repeated. SILO/CLIENT=FILE reads them as that "
            "client's. Default: the job's own test samples.",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", help="For the binary loss: rows with at least this probability are flagged."),
    ] = None,
    best: Annotated[
        Best | None,
        typer.Option("--best", help="Choose the threshold by F1 or Youden's J, on validation samples; default: f1."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write a page or a record: .html or .json.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that --out names.")] = False,
    import_from: ImportFrom = None,
    allow: Allow = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure a model on labelled tables, or on its job's own test samples: calibration, thresholds, each client.

    A threshold is chosen on the job's validation samples, never on the samples that are measured; for new tables it is
    the one that was chosen when the training ended.
    """
    _check_out(out, force)
    from tdcd.serving.record import holds_model

    if not holds_model(model):
        check_run(model)
    from tdcd.serving.evaluate import Choice, evaluate_held_out, evaluate_tables

    choice = Choice(threshold, best.value if best else None)
    loaded = load(model, import_from, allow)
    warnings: tuple[str, ...] = ()
    if table:
        record, warnings = evaluate_tables(loaded, files_of(table), choice)
    else:
        record = evaluate_held_out(loaded, choice)
    if out:
        _write(record, out, model, loaded.origin)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    if json:
        typer.echo(json_.dumps(asdict(record)))
        return
    from tdcd.cli.terminal import terminal

    _print(record, terminal(), f"{model}: {loaded.origin}")
    if out:
        typer.echo(out)


def _check_out(out: Path | None, force: bool) -> None:
    """Refuse a file that is of no known kind, or that is there."""
    if out is None:
        if force:
            raise JobError("--force goes with --out, whose file it replaces")
        return
    if out.suffix not in (".html", ".json"):
        raise JobError(f"--out {out}: name a .html or a .json file")
    if out.exists() and not force:
        raise JobError(f"{out} exists already and is left as it is; replace it with --force, or choose another")
    if not out.parent.is_dir():
        raise JobError(f"--out {out}: there is no folder {out.parent}; make it first")


def _write(record: "QualityRecord", out: Path, model: Path, origin: str) -> None:
    from tdcd.reports.page import write_evaluation
    from tdcd.runs.records import write_record

    if out.suffix == ".json":
        write_record(out, record)
    else:
        write_evaluation(record, out, f"Evaluation of {model.resolve().name}", origin)


def _print(record: "QualityRecord", console: "Console", title: str) -> None:
    """Print a record as tables."""
    from rich.text import Text

    from tdcd.reports import quality

    console.print(Text(title, style="bold"))
    console.print(f"measured on {record.samples}, with the weights of round {record.round:,}")
    if record.points:
        console.print(f"threshold {quality.describe_point(record.points[0])}")
    for note in filter(None, (quality.describe_missing(record), *record.notes)):
        console.print(f"note: {note}")
    _print_table(console, "", ([""], [(name, [value]) for name, value in quality.scalars(record)]))
    if record.points:
        _print_table(console, "threshold", quality.operating_points(record))
    if matrix := quality.confusion(record):
        counts = [[f"{value:,}" for value in row] for row in matrix.counts]
        _print_table(console, "actual, predicted →", (list(matrix.names), list(zip(matrix.names, counts, strict=True))))
    _print_table(console, "lift by tenths", quality.lift(record))
    _print_table(console, "class", quality.classes(record))
    _print_table(console, "actual less predicted", quality.residuals(record))
    for silo in record.silos:
        _print_table(console, f"clients of {silo.silo}", quality.clients(silo))
        if silo.left_out:
            console.print(f"  and {silo.left_out:,} with fewer rows")


def _print_table(console: "Console", first: str, rows: "Rows") -> None:
    """Print a table, if it has rows."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    header, lines = rows
    if not lines:
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_header=any((first, *header)))
    table.add_column(first)
    for name in header:
        table.add_column(name, justify="left" if name in ("", "chosen") else "right")
    for name, cells in lines:
        table.add_row(name, *cells)
    console.print(table)
