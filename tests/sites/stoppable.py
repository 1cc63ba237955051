"""``tdcd``, but it stops and waits to be killed where a file says so: ``python stoppable.py FOLDER hub job.toml …``.

FOLDER/SITE:STAGE arms a stage of a site; FOLDER/SITE:STAGE.reached appears when it is there. It goes on when the first
file is gone.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tdcd.cli.main import main
from tdcd.runs.store import Checkpoint, RunDirectory
from tdcd.sites.client.session import Session
from tdcd.sites.hub.clients import Clients, Request
from tdcd.sites.hub.peers import Peers
from tdcd.sites.messages.frames import Message
from tdcd.sites.messages.packing import kind_of

FOLDER = Path(sys.argv.pop(1))
OPTIONS = dict(zip(sys.argv, sys.argv[1:], strict=False))
SITE = "-".join(name for name in (OPTIONS["--silo"], OPTIONS.get("--client")) if name)


def armed(stage: str) -> Path | None:
    file = FOLDER / f"{SITE}:{stage}"
    if not file.exists():
        return None
    file.with_name(f"{file.name}.reached").touch()
    return file


def stop_at(stage: str) -> None:
    file = armed(stage)
    while file and file.exists():
        time.sleep(0.02)


async def astop_at(stage: str) -> None:
    file = armed(stage)
    while file and file.exists():
        await asyncio.sleep(0.02)


def patch() -> None:
    reply, ask, send, save = Session.reply, Clients.ask, Peers.send, RunDirectory.save

    def stopping_reply(session: Session, request: Message) -> object:
        stop_at(request.kind)
        return reply(session, request)

    async def stopping_ask(clients: Clients, requests: Mapping[str, Request[Any]], *more: Any) -> Any:
        for kind in {kind_of(request.message) for request in requests.values()}:
            await astop_at(f"ask {kind}")
        return await ask(clients, requests, *more)

    async def stopping_send(peers: Peers, silo: str, message: object, *more: Any) -> None:
        await astop_at(f"send {kind_of(message)}")
        await send(peers, silo, message, *more)

    def stopping_save(directory: RunDirectory, checkpoint: Checkpoint) -> None:
        stop_at("save")
        stop_at(f"save {checkpoint.round}")
        save(directory, checkpoint)

    setattr(Session, "reply", stopping_reply)  # noqa: B010
    setattr(Clients, "ask", stopping_ask)  # noqa: B010
    setattr(Peers, "send", stopping_send)  # noqa: B010
    setattr(RunDirectory, "save", stopping_save)  # noqa: B010


if __name__ == "__main__":
    patch()
    main()
