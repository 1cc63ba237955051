"""Hostile messages, made of honest ones: what a hub, a client or another organisation's hub might send.

An honest federation is recorded first. Every field of every message is then altered in every way that makes sense for
its type, and the altered message is handed to whom it is meant for. What counts is the same on all links: it is refused
with a reason, before anything is computed with it, or it does no harm: what honest messages bring afterwards is the
same, bit for bit.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tdcd.core.state import SiloState
from tdcd.engines.base import Measurement, Verdict
from tdcd.errors import TdcdError
from tdcd.jobs.schema import Job
from tdcd.sites.client.session import Session
from tdcd.sites.messages.frames import Message
from tdcd.sites.messages.packing import pack
from tdcd.sites.security.identity import Identity

from .memory import Federation, run_virtually

UNFORESEEN = re.compile(r"cannot be done: \w+: ")
"""How a client words an error that nobody expected: it was not validated."""
REFUSED, HARMLESS = "refused", "harmless"


@dataclass(frozen=True)
class Outcome:
    """How an attack ended."""

    name: str
    how: str
    """REFUSED, HARMLESS, or what went wrong."""
    reason: str = ""

    @property
    def good(self) -> bool:
        return self.how == HARMLESS or (
            self.how == REFUSED and bool(self.reason) and not UNFORESEEN.search(self.reason)
        )


# Alterations


def alter_tensor(value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor that is not what it should be, in many ways."""
    other = torch.float64 if value.dtype != torch.float64 else torch.int32
    yield "of another type", value.to(other)
    yield "of bytes", value.to(torch.uint8)
    yield "with a dimension more", value.unsqueeze(0)
    yield "of nothing", value.new_empty(0)
    if value.ndim:
        yield "twice", torch.cat([value, value])
        yield "with a row more", torch.cat([value, value[:1] if len(value) else value.new_zeros(1, *value.shape[1:])])
        if len(value):
            yield "without its last row", value[:-1]
            yield "with its first row only", value[:1]
    if value.ndim > 1:
        yield "of width 0", value[:, :0]
        yield "a column wider", torch.cat([value, value[:, :1]], 1)
        yield "transposed", value.transpose(0, 1).contiguous()
        yield "flat", value.flatten()
    if value.numel():
        extremes: tuple[float, ...] = (float("nan"), float("inf"), 1e30) if value.is_floating_point() else ()
        if value.dtype == torch.int64:
            extremes = (-1, 2**62, -(2**62))
        elif value.dtype in (torch.int8, torch.uint8):
            extremes = (3, 100)
        for number in extremes:
            changed = value.clone()
            changed.view(-1)[0] = number
            yield f"with {number:g}", changed
    if value.ndim == 1 and len(value) > 1:
        yield "backwards", value.flip(0)
        yield "of its first number", value[:1].expand(len(value)).contiguous()


