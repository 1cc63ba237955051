"""A site's own file: addresses, certificates, data. It stays where it is; nobody else needs to see it."""

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from tdcd.compute import ComputeName
from tdcd.data.tables.settings import TableFormat
from tdcd.errors import DeploymentError
from tdcd.files import read_settings
from tdcd.strict import Strict, problems
from tdcd.training.settings import Count

S = TypeVar("S", bound=Strict)


def _address(value: Any) -> Any:
    host, _, port = str(value).rpartition(":")
    if not re.fullmatch(r"[^/\s]+", host) or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f'is a host and a port, such as "hub.bank.example:7100" (is {value!r})')
    return value


Address = Annotated[str, BeforeValidator(_address)]


class ClientTLS(Strict):
    """Whom a client trusts, and what it shows."""

    ca: str
    """The certificate of the silo's own CA."""
    certificate: str
    key: str


class HubTLS(ClientTLS):
    """Whom a hub trusts, and what it shows."""

    peers: dict[str, str] = {}
    """The certificates of the other silos' CAs, by silo."""


class Site(Strict):
    """What the file of any site may say."""

    imports: list[str] = []
    """Python modules that the job's models may be imported from: others' jobs run no other code here."""
    import_from: list[str] = []
    """Folders where these modules are, where they are not installed."""


class HubSite(Site):
    """The file of a hub's site."""

    listen: Address = "0.0.0.0:7100"
    """Where the hub answers."""
    peers: dict[str, Address] = {}
    """Where the other hubs answer, by silo."""
    tls: HubTLS | None = None
    """Certificates; only ``--insecure`` does without."""
    run: str | None = None
    """The run directory; default: runs/JOB-SILO."""
    data: str | None = None
    """For a published data set: where its files are."""
    metrics: Address | None = None
    """Where Prometheus may ask for figures; default: nowhere."""
    send_model: bool = False
    """Whether this silo's weights and preparation may go to the hub that the job names in deployment.assemble."""


class ClientSite(Site):
    """The file of a client's site."""

    hub: Address = "127.0.0.1:7100"
    """Where its hub answers."""
    tls: ClientTLS | None = None
    """Certificates; only ``--insecure`` does without."""
    data: str | None = None
    """Its table; for a published data set: where its files are."""
    serve: str | None = None
    """The table of those to predict, once the training is finished; default: ``data``. May change at any time."""
    table: TableFormat = TableFormat()
    """How its table is written, where that is not as the job says."""
    compute: ComputeName = "auto"
    """How to compute."""
    workers: Count | None = None
    """Threads; default: one for each core."""
    device: Annotated[str, Field(min_length=1)] = "cpu"
    """Where to compute: "cpu", or "cuda", "cuda:1" … for a graphics card."""


def is_client(path: Path) -> bool:
    """Tell whether a site file is a client's: it names its hub."""
    try:
        return "hub" in tomllib.loads(read_settings(path, DeploymentError))
    except (OSError, DeploymentError, tomllib.TOMLDecodeError):
        return False  # whoever reads it tells what is wrong


def read_site(path: Path, kind: type[S]) -> S:
    """Read a site file; paths in it are relative to it.

    Raises:
        DeploymentError: it is missing or wrong; names every problem by its key.
    """
    try:
        table = tomllib.loads(read_settings(path, DeploymentError))
    except FileNotFoundError as error:
        raise DeploymentError(
            f"{path}: no such site file; name it with --site, or make one: docs/deployment.md"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise DeploymentError(f"{path}: not TOML: {error}") from error
    if what := _mistaken(table, kind):
        wanted = "hub" if kind is HubSite else "client"
        raise DeploymentError(f"{path}: this is {what}, not the site file of a {wanted}")
    _resolve(table, path.parent)
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise DeploymentError("\n".join(f"{path}: {problem}" for problem in problems(error))) from error


def _mistaken(table: Mapping[str, Any], kind: type[Strict]) -> str | None:
    """Tell what a file is that was named instead of another: keys of its own that are unknown would not say so."""
    if {"model", "training"} & table.keys():
        return "a job file"
    if kind is HubSite and "hub" in table:
        return "the site file of a client"
    if kind is ClientSite and {"listen", "peers"} & table.keys():
        return "the site file of a hub"
    return None


def check_loopback(address: str) -> None:
    """Check that an address is on this machine: only there may a connection be without TLS.

    Raises:
        DeploymentError: it is not.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise DeploymentError(
            f"--insecure: {address} is not on this machine; without TLS only 127.0.0.1, ::1 and localhost may be used. "
            "Make certificates with: tdcd certs"
        )


def _resolve(table: dict[str, Any], beside: Path) -> None:
    """Make paths absolute."""

    def absolute(path: str) -> str:
        return str((beside / Path(path).expanduser()).resolve())

    tls = table.get("tls")
    for where, keys in ((table, ("run", "data", "serve")), (tls, ("ca", "certificate", "key"))):
        if isinstance(where, dict):
            for key in keys:
                if isinstance(where.get(key), str) and where[key]:
                    where[key] = absolute(where[key])
    if isinstance(folders := table.get("import_from"), list):
        table["import_from"] = [absolute(folder) if isinstance(folder, str) else folder for folder in folders]
    peers = tls.get("peers") if isinstance(tls, dict) else None
    if isinstance(peers, dict):
        for silo, file in peers.items():
            if isinstance(file, str):
                peers[silo] = absolute(file)
