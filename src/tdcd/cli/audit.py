"""``tdcd audit``: what a training gives away."""

import json as json_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.imports import import_path, importable
from tdcd.errors import RunError

if TYPE_CHECKING:
    from rich.table import Table

    from tdcd.experiments.audit import Audit

app = typer.Typer(help="What a training gives away.", no_args_is_help=True)

EXAMPLES = """Examples:

tdcd audit labels runs/loans-20260101-120000  [dim]# how well can the insurer infer the bank's labels?[/dim]

tdcd audit labels loans.toml --clip 0.5 --noise 1 --noise 4  [dim]# and what do defences cost?[/dim]

tdcd audit labels digits --set labels.silo=left --set labels.sharing=exact
"""


@app.callback()
def _several() -> None:
    pass


@app.command("labels", epilog=EXAMPLES)
def labels(
    job: Annotated[Path, typer.Argument(help="A job file, the name of an embedded job, or a run directory.")],
    clip: Annotated[
        float | None, typer.Option("--clip", help="A defence: the largest norm of a sample's logit gradient.")
    ] = None,
    noise: Annotated[
        list[float] | None,
        typer.Option("--noise", help="A defence: noise of this deviation, in units of --clip; may be repeated."),
    ] = None,
    silo: Annotated[str | None, typer.Option("--silo", help="Who listens; default: the first without labels.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", "-R", help="Train for so many rounds instead of the job's.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the job file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Train a job once more, and report how well a silo without labels could infer them from its logit gradients."""
    from rich.text import Text

    from tdcd.cli.terminal import terminal
    from tdcd.experiments.audit import audit_labels, privatizers_of
    from tdcd.jobs.data import load_data
    from tdcd.jobs.load import load_job
    from tdcd.runs.layout import JOB, holds_run
    from tdcd.runs.reader import read_run
    from tdcd.strict import parse_setting

    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    named = {"data.directory": str(data) if data else None, "training.rounds": rounds}
    overrides |= {key: value for key, value in named.items() if value is not None}
    file = job / JOB if holds_run(job) else job
    if file != job and read_run(job).federation.peers:
        raise RunError(f"{job}: the run of one hub, which has no labels to audit with; audit the job as a simulation")
    read = load_job(file, overrides)
    importable(*(import_path(job) if file != job else [file.parent]), Path())
    privatizers = privatizers_of(read, clip, noise or [])
    console = terminal(stderr=True)
    parts: list[Audit] = []
    with console.status("") as status:
        data_read = load_data(read, str(job), lambda what: status.update(Text(f"reading {what}")))

        def on_progress(done: int, of: int) -> None:
            status.update(f"training {len(parts) + 1} of {len(privatizers)}: round {done:,} of {of:,}")

        for audit in audit_labels(read, data_read, privatizers, silo=silo, on_progress=on_progress):
            parts.append(audit)
            if json:
                typer.echo(json_.dumps(audit.as_dict()))
    if not json:
        terminal().print(_table(parts, read.labels.sharing or ""), highlight=False)


def _table(found: list["Audit"], sharing: str) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    one, rounds = found[0], max(audit.rounds for audit in found)
    text = "AUROC of an attack by the first answer about a sample, or by all: 0.5 is a guess, at 1 every label is plain"
    if any(audit.diverged for audit in found):
        text += ". Where training diverged, try a smaller rate: --set training.rate=…"
    table = Table(
        title=f"Labels of {one.samples:,} samples as silo '{one.silo}' can tell them: {sharing}, {rounds:,} rounds",
        title_justify="left",
        caption=text,
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("clip", "noise", f"test\n{one.metric}"):
        table.add_column(name, justify="right")
    for when in ("first", "all"):
        for score in ("norm", "direction", "value"):
            table.add_column(f"{when}\n{score}", justify="right")
    for audit in found:
        leaks = [value for leak in (audit.first, audit.every) for value in (leak.norm, leak.direction, leak.value)]
        table.add_row(
            "–" if audit.clip is None else f"{audit.clip:g}",
            f"{audit.noise:g}" if audit.noise else "–",
            "diverged" if audit.diverged else "–" if audit.test is None else f"{audit.test:.4f}",
            *(f"{value:.3f}" for value in leaks),
        )
    return table
