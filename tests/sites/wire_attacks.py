"""Messages whose bytes were changed at random, handed to every kind of receiver: none may crash, hang or grow."""

import asyncio
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from tdcd.errors import TdcdError
from tdcd.jobs.schema import Job
from tdcd.sites.hub.link import Link
from tdcd.sites.messages.calls import Hello
from tdcd.sites.messages.frames import Assembler, Frame, Message, frames
from tdcd.sites.messages.packing import KINDS
from tdcd.sites.security.identity import Identity
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.transport.memory import MemoryStream
from tdcd.sites.transport.wire import tdcd_pb2 as wire
from tdcd.sites.transport.wire.frames import from_wire, to_wire

from .attacks import Recorded, record
from .memory import Federation, run_virtually

BATCH = 500
"""Messages between two looks at the clock."""
PATIENCE = 60
"""Seconds that so many may take, on a busy machine."""
INTERESTING = (0, 1, 0x7F, 0x80, 0xFF)
NUMBER = re.compile(r"-?\d+")
NUMBERS = (
    "-1",
    "0",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "2147483648",
    "18446744073709551616",
    "9" * 400,
    "1.5",
    "true",
    "[]",
)
LETTERS = ('"', "{", "}", "[", "]", ",", ":", "\\", "\0", "x", "ü", "\U0001f600", "9")
SIZES = (0, 1, 2, 3, 7, 64, 2**31, 2**32, 2**63, 2**64 - 1)
DTYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool", "object", "")
PLAIN = 0.25
"""Of all changes are of plain bytes."""


def mutate(data: bytes, others: list[bytes], generator: random.Random) -> bytes:
    """Change the bytes of a message in one to four places."""
    changed = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(len(changed) + 1)
        match generator.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << generator.randrange(8)
            case 1 if at < len(changed):
                changed[at] = generator.choice(INTERESTING)
            case 2:
                del changed[at : at + generator.randint(1, 16)]
            case 3:
                changed[at:at] = generator.randbytes(generator.randint(1, 16))
            case 4:
                changed[at:at] = changed[at : at + generator.randint(1, 64)]
            case 5:
                del changed[at:]
            case _:
                other = generator.choice(others)
                start = generator.randrange(len(other) + 1)
                changed[at:] = other[start:]
    return bytes(changed)


def alter_text(text: str, generator: random.Random) -> str:
    """Change a text that should be JSON, or a name."""
    numbers = list(NUMBER.finditer(text))
    if numbers and generator.random() < 0.5:
        found = generator.choice(numbers)
        return text[: found.start()] + generator.choice(NUMBERS) + text[found.end() :]
    at = generator.randrange(len(text) + 1)
    match generator.randrange(4):
        case 0:
            return text[:at] + generator.choice(LETTERS) + text[at:]
        case 1:
            return text[:at] + text[at + generator.randint(1, 8) :]
        case 2:
            return text[:at] + generator.choice(LETTERS) + text[at + 1 :]
        case _:
            return text[:at] + text[max(0, at - 20) :]


def alter_frame(data: bytes, others: list[bytes], generator: random.Random) -> bytes:
    """Change a frame in one to three of its fields, so that it still is a frame."""
    frame = wire.Frame.FromString(data)
    head = frame.header
    for _ in range(generator.randint(1, 3)):
        tensor = generator.choice(head.tensors) if head.tensors else None
        match generator.randrange(10):
            case 0:
                head.facts = alter_text(head.facts, generator)
            case 1 if tensor and tensor.shape:
                tensor.shape[generator.randrange(len(tensor.shape))] = generator.choice(SIZES)
            case 2 if tensor:
                tensor.shape.append(generator.choice(SIZES))
            case 3 if tensor:
                tensor.dtype = generator.choice(DTYPES)
            case 4 if tensor:
                tensor.name = alter_text(tensor.name, generator)
            case 5 | 6 if frame.chunk:
                frame.chunk = mutate(frame.chunk, [frame.chunk], generator)
            case 7:
                other = wire.Frame.FromString(generator.choice(others))
                head.kind = other.header.kind
            case 8:
                field = generator.choice(("epoch", "round", "attempt", "step"))
                size = 64 if field in ("epoch", "round") else 32
                setattr(head, field, generator.choice((0, 1, 2, 3, 2**31, 2**size - 1)))
            case _:
                head.facts = generator.choice(('{"a": ' * 200, "[]", "null", "1e999", '{"version": NaN}', "{}"))
    return frame.SerializeToString()


def alter_hello(data: bytes, others: list[bytes], generator: random.Random) -> bytes:
    """Change what a hub says when it comes to a meeting."""
    hello = wire.Hello.FromString(data)
    for _ in range(generator.randint(1, 2)):
        field = generator.choice(("protocol", "version", "silo", "job", "incarnation", "epoch", "topic", "brought"))
        if field in ("protocol", "epoch"):
            setattr(hello, field, generator.choice((0, 1, 2, 2**31, 2**32 - 1)))
        else:
            setattr(hello, field, alter_text(getattr(hello, field), generator))
    return hello.SerializeToString()


def as_bytes(message: Message) -> list[bytes]:
    """Return a message as it travels."""
    return [to_wire(frame).SerializeToString() for frame in frames(message)]


