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
    renew: Annotated[bool, typer.Option("--renew", help="Make those of hub and clients anew, by the same CA.")] = False,
) -> None:
    """Make a silo's CA, and the certificates of its hub and clients; what is there already is kept."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from tdcd.deployment.identity import Identity, Pair, expires, issue, make_authority, read_certificate
    from tdcd.deployment.run import silos_of
    from tdcd.errors import JobError, nearest
    from tdcd.experiments.job import load_job

    names = silos_of(load_job(job))
    if silo not in names:
        raise JobError(f"the job has no silo '{silo}'{nearest(silo, names)}")
    folder = out or Path("certs") / silo
    authority = Pair(folder / "ca.pem", folder / "ca.key")
    made = []
    if not authority.certificate.exists():
        make_authority(folder, silo, ca_days)
        made.append(authority.certificate)
    pairs = {}
    for identity in (Identity(silo), *(Identity(silo, client) for client in names[silo])):
        pair = Pair(folder / f"{identity.stem}.pem", folder / f"{identity.stem}.key")
        if renew or not pair.certificate.exists():
            issue(authority, identity, folder, days)
            made.append(pair.certificate)
        pairs[identity] = pair
    table = Table(title=f"Certificates of silo '{silo}' in {escape(str(folder))}", title_justify="left")
    for column in ("whose", "file", "valid until", ""):
        table.add_column(column)
    for who, path in (("the CA", authority.certificate), *((str(i), p.certificate) for i, p in pairs.items())):
        certificate = read_certificate(path)
        note = expires(certificate) or ("new" if path in made else "")
        table.add_row(who, escape(path.name), f"{certificate.not_valid_after_utc:%Y-%m-%d}", note)
    console = Console()
    console.print(table)
    for line in (
        f"Keep {authority.key} where nobody else gets at it: who has it can make certificates of this silo.",
        f"Give {authority.certificate} to the hubs of the other silos, and to your own clients.",
        "Bring each client its own .pem and .key, and nothing else.",
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)