def alter_fact(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a small fact that is not what it should be."""
    yield "null", None
    yield "a list in a list", [[value]]
    yield "an object", {"x": value}
    if isinstance(value, bool):
        yield "a number", 1
        yield "a text", "yes"
    elif isinstance(value, int):
        for number in (-1, 0, value + 1, 2**31, 2**63, 10**40):
            yield f"{number:.3g}", number
        yield "true", True
        yield "a fraction", value + 0.5
        yield "a text", str(value)
    elif isinstance(value, str):
        yield "empty", ""
        yield "another", value + "x"
        yield "of 100,000 letters", "x" * 100_000
        yield "a number", 7
    elif isinstance(value, list):
        yield "empty", []
        yield "twice", value + value
        yield "without its last", value[:-1]
        yield "of nulls", [None] * len(value)
        yield "of -1", [-1] * len(value)
        yield "of names", ["x"] * len(value)
        yield "of large numbers", [2**40] * len(value)
    elif isinstance(value, dict):
        yield "empty", {}
        yield "of another thing", {"x": 1}
        yield "deep", {"train": {"loss": [1e999, -1.0, float("nan")]}}
    elif isinstance(value, float):
        yield "a text", str(value)


def alterations(message: Message) -> Iterator[tuple[str, Message]]:
    """Yield hostile variants of an honest message, each with what is wrong."""
    kind = message.kind
    for name, value in message.facts.items():
        others = {key: fact for key, fact in message.facts.items() if key != name}
        yield f"'{kind}' without {name}", replace(message, facts=others)
        for how, fact in alter_fact(value):
            yield f"'{kind}' with {name} {how}", replace(message, facts=others | {name: fact})
    for name, tensor in message.tensors.items():
        rest = {key: one for key, one in message.tensors.items() if key != name}
        yield f"'{kind}' without {name}", replace(message, tensors=rest)
        for how, changed in alter_tensor(tensor):
            yield f"'{kind}' with {name} {how}", replace(message, tensors={**message.tensors, name: changed})
    yield f"'{kind}' with one fact more", replace(message, facts={**message.facts, "more": 1})
    yield f"'{kind}' with one tensor more", replace(message, tensors={**message.tensors, "more": torch.zeros(3)})
    yield f"'{kind}' under the name of another", replace(message, kind="step" if kind != "step" else "embed")
    yield f"'{kind}' under an unknown name", replace(message, kind="exec")
    for number in (0, message.stamp.round + 7, 2**63):
        if number != message.stamp.round:
            yield f"'{kind}' of round {number:.3g}", message.stamped(message.stamp._replace(round=number))


# A hostile hub


@dataclass
class Recorded:
    """An honest conversation of a client with its hub."""

    federation: Federation
    who: Identity
    requests: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)

    def replay(self) -> list[Message]:
        """Have the honest conversation again with the same client."""
        session = self.federation.sessions[self.who]
        return [copied(pack(session.reply(request), request.stamp)) for request in self.requests]


def copied(message: Message) -> Message:
    return replace(message, tensors={name: tensor.clone() for name, tensor in message.tensors.items()})


def judge(measured: Measurement) -> Verdict:
    return "better"


def record(job: Job, folder: Path, client: Identity, rounds: int = 1) -> Recorded:
    """Run a federation, and keep what one client is asked and replies."""
    recorded = Recorded(Federation(job, folder), client)

    def keep(who: Identity, request: Message, reply: Any) -> Any:
        if who == client:
            recorded.requests.append(request)
            recorded.replies.append(copied(pack(reply, request.stamp)))
        return reply

    recorded.federation.alter = keep

    async def go() -> None:
        await recorded.federation.start()
        blocks = await recorded.federation.rounds(rounds)
        hubs = recorded.federation.hubs
        await asyncio.gather(*(hub.evaluate(SiloState(blocks[silo]), judge) for silo, hub in hubs.items()))
        await recorded.federation.stop()

    run_virtually(go())
    return recorded


def same(one: list[Message], two: list[Message]) -> bool:
    """Tell whether two conversations are the same, bit for bit."""
    return len(one) == len(two) and all(
        a.kind == b.kind == "resumed"  # a client that has begun before is ready at once
        or (
            (a.kind, a.facts, a.tensors.keys()) == (b.kind, b.facts, b.tensors.keys())
            and all(_equal(a.kind, a.tensors[name], b.tensors[name]) for name in a.tensors)
        )
        for a, b in zip(one, two, strict=True)
    )


def _equal(kind: str, one: Tensor, two: Tensor) -> bool:
    if kind == "survey":  # categories come in any order
        return bool(json.loads(one.numpy().tobytes()) == json.loads(two.numpy().tobytes()))
    return torch.equal(one, two)


def hostile_hub(recorded: Recorded, title: str, every: int = 1) -> Iterator[Outcome]:
    """Hand a client every variant of every request in the midst of an honest conversation; see that it goes on."""
    who, session = recorded.who, recorded.federation.sessions[recorded.who]
    for place, honest in enumerate(recorded.requests):
        if any(honest.kind == earlier.kind for earlier in recorded.requests[:place]):
            continue
        for number, (name, message) in enumerate(alterations(honest)):
            if number % every:
                continue
            for request in recorded.requests[:place]:
                session.reply(request)
            yield _hand_over(session, message, recorded, f"{title}: {name}")
        fresh = f"{title}: '{honest.kind}' before anything else"
        recorded.federation.add_session(who)
        session = recorded.federation.sessions[who]
        yield _hand_over(session, honest, recorded, fresh)


def _hand_over(session: Session, message: Message, recorded: Recorded, name: str) -> Outcome:
    reason = ""
    try:
        session.reply(message)
    except TdcdError as error:
        reason = str(error)
    except Exception as error:
        return Outcome(name, f"an unforeseen error: {type(error).__name__}: {error}")
    if not same(recorded.replay(), recorded.replies):
        return Outcome(name, "honest messages bring something else afterwards", reason)
    return Outcome(name, REFUSED if reason else HARMLESS, reason)


# A hostile client


def hostile_client(job: Job, recorded: Recorded, folder: Path, title: str, every: int = 1) -> Iterator[Outcome]:
    """Let a client reply every variant of every reply, in a federation each; see it left out, or nothing changed."""
    kinds: dict[str, tuple[str, Message]] = {}
    for request, reply in zip(recorded.requests, recorded.replies, strict=True):
        kinds.setdefault(reply.kind, (request.kind, reply))
    for asked, reply in kinds.values():
        for number, (name, message) in enumerate(alterations(reply)):
            if number % every == 0:
                yield _one_client(job, folder, recorded.who, asked, message, f"{title}: {name}")


def _one_client(job: Job, folder: Path, client: Identity, asked: str, altered: Message, name: str) -> Outcome:
    def alter(who: Identity, request: Message, reply: Any) -> Any:
        if who == client and request.kind == asked:
            return altered.stamped(request.stamp if altered.stamp.round <= 1 else altered.stamp)
        return reply

    federation = Federation(job, folder, alter=alter)

    async def go() -> str:
        await federation.start()
        blocks = await federation.rounds(1)
        hubs = federation.hubs
        await asyncio.gather(*(hub.evaluate(SiloState(blocks[silo]), judge) for silo, hub in hubs.items()))
        await federation.stop()
        return "the training goes on"

    how, reason = _ends(go)
    said = [line for line in federation.log if f"'{client.client}'" in line and "connected" not in line]
    if how == REFUSED and client.silo not in reason:
        return Outcome(name, f"nobody is named: {reason}")
    if said:
        return Outcome(name, REFUSED, said[0])
    return Outcome(name, how, reason)


def _ends(go: Callable[[], Any]) -> tuple[str, str]:
    try:
        run_virtually(go())
    except TdcdError as error:
        return REFUSED, str(error)
    except BaseExceptionGroup as group:
        return f"an unforeseen error: {group.exceptions[0]!r}", ""
    except Exception as error:
        return f"an unforeseen error: {type(error).__name__}: {error}", ""
    return HARMLESS, ""


# A hostile hub of another organisation


def hostile_peer(job: Job, folder: Path, silo: str, title: str, every: int = 1) -> Iterator[Outcome]:
    """Let a hub send every variant of every message to another; see that one refuse it and name it, or go on."""
    sent: dict[str, Message] = {}

    def keep(message: Message) -> Message:
        sent.setdefault(message.kind, message)
        return message

    how, reason = _one_peer(job, folder, silo, keep)
    assert (how, reason) == (HARMLESS, ""), (how, reason)
    for kind, honest in list(sent.items()):
        for number, (name, message) in enumerate(alterations(honest)):
            if number % every:
                continue
            used = [False]

            def once(real: Message, kind: str = kind, message: Message = message, used: list[bool] = used) -> Message:
                if used[0] or real.kind != kind:
                    return real
                used[0] = True
                return message.stamped(
                    real.stamp if message.stamp.round <= 1 else message.stamp._replace(job=real.stamp.job)
                )

            how, reason = _one_peer(job, folder, silo, once)
            if how == REFUSED and f"'{silo}'" not in reason:
                how = f"nobody is named: {reason}"
            yield Outcome(f"{title}: {name}", how, reason)


def _one_peer(job: Job, folder: Path, hostile_silo: str, alter: Callable[[Message], Message]) -> tuple[str, str]:
    federation = Federation(job, folder)
    federation.hub_deadline = 5.0

    async def go() -> None:
        await federation.start()
        hub = federation.hubs[hostile_silo]
        push = hub.context.peers._push

        async def hostile(peer: Any, message: Message, end: float, **more: Any) -> None:
            await push(peer, alter(message), end, **more)

        hub.context.peers._push = hostile  # type: ignore[method-assign]
        blocks = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}

        async def part(silo: str) -> None:
            one = federation.hubs[silo]
            state, _ = await one.run_round(SiloState(blocks[silo]), 1)
            await one.evaluate(state, judge)

        honest = [silo for silo in federation.hubs if silo != hostile_silo]
        other = asyncio.ensure_future(part(hostile_silo))
        ends = await asyncio.gather(*map(part, honest), return_exceptions=True)
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        await federation.stop()
        errors = [end for end in ends if isinstance(end, BaseException)]
        for error in errors:
            if not isinstance(error, TdcdError):
                raise error
        if errors:  # those that wait for a hub that waits name that one
            raise TdcdError("; ".join(map(str, errors)))

    return _ends(go)
