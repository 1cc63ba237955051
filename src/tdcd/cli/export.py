"""``tdcd export``: a trained model as files that need no tdcd."""

import json as json_
from pathlib import Path
from typing import Annotated, Literal

import typer

from tdcd.cli.models import Allow, ImportFrom, load
from tdcd.runs.layout import check_run

EXAMPLES = """Examples:

tdcd export runs/loans-20260101-120000 --out loans  [dim]# ONNX: cells of the tables in, scores and classes out[/dim]

tdcd export models/loans --out loans --prepared  [dim]# prepared numbers in[/dim]

tdcd export runs/digits-20260101-120000 --out digits --format torch  [dim]# programs of torch.export[/dim]
"""


def command(
    model: Annotated[Path, typer.Argument(help="A model that tdcd assemble made, or a run that has ended.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory to write.")],
    format: Annotated[  # noqa: A002
        Literal["onnx", "torch"], typer.Option("--format", help="ONNX graphs, or programs of torch.export (.pt2).")
    ] = "onnx",
    prepared: Annotated[
        bool, typer.Option("--prepared", help="Take the numbers that tables are prepared as, rather than cells.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    import_from: ImportFrom = None,
    allow: Allow = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a trained model as files that need no tdcd: the whole model, and the embedding of each silo.

    The files are compared with what tdcd computes before they are in place. ONNX needs the extra "export" of tdcd.
    """
    from tdcd.serving.export.directory import export_model
    from tdcd.serving.record import holds_model

    if not holds_model(model):
        check_run(model)
    loaded = load(model, import_from, allow)
    done = export_model(loaded, out, format, prepared=prepared, force=force)
    if json:
        record = {"directory": str(done.path), "files": list(done.files), "rows": done.rows}
        typer.echo(json_.dumps(record | {"difference": done.difference}))
        return
    typer.echo(f"{model}: {loaded.origin}")
    for name in done.files:
        typer.echo(f"{done.path / name}: {(done.path / name).stat().st_size:,} bytes")
    typer.echo(f"{done.path / 'README.md'} says how to call them")
    typer.echo(f"the largest difference from tdcd on {done.rows} random rows is {done.difference:.2g}")
