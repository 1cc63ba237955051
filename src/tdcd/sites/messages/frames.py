"""Messages between sites as frames on a stream: a header, and the bytes of its tensors in chunks.

Nothing that comes from elsewhere is trusted: sizes are checked before anything is stored, memory grows only with bytes
that have really come, and nothing is ever unpickled.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tdcd.errors import DeploymentError

PROTOCOL = 1
CHUNK = 1 << 18
"""Bytes of a frame, at most, that we send."""
LARGEST = 1 << 34
"""Bytes that a message may have where nothing more is known of it."""
MOST_TENSORS = 10_000
MOST_DIMENSIONS = 16
_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_WORD = 8
"""A tensor's bytes are padded to a multiple of this, so that each begins where a number may."""


BOOKKEEPING = frozenset({"without", "lost", "away"})
"""Fields that name samples, and carry nothing of the algorithm: a ledger does not count them."""


class RefusedError(DeploymentError):
    """A message that cannot be understood, or is larger than it may be."""


class TensorHeader(NamedTuple):
    """A tensor that a message announces."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Header(NamedTuple):
    """What comes first of a message."""

    job: str
    epoch: int
    round: int
    attempt: int
    step: int
    kind: str
    facts: str
    """As JSON; empty if there are none."""
    tensors: tuple[TensorHeader, ...]


class Frame(NamedTuple):
    """A piece of a message. The first brings the header."""

    header: Header | None
    chunk: bytes


class Stamp(NamedTuple):
    """To which training and which moment of it a message belongs."""

    job: str = ""
    epoch: int = 0
    round: int = 0
    attempt: int = 0
    step: int = 0
    """Local steps before it, in this attempt."""

    def at(self, step: int) -> "Stamp":
        """Return the same at another step."""
        return self._replace(step=step)


@dataclass(frozen=True)
class Message:
    """A message as it travels. See types for what each kind holds."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Settings and small facts: whatever JSON can say."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    stamp: Stamp = Stamp()  # noqa: RUF009 - a tuple

    def stamped(self, stamp: Stamp) -> "Message":
        """Return the message with another stamp."""
        return Message(self.kind, self.facts, self.tensors, stamp)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass
class Meter:
    """Counts the bytes of numbers where they are put into frames and taken out of them; padding does not count."""

    sent: int = 0
    received: int = 0


