"""``tdcd status``: how a hub is doing."""

import json as json_
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.site import Insecure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tdcd.sites.messages.calls import HubStatus

EXAMPLES = """Examples:

tdcd status hub.toml  [dim]# with the hub's own site file and certificate[/dim]

tdcd status client.toml  [dim]# from a client's site[/dim]

tdcd status hub.toml --watch 5
"""

SERVING = "serving"
"""The stage of a hub that answers questions about IDs."""


def command(
    site: Annotated[Path, typer.Argument(help="The site file of the hub, or of one of its clients.")],
    watch: Annotated[float | None, typer.Option("--watch", min=0.2, help="Refresh every N seconds.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    insecure: Insecure = False,
) -> None:
    """Ask a hub for its round, clients, speed, traffic and last error."""
    import time

    from rich.live import Live

    from tdcd.cli.terminal import terminal
    from tdcd.sites.status import ask

    reply = ask(site, insecure=insecure)
    if json:
        typer.echo(json_.dumps(_facts(reply)))
        return
    console = terminal()
    if watch is None:
        console.print(_shown(reply))
        return
    with Live(_shown(reply), console=console) as live:
        try:
            while True:
                time.sleep(watch)
                live.update(_shown(ask(site, insecure=insecure)))
        except KeyboardInterrupt:
            return


def _facts(reply: "HubStatus") -> dict[str, Any]:
    """Return all of it, with the evaluation as a table of its own."""
    record = asdict(reply)
    record["evaluation"] = json_.loads(reply.evaluation) if reply.evaluation else None
    return record


def _shown(reply: "HubStatus") -> "RenderableType":
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    speed = f"{reply.rounds_per_second:.2f} a second" if reply.rounds_per_second else ""
    for name, value in (
        ("hub", f"{reply.silo} · job {reply.job} · tdcd {reply.version}"),
        ("stage", reply.stage),
        ("round", f"{reply.round:,} of {reply.rounds:,}  {speed}"),
        ("sent, received", f"{reply.bytes_sent / 1e6:,.1f} MB, {reply.bytes_received / 1e6:,.1f} MB"),
        ("of these evaluations", f"{reply.evaluation_bytes / 1e6:,.1f} MB"),
        ("evaluation", _describe_evaluation(reply.evaluation)),
        *_describe_predictions(reply),
        ("last error", reply.last_error or "none"),
    ):
        head.add_row(Text(name, style="bold"), value)
    clients = Table(title="clients", title_justify="left")
    rows = "rows ready" if reply.stage == SERVING else "training rows"
    for column in ("client", "there", rows, "left out", "heard"):
        clients.add_column(column, justify="left" if column in ("client", "there") else "right")
    for client in reply.clients:
        heard = f"{client.seconds_since_seen:.0f} s ago" if client.seconds_since_seen >= 0 else "–"
        there = "yes" if client.present else "no"
        count = client.serves if reply.stage == SERVING else client.rows
        clients.add_row(client.name, there, f"{count:,}", str(client.left_out), heard)
    peers = Table(title="other hubs", title_justify="left")
    for column in ("silo", "address", "answers"):
        peers.add_column(column)
    for peer in reply.peers:
        peers.add_row(peer.silo, peer.address, "yes" if peer.present else "no")
    return Group(head, clients, peers)


def _describe_predictions(reply: "HubStatus") -> "list[tuple[str, str]]":
    if reply.stage != SERVING:
        return []
    text = f"{reply.predicted:,} IDs in {reply.prediction_requests:,} requests; {reply.prediction_errors:,} errors"
    return [("predictions", text)]


def _describe_evaluation(evaluation: str) -> str:
    if not evaluation:
        return "none yet"
    record = json_.loads(evaluation)
    parts = [
        f"{part} {', '.join(f'{name} {value:.4f}' for name, value in record[part].items())}"
        for part in ("train", "validation", "test")
        if part in record
    ]
    partial = [f"{there:,} of {every:,} {part} rows" for part, (there, every) in record["partial"].items()]
    absent = f"; clients were away: measured on {', '.join(partial)}" if partial else ""
    return f"after round {record['round']}: {'; '.join(parts)}{absent}"