@contextmanager
def patience() -> Iterator[Callable[[], None]]:
    """Raise TimeoutError unless the function that this yields is called again and again."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{BATCH} messages took more than {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, late)
    try:
        yield lambda: (signal.alarm(PATIENCE), None)[1]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Receive = Callable[[bytes], Any]
"""Takes the bytes of a frame; raises TdcdError if they are refused."""


def client_receiver(recorded: Recorded) -> Receive:
    """Return a client that its hub sends something."""
    session = recorded.federation.sessions[recorded.who]
    begin, embed = (
        next(request for request in recorded.requests if request.kind == kind) for kind in ("begin", "embed")
    )

    async def receive(data: bytes) -> None:
        if session._ready is None:
            session.reply(begin)
        if session._round is None:
            session.reply(embed)
        message = Assembler(session.most).feed(from_wire(wire.Frame.FromString(data)))
        if message is not None:
            session.reply(message)

    return receive


def link_receiver(recorded: Recorded) -> Receive:
    """Return a hub that a client replies to."""
    job = SharedJob.of(recorded.federation.job).fingerprint
    kinds = {request.kind: reply.kind for request, reply in zip(recorded.requests, recorded.replies, strict=True)}
    state: dict[str, Any] = {}

    async def receive(data: bytes) -> None:
        if not state or state["listening"].done():
            near, far = MemoryStream.pair()
            link = Link("north", near, job)
            state.update(far=far, link=link, listening=asyncio.ensure_future(link.listen()))
        link, far, request = state["link"], state["far"], recorded.requests[-1]
        frame = from_wire(wire.Frame.FromString(data))
        if frame.header is not None and frame.header.epoch < 100:  # so far it would be a reply to another request
            frame = Frame(frame.header._replace(epoch=link._number + 1), frame.chunk)
        asked = link.asked(request, KINDS[kinds[request.kind]], 1 << 20)
        await far.send(frame)
        listening = state["listening"]
        await asyncio.wait({asked, listening}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done() and asked.done():
            await asked
            return
        link.close()
        listening.cancel()
        state.clear()
        ended: object = (await asyncio.gather(listening, asked, return_exceptions=True))[0]
        raise ended if isinstance(ended, TdcdError) else TdcdError("an incomplete reply")

    return receive


def peer_receiver(federation: Federation, silo: str, other: str) -> Receive:
    """Return a hub that another brings something."""
    reception = federation.remotes[silo].service
    assert reception is not None
    peers = federation.hubs[silo].context.peers
    count = [0]

    async def once(frame: Frame) -> AsyncIterator[Frame]:
        yield frame

    async def receive(data: bytes) -> None:
        count[0] += 1
        if count[0] % 50 == 0:
            peers.advance(1)
            peers._inbox.messages.clear()
            peers._left.clear()
        await reception.deliver(None, other, once(from_wire(wire.Frame.FromString(data))))

    return receive


def meeting_receiver(federation: Federation, silo: str) -> Receive:
    """Return a hub that chairs, and that another comes to."""
    reception = federation.remotes[silo].service
    assert reception is not None

    async def receive(data: bytes) -> None:
        hello = wire.Hello.FromString(data)
        values = {name: getattr(hello, name) for name in Hello.__dataclass_fields__}
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await reception.meet(None, Hello(**values))

    return receive


def attack(
    job: Job, folder: Path, client: Identity, count: int, seed: int, tell: Callable[[int], None]
) -> Counter[str]:
    """Hand over so many changed messages; return how many were refused, accepted, or could not even be parsed.

    Raises:
        Exception: whatever is no TdcdError: a defect.
    """
    generator = random.Random(seed)  # noqa: S311
    recorded = record(job, folder, client)
    federation = Federation(job, folder / "hubs")
    sent: list[bytes] = []
    hellos: list[bytes] = []
    result: Counter[str] = Counter()

    async def go() -> None:
        chair, other = sorted(federation.names())[:2]
        federation.add_everybody()
        for hub in federation.hubs.values():
            push, meeting = hub.context.peers._push, hub.context.peers._attended

            async def pushing(peer: Any, message: Message, end: float, push: Any = push, **more: Any) -> None:
                sent.extend(as_bytes(message))
                await push(peer, message, end, **more)

            async def attending(hello: Hello, meeting: Any = meeting) -> Any:
                hellos.append(wire.Hello(**vars(hello)).SerializeToString())
                return await meeting(hello)

            hub.context.peers._push, hub.context.peers._attended = pushing, attending  # type: ignore[method-assign]
        await federation.begin()
        await federation.rounds(1)
        requests = [one for message in recorded.requests for one in as_bytes(message) if message.kind != "begin"]
        begin = [one for message in recorded.requests for one in as_bytes(message) if message.kind == "begin"]
        job_name = SharedJob.of(job).fingerprint
        replies = [
            one
            for message in recorded.replies
            for one in as_bytes(message.stamped(message.stamp._replace(job=job_name, epoch=1)))
        ]
        links: list[tuple[str, Receive, list[bytes]]] = [
            ("hub to client", client_receiver(recorded), requests * 12 + begin),
            ("client to hub", link_receiver(recorded), replies),
            ("hub to hub", peer_receiver(federation, chair, other), sent),
            ("hub to meeting", meeting_receiver(federation, chair), hellos),
        ]
        with patience() as again:
            for number in range(count):
                if number % BATCH == 0:
                    again()
                    tell(number)
                name, receive, corpus = links[number % 4]
                change = mutate if generator.random() < PLAIN else alter_hello if corpus is hellos else alter_frame
                data = change(generator.choice(corpus), corpus, generator)
                try:
                    await receive(data)
                except DecodeError:
                    result[f"{name}: not even a frame"] += 1
                except TdcdError:
                    result[f"{name}: refused"] += 1
                else:
                    result[f"{name}: taken"] += 1
        await federation.stop()

    run_virtually(go())
    return result
