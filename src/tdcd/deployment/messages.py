"""Messages between sites as frames on a stream: a header, and the bytes of its tensors in chunks.

Nothing that comes from elsewhere is trusted: sizes are checked before anything is stored, memory grows only with bytes
that have really come, and nothing is ever unpickled.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from tdcd.data.arrays import Array
from tdcd.data.tables.columns import LONGEST
from tdcd.deployment.wire.tdcd_pb2 import Frame, Header, TensorHeader
from tdcd.errors import DeploymentError

PROTOCOL = 1
CHUNK = 1 << 18
"""Bytes of a frame, at most, that we send."""
MOST_TENSORS = 100_000
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


EMBEDDINGS, GRADIENTS, OTHERS, ROWS = "embeddings", "gradients", "others", "rows"
"""Fields: a vector for each row of the mini-batch; ``others`` are the summed embeddings of the other silos."""
WITHOUT, LOST, AWAY = "without", "lost", "away"
"""Fields: samples that have left the mini-batch, are lost or will be away.

Names that users choose, of silos, weights or columns, are never fields themselves: ``weight`` and ``requester`` make
fields of them that no other field can be.
"""


BOOKKEEPING = frozenset({WITHOUT, LOST, AWAY})
"""Fields that tell of samples, and carry nothing of the algorithm: a ledger does not count them."""


def weight(name: str) -> str:
    """Return the field of one of a network's tensors."""
    return f"w {name}"


def packed(block: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a block as it travels."""
    return {weight(name): tensor for name, tensor in block.items()}


def unpacked(field: str) -> str:
    """Return the name of a network's tensor, given its field."""
    return field.removeprefix(weight(""))


def requester(silo: str) -> str:
    """Return the field of the scores that a silo requests gradients at, and of the gradients."""
    return f"of {silo}"


class RefusedError(DeploymentError):
    """A message that cannot be understood, or is larger than it may be."""


def gradient_requests(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the scores at which silos request gradients, by field.

    Raises:
        RefusedError: something else is among them.
    """
    requests = {field: tensor for field, tensor in tensors.items() if field.startswith(requester(""))}
    if strange := set(tensors) - set(requests) - {WITHOUT}:
        raise RefusedError(f"unexpected tensor '{min(strange)[:40]}'")
    return requests


@dataclass(frozen=True)
class Stamp:
    """To which training and which moment of it a message belongs."""

    job: str = ""
    epoch: int = 0
    round: int = 0
    attempt: int = 0
    step: int = 0
    """Local steps before it, in this attempt."""

    def at(self, step: int) -> "Stamp":
        """Return the same at another step."""
        return replace(self, step=step)


@dataclass(frozen=True)
class Message:
    """What one site tells another."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Settings and small facts: whatever JSON can say."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    stamp: Stamp = Stamp()

    def stamped(self, stamp: Stamp) -> "Message":
        """Return the message with another stamp."""
        return replace(self, stamp=stamp)

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass
class Meter:
    """Counts the bytes of numbers where they are put into frames and taken out of them; padding does not count."""

    sent: int = 0
    received: int = 0


def frames(message: Message, meter: Meter | None = None) -> Iterator[Frame]:
    """Cut a message into frames."""
    stamp = message.stamp
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in message.tensors.items()}
    header = Header(
        job=stamp.job,
        epoch=stamp.epoch,
        round=stamp.round,
        attempt=stamp.attempt,
        step=stamp.step,
        kind=message.kind,
        facts=json.dumps(message.facts, allow_nan=True) if message.facts else "",
        tensors=[
            TensorHeader(name=name, dtype=_NAMES[tensor.dtype], shape=tensor.shape) for name, tensor in tensors.items()
        ],
    )
    text: Header | None = header
    chunk = bytearray()
    for name, tensor in tensors.items():
        counts = meter is not None and name not in BOOKKEEPING
        data = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else memoryview(b"")
        start = 0
        while start < len(data):
            piece = data[start : start + CHUNK - len(chunk)]
            chunk += piece
            start += len(piece)
            if counts and meter:
                meter.sent += len(piece)
            if len(chunk) == CHUNK:
                yield Frame(header=text, chunk=bytes(chunk))
                text = None
                chunk.clear()
        chunk += bytes(-len(data) % _WORD)
    if chunk or text:
        yield Frame(header=text, chunk=bytes(chunk))


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

    def feed(self, frame: Frame) -> Message | None:
        """Take the next frame; return the message that it completes, if it does.

        Raises:
            RefusedError: it does not belong here, or promises too much.
        """
        begins = frame.HasField("header")
        if begins:
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
        for text in header.tensors[len(self._tensors) :]:
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

    def feed_bytes(self, data: bytes) -> Message | None:
        """Take a frame as it comes from the network."""
        try:
            frame = Frame.FromString(data)
        except DecodeError as error:
            raise RefusedError("not a tdcd frame") from error
        return self.feed(frame)


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
    if max(shape) > np.iinfo(np.int32).max:
        raise RefusedError("an empty tensor of a strange shape")
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


def array_tensors(name: str, values: Array) -> dict[str, Tensor]:
    """Return an array of numbers or texts as tensors; texts as their bytes in UTF-8 and where each ends."""
    if values.dtype.kind != "U":
        return {name: torch.from_numpy(np.ascontiguousarray(values))}
    texts = [text.encode() for text in values.tolist()]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    letters = np.frombuffer(bytearray(b"".join(texts)), dtype=np.uint8)
    return {f"{name} letters": torch.from_numpy(letters), f"{name} ends": torch.from_numpy(ends)}


def tensors_array(name: str, message: Message) -> Array:
    """Return the array that ``array_tensors`` made.

    Raises:
        RefusedError: the message has no such array.
    """
    if name in message.tensors:
        return message.tensors[name].numpy()
    try:
        letters = message.tensors[f"{name} letters"].numpy().tobytes()
        ends = message.tensors[f"{name} ends"].tolist()
        starts = [0, *ends][: len(ends)]
        if any(a > b for a, b in zip(starts, ends, strict=True)) or (ends[-1] if ends else 0) != len(letters):
            raise RefusedError(f"'{message.kind}': damaged texts in '{name}'")
        texts = [letters[a:b].decode() for a, b in zip(starts, ends, strict=True)]
        if "\0" in "".join(texts):
            raise RefusedError(f"'{message.kind}': the character NUL in a text of '{name}'")
        if max(map(len, texts), default=0) > LONGEST:  # an array takes the longest one's memory for each
            raise RefusedError(f"'{message.kind}': a text of more than {LONGEST} characters in '{name}'")
        return np.array(texts, dtype=np.str_)
    except (KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"'{message.kind}': without '{name}', or with a damaged one") from error
