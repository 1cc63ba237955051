"""``tdcd align``: find the IDs that all silos have, once for many trainings."""

import json as json_
import os
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

tdcd align loans.toml  [dim]# to the file that the job names as data.alignment, or loans.alignment.parquet[/dim]

tdcd align loans.toml --out customers.alignment.parquet
"""


def command(
    job: Annotated[Path, typer.Argument(help="A job over tables.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write it; default: data.alignment, or NAME.alignment.parquet."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the job file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the IDs that all silos have and write them to a file that trainings reuse."""
    from rich.table import Table
    from rich.text import Text

    from tdcd.cli.terminal import terminal
    from tdcd.jobs.load import load_job
    from tdcd.jobs.schema import TableJob
    from tdcd.jobs.tables import OpenTables
    from tdcd.strict import parse_setting

    read = load_job(job, dict(parse_setting(text) for text in settings or []))
    console = terminal(stderr=True)
    with console.status("") as status:
        opened = OpenTables.open(read, lambda what: status.update(Text(f"reading {what}")))
        alignment, _ = opened.align()
    named = read.data.alignment if isinstance(read, TableJob) else None
    path = out or (Path(named) if named else job.with_name(f"{read.name}.alignment.parquet"))
    if path.exists():
        _refuse_other_files(path)
    alignment.save(path)
    common = len(alignment.ids)
    if json:
        shares = {
            silo: {client: {"rows": share.rows, "common": share.common} for client, share in clients.items()}
            for silo, clients in alignment.shares.items()
        }
        record = {"file": str(path), "common": common, "fingerprint": alignment.fingerprint, "silos": shares}
        typer.echo(json_.dumps(record))
        return
    table = Table(title=f"{common:,} IDs are in all silos", title_justify="left")
    table.add_column("silo")
    table.add_column("client")
    for name in ("rows", "in common", "lost"):
        table.add_column(name, justify="right")
    for silo, clients in alignment.shares.items():
        total = sum(share.rows for share in clients.values())
        table.add_row(silo, "all", f"{total:,}", f"{common:,}", f"{total - common:,}", style="bold")
        for client, share in clients.items() if len(clients) > 1 else ():
            lost = share.rows - share.common
            table.add_row("", client, f"{share.rows:,}", f"{share.common:,}", f"{lost:,}")
    console = terminal()
    console.print(table)
    console.print(f"Fingerprint: {alignment.fingerprint}", highlight=False)
    console.print(f"Written to:  {path}", highlight=False, soft_wrap=True, markup=False)
    if named is None or Path(named) != path.resolve():
        beside = os.path.relpath(path, job.parent)
        advice = f'To train with it, set in the job: [data] alignment = "{beside}"'
        console.print(advice, highlight=False, soft_wrap=True, markup=False)


def _refuse_other_files(path: Path) -> None:
    """Replace an older alignment, but nothing else."""
    from tdcd.data.tables.alignment import Alignment
    from tdcd.errors import DataError

    try:
        Alignment.load(path)
    except DataError as error:
        raise DataError(f"{path} exists already, and is no alignment; choose another with --out") from error
