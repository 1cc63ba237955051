"""``tdcd certs``: a silo's certificates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

EXAMPLES = """Examples:

tdcd certs loans.toml --silo bank  [dim]# to certs/bank; give certs/bank/ca.pem to the other silos' hubs[/dim]

tdcd certs loans.toml --silo bank --renew  [dim]# new certificates of the hub and its clients, same CA[/dim]

tdcd certs loans.toml --silo bank --request north  [dim]# at a client: its key, and a request to sign[/dim]

tdcd certs loans.toml --silo bank --sign client-north.csr  [dim]# where the CA is, if you have no PKI[/dim]

tdcd certs loans.toml --silo bank --check hub.toml  [dim]# are a site's certificates in order, and until when?[/dim]
"""


LONGEST = 36500
"""Days: no certificate is to outlive a century, and dates end with the year 9999."""


def command(
    job: Annotated[Path, typer.Argument(help="The job file: it names the silo's clients.")],
    silo: Annotated[str, typer.Option("--silo", help="Whose certificates.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The directory; default: certs/SILO.")] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=LONGEST, help="How long those of hub and clients are valid.")
    ] = 365,
    ca_days: Annotated[int, typer.Option("--ca-days", min=1, max=LONGEST, help="How long the CA is valid.")] = 3650,
    renew: Annotated[bool, typer.Option("--renew", help="Issue them again, all but the CA.")] = False,
    request: Annotated[
        str | None, typer.Option("--request", help="Make a key and a signing request: of this client, or of the 'hub'.")
    ] = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="Sign a request with the silo's CA.")] = None,
    check: Annotated[
        Path | None, typer.Option("--check", help="Check the certificates that a site file names.")
    ] = None,
) -> None:
    """Make a silo's CA, and the certificates of its hub and clients; what is there already is kept."""
    from tdcd.errors import JobError
    from tdcd.jobs.load import load_job
    from tdcd.sites.participants import check_silo, read_set, silos_of

    if sum(option is not None for option in (request, sign, check)) + renew > 1:
        raise JobError("--renew, --request, --sign and --check: choose one of them")
    read = load_job(job)
    names = silos_of(read, read_set(read))
    check_silo(silo, names)
    folder = out or Path("certs") / silo
    if check is not None:
        _check(check, silo)
    elif request is not None:
        _request(folder, silo, request, names[silo])
    elif sign is not None:
        _sign(folder, silo, sign, names[silo], days)
    else:
        _make(folder, silo, names[silo], days, ca_days, renew=renew)


def _make(folder: Path, silo: str, clients: "Iterable[str]", days: int, ca_days: int, *, renew: bool) -> None:
    from tdcd.sites.security.identity import certify

    authority, pairs, made = certify(folder, silo, clients, days=days, ca_days=ca_days, renew=renew)
    files = {"the CA": authority.certificate, **{str(who): pair.certificate for who, pair in pairs.items()}}
    _show(f"Certificates of silo '{silo}' in {folder}", files, dict.fromkeys(made, "new"))
    _say(
        f"Keep {authority.key} where nobody else gets at it: who has it can make certificates of this silo.",
        f"Give {authority.certificate} to the hubs of the other silos.",
        f"Bring each client {authority.certificate.name}, its own .pem and its own .key, and nothing else.",
    )


def _request(folder: Path, silo: str, holder: str, clients: "Collection[str]") -> None:
    from tdcd.errors import JobError, nearest
    from tdcd.sites.security.identity import Identity
    from tdcd.sites.security.signing import HUB, make_request

    if holder != HUB and holder not in clients:
        raise JobError(f"--request: silo '{silo}' has no client '{holder}'{nearest(holder, [HUB, *clients])}")
    identity = Identity(silo, None if holder == HUB else holder)
    made = make_request(folder, identity)
    _say(
        f"{made}: to be signed by the silo's CA. The key beside it stays here.",
        f"The certificate must keep the names in it ({identity.uri}); store it as {made.with_suffix('.pem')}, with the "
        "CAs that signed it below it, if there are several.",
    )


def _sign(folder: Path, silo: str, request: Path, clients: "Collection[str]", days: int) -> None:
    from tdcd.sites.security.signing import sign_request

    identity, made = sign_request(folder, silo, request, clients, days)
    _show(f"Signed by the CA of silo '{silo}'", {str(identity): made}, {})
    _say(f"Bring {made} and {folder / 'ca.pem'} to whoever made the request.")


def _check(site: Path, silo: str) -> None:
    from tdcd.sites.security.signing import check_site

    identity, files = check_site(site, silo)
    _show(f"The certificates of {identity}, named in {site}", files, {})
    _say("They are in order.")


def _show(title: str, files: "Mapping[str, Path]", notes: "Mapping[Path, str]") -> None:
    """Print a table of certificates."""
    from rich.table import Table

    from tdcd.cli.terminal import terminal
    from tdcd.sites.security.identity import expires, read_certificates

    table = Table(title=title, title_justify="left")
    for column in ("whose", "file", "valid until", ""):
        table.add_column(column)
    for who, path in files.items():
        for certificate in read_certificates(path):
            note = expires(certificate) or notes.get(path, "")
            table.add_row(who, path.name, f"{certificate.not_valid_after_utc:%Y-%m-%d}", note)
    terminal().print(table)


def _say(*lines: str) -> None:
    from tdcd.cli.terminal import terminal

    console = terminal()
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