def frames(message: Message, meter: Meter | None = None, most: int | None = None) -> Iterator[Frame]:
    """Cut a message into frames of so many bytes of tensors at most; by default of ``CHUNK``."""
    stamp, size = message.stamp, most or CHUNK
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in message.tensors.items()}
    header = Header(
        job=stamp.job,
        epoch=stamp.epoch,
        round=stamp.round,
        attempt=stamp.attempt,
        step=stamp.step,
        kind=message.kind,
        facts=json.dumps(message.facts, allow_nan=True) if message.facts else "",
        tensors=tuple(
            TensorHeader(name, _NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()
        ),
    )
    text: Header | None = header
    chunk = bytearray()
    for name, tensor in tensors.items():
        counts = meter is not None and name not in BOOKKEEPING
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else memoryview(b"")
        start = 0
        while start < len(data):
            piece = data[start : start + size - len(chunk)]
            chunk += piece
            start += len(piece)
            if counts and meter:
                meter.sent += len(piece)
            if len(chunk) == size:
                yield Frame(header=text, chunk=bytes(chunk))
                text = None
                chunk.clear()
        chunk += bytes(-len(data) % _WORD)
    if chunk or text:
        yield Frame(header=text, chunk=bytes(chunk))


def one_frame(message: Message) -> Frame:
    """Return a message as a single frame, where its size is known to be small."""
    (frame,) = frames(message, most=LARGEST)
    return frame


def message_in(frame: Frame, most: int) -> Message:
    """Return the message that is a single frame, of so many bytes of tensors at most.

    Raises:
        RefusedError: it is not whole, or too large.
    """
    if (message := Assembler(most).feed(frame)) is None:
        raise RefusedError("an incomplete message")
    return message


class Assembler:
    """Puts the messages of a stream together again, one after the other.

    A tensor exists as soon as its bytes have come. Who takes tensors at once, by setting ``take``, never has a whole
    message in memory: what was taken stays in the message without its numbers, as a tensor of the device ``meta``.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """Bytes that a message may have; changes as other messages are expected."""
        self.take: Callable[[str, Tensor], None] | None = None
        self.meter: Meter | None = None
        """Counts what comes."""
        self._header: Header | None = None
        self._bytes = bytearray()
        """Of the tensor that is under way."""
        self._tensors: dict[str, Tensor] = {}
        """Those that are complete."""

    def feed(self, frame: Frame) -> Message | None:
        """Take the next frame; return the message that it completes, if it does.

        Raises:
            RefusedError: it does not belong here, or promises too much.
        """
        begins = frame.header is not None
        if frame.header is not None:
            if self._header is not None:
                raise RefusedError("a message begins before the one before it has ended")
            _check(frame.header, self.most)
            self._header = frame.header
        if self._header is None:
            raise RefusedError("a message begins without a header")
        if not frame.chunk and not begins:
            raise RefusedError("an empty frame")
        if self._fill(self._header, memoryview(frame.chunk)):
            raise RefusedError("a message has more bytes than its header tells")
        if len(self._tensors) < len(self._header.tensors):
            return None
        message = _message(self._header, self._tensors)
        self._header, self._tensors = None, {}
        return message

    def _fill(self, header: Header, data: memoryview) -> int:
        """Take bytes for the tensors that are not complete; return how many are left over."""
        while len(self._tensors) < len(header.tensors):
            text = header.tensors[len(self._tensors)]
            size = _size(text)
            missing = _padded(size) - len(self._bytes)
            self._bytes += data[:missing]
            if len(data) < missing:
                return 0
            data = data[missing:]
            tensor = _tensor(text, self._bytes)
            if self.meter and text.name not in BOOKKEEPING:
                self.meter.received += len(self._bytes) - (_padded(size) - size)
            self._bytes = bytearray()
            if self.take:
                self.take(text.name, tensor)
                tensor = tensor.to("meta")
            self._tensors[text.name] = tensor
        return len(data)


def _check(header: Header, most: int) -> None:
    """Refuse a header that promises what it may not."""
    if len(header.tensors) > MOST_TENSORS:
        raise RefusedError(f"a message with {len(header.tensors)} tensors")
    total = 0
    for tensor in header.tensors:
        if tensor.dtype not in _DTYPES:
            raise RefusedError(f"a tensor of an unknown type: '{tensor.dtype[:40]}'")
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise RefusedError(f"a tensor of {len(tensor.shape)} dimensions")
        total += _padded(_size(tensor))
        if total > most:
            raise RefusedError(f"'{header.kind[:40]}' would be larger than the {most:,} bytes that it may have here")
    if len({tensor.name for tensor in header.tensors}) < len(header.tensors):
        raise RefusedError("a message with two tensors of the same name")


def _size(spec: TensorHeader) -> int:
    return prod(spec.shape) * _DTYPES[spec.dtype].itemsize


def _tensor(spec: TensorHeader, data: bytearray) -> Tensor:
    dtype, shape = _DTYPES[spec.dtype], tuple(spec.shape)
    if data:
        return torch.frombuffer(data, dtype=dtype, count=prod(shape)).reshape(shape)
    if prod(size for size in shape if size) > np.iinfo(np.int32).max:
        raise RefusedError("an empty tensor of an impossible shape")
    return torch.empty(shape, dtype=dtype)


def _message(header: Header, tensors: Mapping[str, Tensor]) -> Message:
    try:
        facts = json.loads(header.facts) if header.facts else {}
    except (ValueError, RecursionError) as error:
        raise RefusedError("a message whose facts are not JSON") from error
    if not isinstance(facts, dict):
        raise RefusedError("the message header is not a JSON object")
    stamp = Stamp(header.job, header.epoch, header.round, header.attempt, header.step)
    return Message(header.kind, facts, tensors, stamp)


def _padded(size: int) -> int:
    return size + -size % _WORD
