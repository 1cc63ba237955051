"""``tdcd hub``, but it sends one of its clients sums of embeddings that do not fit: ``python hostile_hub.py hub …``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tdcd.cli.main import main
from tdcd.sites.hub.link import Link
from tdcd.sites.messages.frames import Message

WRONG: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda rows: rows[:, :0],
    lambda rows: rows[:, :-1],
    lambda rows: torch.cat([rows, rows], 1),
    lambda rows: rows[:1],
    lambda rows: rows.double(),
    lambda rows: rows.half(),
    lambda rows: rows.flatten(),
)
left = list(WRONG)


def hostile(message: Message) -> Message:
    if message.kind != "descend" or not left:
        return message
    wrong = left.pop(0)
    tensors: dict[str, Tensor] = {name: wrong(tensor) for name, tensor in message.tensors.items()}
    return replace(message, tensors=tensors)


def patch() -> None:
    asked = Link.asked

    def changed(link: Link, message: Message, *more: Any) -> Any:
        return asked(link, hostile(message) if link.name == "silo-1-1" else message, *more)

    setattr(Link, "asked", changed)  # noqa: B010


if __name__ == "__main__":
    patch()
    main()
