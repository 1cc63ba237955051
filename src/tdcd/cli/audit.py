"""``tdcd audit``: what a training gives away."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.imports import import_path, importable

if TYPE_CHECKING:
    from rich.table import Table

    from tdcd.experiments.audit import Audit

app = typer.Typer(help="What a training gives away.", no_args_is_help=True)

EXAMPLES = """Examples:

tdcd audit labels runs/loans-20260101-120000  [dim]# how well can the insurer infer the bank's labels?[/dim]

tdcd audit labels loans.toml --clip 0.5 --noise 1 --noise 4  [dim]# and what do defences cost?[/dim]

tdcd audit labels digits --set labels.silo=left --set labels.sharing=stale
"""


@app.callback()
def _several() -> None:
    pass


@app.command("labels", epilog=EXAMPLES)
def labels(
    job: Annotated[Path, typer.Argument(help="A job file, the name of an embedded job, or a run directory.")],
    clip: Annotated[
        float | None, typer.Option("--clip", help="A defence: the largest norm of what is told of a sample.")
    ] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option("--noise", help="A defence: noise of this deviation, in units of --clip; may be repeated."),
    ] = None,
    silo: Annotated[str | None, typer.Option("--silo", help="Who listens; default: the first without labels.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", "-R", help="Train for fewer rounds than the job.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the job file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Train a job once more, and tell how well a silo without labels could infer them from what it is told."""
    from rich.console import Console
    from rich.markup import escape

    from tdcd.experiments.audit import audit_labels, defences_of
    from tdcd.experiments.data import load_data
    from tdcd.experiments.job import load_job
    from tdcd.strict import parse_setting

    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    named = {"data.directory": str(data) if data else None, "training.rounds": rounds}
    overrides |= {key: value for key, value in named.items() if value is not None}
    file = job / "job.toml" if (job / "job.toml").exists() else job
    read = load_job(file, overrides)
    importable(file.parent, *(import_path(job) if file != job else ()))
    defences = defences_of(read, clip, noise or [])
    console = Console(stderr=True)
    found: list[Audit] = []
    with console.status("") as status:
        data_read = load_data(read, str(job), lambda what: status.update(f"reading {escape(what)}"))

        def told(done: int, of: int) -> None:
            status.update(f"training {len(found) + 1} of {len(defences)}: round {done:,} of {of:,}")

        for audit in audit_labels(read, data_read, defences, silo=silo, told=told):
            found.append(audit)
            if json:
                typer.echo(json_.dumps(audit.as_dict()))
    if not json:
        Console().print(_table(found, read.labels.sharing or ""), highlight=False)


def _table(found: list["Audit"], sharing: str) -> "Table":
    from rich.table import Table

    one, rounds = found[0], max(audit.rounds for audit in found)
    table = Table(
        title=f"Labels of {one.samples:,} samples as silo '{one.silo}' can tell them: {sharing}, {rounds:,} rounds",
        title_justify="left",
        caption="AUROC by norm, direction and value of what it is told: 0.5 is a guess, 1 is certainty",
        caption_justify="left",
    )
    for name in ("clip", "noise", f"test {one.metric}", "from the first answer", "from all answers"):
        table.add_column(name, justify="right")
    for audit in found:
        table.add_row(
            "–" if audit.clip is None else f"{audit.clip:g}",
            f"{audit.noise:g}" if audit.noise else "–",
            ("diverged" if audit.rounds < rounds else "–") if audit.test is None else f"{audit.test:.4f}",
            *(f"{leak.norm:.3f}  {leak.direction:.3f}  {leak.value:.3f}" for leak in (audit.first, audit.every)),
        )
    return table
