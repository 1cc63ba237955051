"""Typed messages as they travel: small values as JSON in the header, tensors, arrays and long texts as bytes.

A message type is a frozen dataclass, registered under its kind. Its fields are

    Tensor, tuple[Tensor, …]     tensors, by the name of the field and their place
    Array                        a numpy array of numbers, or of a few texts
    Column, tuple[Column, …]     columns of whole numbers or texts, however many
    bytes                        a long text
    anything else                what JSON can say, validated by its type

or any of these ``| None``. No name that a user chose is ever a key.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from tdcd.core.codecs import Codec, Plain
from tdcd.core.codecs.base import decode, encoded_like
from tdcd.data.arrays import LONGEST, Array
from tdcd.sites.messages.frames import Message, RefusedError, Stamp

if TYPE_CHECKING:
    import polars as pl

    Column = pl.Series
else:

    class Column:
        """Stands for a polars series where types of messages are described: polars is loaded where one travels."""


T = TypeVar("T")
_PLAIN = (bool, int, float, str)
MODEST = 1 << 21
"""Bytes that an array of texts may take, which pads all to the longest: as many as the IDs of a question take."""
PIECE = 1 << 14
"""So many texts of a column are decoded at a time: as objects of Python they take many times their bytes."""


@dataclass(frozen=True)
class _Field:
    """How a field of a message travels."""

    name: str
    form: str
    """"tensor", "array", "series", "bytes" or "json"."""
    many: bool
    optional: bool
    plain: type | None
    adapter: TypeAdapter[Any]


_FORMS: dict[Any, str] = {Tensor: "tensor", Array: "array", Column: "series", bytes: "bytes"}
KINDS: dict[str, type] = {}
_FIELDS: dict[type, tuple[_Field, ...]] = {}
_NAMES: dict[type, str] = {}


@dataclass_transform(frozen_default=True)
def message(kind: str) -> Callable[[type[T]], type[T]]:
    """Make a class a type of messages: a frozen dataclass under a kind of its own."""

    def register(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True)(cls)
        if kind in KINDS:
            raise ValueError(f"two types of messages of the kind '{kind}'")
        KINDS[kind], _NAMES[made] = made, kind
        _FIELDS[made] = tuple(_describe(name, hint) for name, hint in get_type_hints(made).items())
        return made

    return register


def _describe(name: str, hint: Any) -> _Field:
    optional = get_origin(hint) is UnionType and NoneType in get_args(hint)
    inner = next(arg for arg in get_args(hint) if arg is not NoneType) if optional else hint
    many = get_origin(inner) is tuple and get_args(inner)[0] in _FORMS
    base = get_args(inner)[0] if many else inner
    form = _FORMS.get(base, "json")
    plain = base if form == "json" and base in _PLAIN and not optional else None
    return _Field(name, form, many, optional, plain, TypeAdapter(hint if form == "json" else bytes))


def kind_of(message: object | type) -> str:
    """Return the kind of a message, or of a type of messages."""
    return _NAMES[message if isinstance(message, type) else type(message)]


def pack(message: object, stamp: Stamp = Stamp()) -> Message:  # noqa: B008 - frozen
    """Return a message as it travels."""
    facts: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for one in _FIELDS[type(message)]:
        value = getattr(message, one.name)
        if value is None:
            continue
        if one.form == "json":
            facts[one.name] = value if one.plain else one.adapter.dump_python(value, mode="json")
        elif one.many:
            facts[one.name] = len(value)
            for number, part in enumerate(value):
                tensors |= _pack_one(one, f"{one.name}/{number}", part)
        else:
            tensors |= _pack_one(one, one.name, value)
    return Message(kind_of(message), facts, tensors, stamp)


def _pack_one(one: _Field, name: str, value: Any) -> dict[str, Tensor]:
    if one.form == "tensor":
        return {name: value}
    if one.form == "bytes":
        return {name: torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0).byte()}
    if isinstance(value, np.ndarray) and value.dtype.kind != "U":
        return {name: torch.from_numpy(np.ascontiguousarray(value))}
    import polars as pl

    from tdcd.data.tables.alignment import id_array, id_series

    column = id_series(value) if isinstance(value, np.ndarray) else value
    if column.dtype != pl.String:
        return {name: torch.from_numpy(id_array(column))}
    letters = bytearray((column.str.join("").item() or "").encode())
    ends = column.str.len_bytes().cast(pl.Int64).cum_sum().to_numpy(writable=True)
    return {
        f"{name} letters": torch.frombuffer(letters, dtype=torch.uint8) if letters else torch.empty(0).byte(),
        f"{name} ends": torch.from_numpy(ends),
    }


def unpack(envelope: Message, *expected: type[T]) -> T:
    """Return the typed message in an envelope, which must be of one of the expected types, and nothing more.

    Raises:
        RefusedError: it is another message, or one with missing, unexpected or malformed fields.
    """
    kind, tensors, facts = envelope.kind, dict(envelope.tensors), dict(envelope.facts)
    cls = next((one for one in expected if _NAMES[one] == kind), None)
    if cls is None:
        wanted = " or ".join(f"'{_NAMES[one]}'" for one in expected)
        raise RefusedError(f"received '{kind[:40]}' where {wanted} is expected")
    values: dict[str, Any] = {}
    for one in _FIELDS[cls]:
        try:
            values[one.name] = _unpack_field(one, facts, tensors)
        except (KeyError, TypeError, ValueError, ValidationError, RefusedError) as error:
            why = f"'{kind}' without '{one.name}', or with a malformed one"
            raise RefusedError(f"{why}: {error}" if isinstance(error, RefusedError) else why) from error
    for name in (*tensors, *facts):
        raise RefusedError(f"'{kind}' with an unexpected field '{name[:40]}'")
    return cls(**values)


def _unpack_field(one: _Field, facts: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    if one.form == "json":
        if one.name not in facts and one.optional:
            return None
        value = facts.pop(one.name)
        if one.plain is not None:
            if type(value) is not one.plain and not (one.plain is float and type(value) is int):
                raise TypeError(f"a {one.plain.__name__} is expected")
            return value
        return one.adapter.validate_json(json.dumps(value), strict=True)
    if one.many:
        if one.name not in facts and one.optional:
            return None
        count = facts.pop(one.name)
        if type(count) is not int or not 0 <= count <= len(tensors):
            raise ValueError("a number of tensors is expected")
        return tuple(_unpack_one(one, f"{one.name}/{number}", tensors) for number in range(count))
    there = one.name in tensors or f"{one.name} ends" in tensors
    return None if one.optional and not there else _unpack_one(one, one.name, tensors)


def _unpack_one(one: _Field, name: str, tensors: dict[str, Tensor]) -> Any:
    if one.form == "tensor":
        return tensors.pop(name)
    if one.form == "bytes":
        data = tensors.pop(name)
        if data.dtype != torch.uint8 or data.ndim != 1:
            raise ValueError("bytes are expected")
        return data.numpy().tobytes()
    if name in tensors:
        numbers = tensors.pop(name)
        return numbers.numpy() if one.form == "array" else _whole_numbers(numbers)
    texts = _texts(tensors.pop(f"{name} letters"), tensors.pop(f"{name} ends"))
    if one.form == "series":
        return texts
    from tdcd.data.tables.alignment import id_array

    longest: Any = texts.str.len_chars().max()
    if 4 * len(texts) * (longest or 0) > MODEST:
        raise RefusedError(f"{len(texts):,} texts of up to {longest} characters")
    return id_array(texts)


def _whole_numbers(values: Tensor) -> Column:
    import polars as pl

    if values.ndim != 1 or values.is_floating_point() or values.dtype == torch.bool:
        raise RefusedError(f"{values.dtype} of shape {tuple(values.shape)}, not whole numbers")
    return pl.Series(values.numpy().astype(np.int64))


def _texts(letters: Tensor, ends: Tensor) -> Column:
    """Return texts from their bytes in UTF-8, one after the other, and where each ends; they take twice these at most.

    Raises:
        RefusedError: they are damaged, or no IDs and labels.
    """
    import polars as pl

    if (letters.dtype, letters.ndim, ends.dtype, ends.ndim) != (torch.uint8, 1, torch.int64, 1):
        raise RefusedError("damaged texts")
    data, start = memoryview(letters.numpy().data), 0
    pieces = [pl.Series(dtype=pl.String)]
    for first in range(0, len(ends), PIECE):
        texts = list[str]()
        for end in ends[first : first + PIECE].tolist():
            if not start <= end <= len(data):
                raise RefusedError("damaged texts")
            if end - start > 4 * LONGEST or len(text := str(data[start:end], "utf-8")) > LONGEST:
                raise RefusedError(f"a text of more than {LONGEST} characters")
            texts.append(text)
            start = end
        if "\0" in "".join(texts):
            raise RefusedError("the character NUL in a text")
        pieces.append(pl.Series(texts, dtype=pl.String))
    if start != len(data):
        raise RefusedError("damaged texts")
    return pl.concat(pieces)


def place_of(field: str, name: str) -> int:
    """Return the place of a tensor in the field that it travels in.

    Raises:
        RefusedError: it is of another field.
    """
    start, _, number = name.partition("/")
    if start != field or not number.isdecimal():
        raise RefusedError(f"unexpected tensor '{name[:40]}'")
    return int(number)


def fits(value: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Check that a tensor has a shape and a type.

    Raises:
        RefusedError: it has not.
    """
    if value is None or tuple(value.shape) != shape or value.dtype != dtype:
        got = "nothing" if value is None else f"{value.dtype} of shape {tuple(value.shape)}"
        raise RefusedError(f"{what}: {got}, not {dtype} of shape {shape}")
    return value


