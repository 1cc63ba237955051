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
from tdcd.deployment.clients import Clients, Question
from tdcd.deployment.messages import Message
from tdcd.deployment.party import Party
from tdcd.deployment.peers import Peers
from tdcd.runs.store import Checkpoint, RunDirectory

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
    answer, ask, send, save = Party.answer, Clients.ask, Peers.send, RunDirectory.save

    def stopping_answer(party: Party, question: Message) -> Message:
        stop_at(question.kind)
        return answer(party, question)

    async def stopping_ask(clients: Clients, questions: Mapping[str, Question], *more: Any) -> Any:
        kinds = {question.message.kind for question in questions.values()}
        for kind in kinds:
            await astop_at(f"ask {kind}")
        return await ask(clients, questions, *more)

    async def stopping_send(peers: Peers, silo: str, message: Message) -> None:
        await astop_at(f"send {message.kind}")
        await send(peers, silo, message)

    def stopping_save(directory: RunDirectory, checkpoint: Checkpoint) -> None:
        stop_at("save")
        stop_at(f"save {checkpoint.round}")
        save(directory, checkpoint)

    setattr(Party, "answer", stopping_answer)  # noqa: B010
    setattr(Clients, "ask", stopping_ask)  # noqa: B010
    setattr(Peers, "send", stopping_send)  # noqa: B010
    setattr(RunDirectory, "save", stopping_save)  # noqa: B010


if __name__ == "__main__":
    patch()
    main()
