"""``tdcd client``: run a client at its site."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.imports import importable
from tdcd.cli.site import Insecure, Log, Serve, log_style, running

EXAMPLES = """Examples:

tdcd client loans.toml --silo bank --client north  [dim]# with the site file client.toml[/dim]

tdcd client loans.toml --silo bank --client north --site /etc/tdcd/north.toml --log json
"""


def command(
    job: Annotated[Path, typer.Argument(help="The job file, the same at all sites.")],
    silo: Annotated[str, typer.Option("--silo", help="The silo it belongs to.")],
    client: Annotated[str, typer.Option("--client", help="Its name in the job.")],
    site: Annotated[Path, typer.Option("--site", help="The site's own file.")] = Path("client.toml"),
    log: Log = "human",
    serve: Serve = False,
    insecure: Insecure = False,
) -> None:
    """Run a client until its hub says that the training is over; when the hub is away, it waits.

    With --serve it stays, and answers for the table that its site file names: serve = "new-north.csv", or data.
    """
    from tdcd.jobs.load import load_job
    from tdcd.sites.client.main import run_client
    from tdcd.sites.site_file import ClientSite, read_site

    style = log_style(log)
    importable(job.parent)
    read, own = load_job(job), read_site(site, ClientSite)
    with running(f"{silo}/{client}", style, "stopped") as logger:
        run_client(read, silo, client, own, insecure=insecure, serve=serve, log=logger.info)
