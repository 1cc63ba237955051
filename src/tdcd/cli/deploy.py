"""``tdcd deploy``: a whole federation as separate processes on one machine."""

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from tdcd.cli.imports import importable
from tdcd.cli.site import Insecure, Serve

EXAMPLES = """Examples:

tdcd deploy digits --local  [dim]# every hub and client a process, with certificates made on the spot[/dim]

tdcd deploy loans.toml --local --out deployments/loans --set training.rounds=50

tdcd deploy loans.toml --local --serve --new new-tables  [dim]# trains, then serves: new-tables/bank/north.csv …[/dim]
"""


def command(
    job: Annotated[Path, typer.Argument(help="The job file, or the name of an embedded job.")],
    local: Annotated[bool, typer.Option("--local", help="Start all of it on this machine.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where its files go; default: deployments/NAME.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the job file.")
    ] = None,
    serve: Serve = False,
    new: Annotated[
        Path | None,
        typer.Option("--new", metavar="DIR", help="With --serve: clients' tables for predictions, SILO/CLIENT.csv."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Logs go to files only.")] = False,
    insecure: Insecure = False,
) -> None:
    """Start every hub and every client of a job as a process of its own; started again, it goes on.

    With --serve they stay when the training is finished, until Ctrl-C, and answer tdcd predict --site.
    """
    from tdcd.errors import LEARNED_NOTHING, JobError
    from tdcd.jobs.load import load_job
    from tdcd.sites.local_deployment import LocalFederation
    from tdcd.strict import parse_setting

    if not local:
        raise JobError(
            "at real sites every organisation starts its own, by tdcd hub and tdcd client. To start "
            "all of them on this machine, say --local"
        )
    if new and not serve:
        raise JobError("--new goes with --serve: tables for predictions are of no use to a training")
    importable(job.parent, Path())
    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    overrides |= {"data.directory": str(data.resolve())} if data else {}
    read = load_job(job, overrides)
    folder = out or Path("deployments") / read.name
    federation = LocalFederation.laid_out(read, folder, insecure=insecure, serve=serve, new=new)
    typer.echo(f"{len(federation.sites)} processes; their files are in {folder}")
    try:
        federation.start(quiet=quiet)
        code = federation.wait(typer.echo)
    except KeyboardInterrupt:
        federation.stop()
        typer.echo("Stopped. Run the command again to go on.")
        sys.exit(130)
    if code not in (0, LEARNED_NOTHING):
        logs = f"{folder}/*/*.log" if quiet else "the log above"
        typer.echo(f"Deployment failed: see {logs}. Run the command again to go on.")
        sys.exit(code)
    for silo, run in federation.runs.items():
        typer.echo(f"{silo}: tdcd report {quote(str(run))}")
    sys.exit(code)