LARGEST_NUMBER = 1e12
"""Embeddings, gradients and weights beyond this are as good as infinite: nothing that trains comes near it."""


class UnboundedError(RefusedError):
    """Numbers that are not finite, or too large to compute with."""


def check_numbers(value: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> Tensor:
    """Check that a tensor has a shape and a type, and that its numbers are finite and of ordinary size.

    Raises:
        RefusedError: it has another shape or type.
        UnboundedError: its numbers cannot be computed with.
    """
    checked = fits(value, shape, dtype, what)
    if checked.is_floating_point() and checked.numel():
        largest = float(checked.detach().abs().max())  # NaN if one of them is
        if not largest <= LARGEST_NUMBER:
            size = f"as large as {largest:.3g}" if isfinite(largest) else "not finite"
            raise UnboundedError(f"{what}: its numbers are {size}")
    return checked


def check_coded(codec: Codec, value: Tensor | None, like: Tensor, what: str) -> Tensor:
    """Check that a tensor travels as ``like`` would; return it decoded, its numbers finite and of ordinary size.

    Raises:
        RefusedError: it has another shape or type.
        UnboundedError: its numbers cannot be computed with.
    """
    if type(codec) is Plain:
        return check_numbers(value, tuple(like.shape), like.dtype, what)
    expected = encoded_like(codec, like)
    decoded = decode(codec, fits(value, tuple(expected.shape), expected.dtype, what), like)
    return check_numbers(decoded, tuple(like.shape), like.dtype, what)


def samples_in(value: Tensor, what: str) -> frozenset[int]:
    """Return sample numbers.

    Raises:
        RefusedError: the tensor holds something else.
    """
    if value.dtype != torch.int64 or value.ndim != 1:
        raise RefusedError(f"{what}: not a list of samples")
    return frozenset(value.tolist())


def named(names: Mapping[str, Tensor], tensors: tuple[Tensor, ...], what: str) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors that came in order with their names, checked against those that a network has.

    Raises:
        RefusedError: they do not fit.
    """
    if len(tensors) != len(names):
        raise RefusedError(f"{what}: {len(tensors)} tensors, not {len(names)}")
    for (name, like), tensor in zip(names.items(), tensors, strict=True):
        yield name, fits(tensor, tuple(like.shape), like.dtype, f"{what}: '{name}'")


def check_weight(tensor: Tensor, like: Tensor, what: str) -> bool:
    """Check a tensor of a network against the one that it has; return whether it is one that trains.

    Raises:
        RefusedError: it has another shape or type.
        UnboundedError: its numbers cannot be computed with.
    """
    if not like.is_floating_point() or not like.isfinite().all():  # a constant, such as a mask of -inf
        fits(tensor, tuple(like.shape), like.dtype, what)
        return False
    check_numbers(tensor, tuple(like.shape), like.dtype, what)
    return True


def known(value: T | None, what: str) -> T:
    """Return what an earlier message of the hub has brought.

    Raises:
        RefusedError: it has not come.
    """
    if value is None:
        raise RefusedError(f"out of order: the hub has not sent {what}")
    return value
