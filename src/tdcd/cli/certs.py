"""``tdcd certs``: a silo's certificates."""

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """Examples:

tdcd certs loans.toml --silo bank  [dim]# to certs/bank; give certs/bank/ca.pem to the other silos' hubs[/dim]

tdcd certs loans.toml --silo bank --renew  [dim]# new certificates of the hub and its clients, same CA[/dim]
"""


def command(
    job: Annotated[Path, typer.Argument(help="The job file: it names the silo's clients.")],
    silo: Annotated[str, typer.Option("--silo", help="Whose certificates.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The directory; default: certs/SILO.")] = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How long those of hub and clients are valid.")] = 365,
    ca_days: Annotated[int, typer.Option("--ca-days", min=1, help="How long the CA is valid.")] = 3650,
    renew: Annotated[bool, typer.Option("--renew", help="Issue them again, all but the CA.")] = False,
) -> None:
    """Make a silo's CA, and the certificates of its hub and clients; what is there already is kept."""
    from rich.table import Table

    from tdcd.cli.terminal import terminal
    from tdcd.jobs.load import load_job
    from tdcd.sites.participants import check_silo, read_set, silos_of
    from tdcd.sites.security.identity import certify, expires, read_certificate

    read = load_job(job)
    names = silos_of(read, read_set(read))
    check_silo(silo, names)
    folder = out or Path("certs") / silo
    authority, pairs, made = certify(folder, silo, names[silo], days=days, ca_days=ca_days, renew=renew)
    table = Table(title=f"Certificates of silo '{silo}' in {folder}", title_justify="left")
    for column in ("whose", "file", "valid until", ""):
        table.add_column(column)
    for who, path in (("the CA", authority.certificate), *((str(i), p.certificate) for i, p in pairs.items())):
        certificate = read_certificate(path)
        note = expires(certificate) or ("new" if path in made else "")
        table.add_row(who, path.name, f"{certificate.not_valid_after_utc:%Y-%m-%d}", note)
    console = terminal()
    console.print(table)
    for line in (
        f"Keep {authority.key} where nobody else gets at it: who has it can make certificates of this silo.",
        f"Give {authority.certificate} to the hubs of the other silos.",
        f"Bring each client {authority.certificate.name}, its own .pem and its own .key, and nothing else.",
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
