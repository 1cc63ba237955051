"""What every codec offers, and how messages go through one.

Embeddings and logit gradients are encoded as they are. Of the weights, a hub sends its θ_j encoded; a client returns
the encoded *change* that its steps made, which the hub adds to its own θ_j. So the hub keeps all digits, and steps that
are small against the weights are not rounded away. Running statistics, frozen weights and what optimizers remember
travel as they are: they are few, and may lie outside of a short type's range.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tdcd.core.codecs.plain import Plain
from tdcd.core.network import Block
from tdcd.core.parts import calling, check_tensors, is_foreign, name_of
from tdcd.errors import ModelError


@runtime_checkable
class Codec(Protocol):
    """Encodes the numbers of one message. A simulation computes with what was decoded, as sites do."""

    @property
    def elementwise(self) -> bool:
        """Whether every number is encoded by itself: then a simulation encodes many clients' messages at once."""

    def encode(self, tensor: Tensor) -> Tensor:
        """Return what travels: one tensor, whose type and shape follow from those of the given one."""

    def decode(self, encoded: Tensor, like: Tensor) -> Tensor:
        """Return what the receiver computes with: a tensor of the shape and type of ``like``."""


def encode(codec: Codec, tensor: Tensor) -> Tensor:
    """Return what travels of a tensor.

    Raises:
        ModelError: a user's codec fails, or its messages have no fixed size.
    """
    if not is_foreign(codec):
        return codec.encode(tensor)
    with calling("codec", codec):
        encoded = codec.encode(tensor.clone())  # it may change what it is given
        like = codec.encode(torch.zeros_like(tensor))
    check_tensors({"what it encodes": encoded}, {"what it encodes": like}, "codec", codec, finite=False)
    return encoded


def decode(codec: Codec, encoded: Tensor, like: Tensor) -> Tensor:
    """Return what the receiver of a tensor computes with.

    Raises:
        ModelError: a user's codec fails, or decodes something else.
    """
    if not is_foreign(codec):
        return codec.decode(encoded, like)
    with calling("codec", codec):
        decoded = codec.decode(encoded.clone(), like.clone())
    check_tensors({"what it decodes": decoded}, {"what it decodes": like}, "codec", codec, finite=False)
    return decoded


def encoded_like(codec: Codec, like: Tensor) -> Tensor:
    """Return a tensor of the type and shape that another travels as."""
    return encode(codec, torch.zeros_like(like))


def carry(codec: Codec, tensor: Tensor) -> Tensor:
    """Return a tensor as its receiver sees it: a message in a simulation."""
    return decode(codec, encode(codec, tensor), tensor)


def carry_each(codec: Codec, stack: Tensor) -> Tensor:
    """Return a stack of clients' tensors (G, …), each a message of its own, as their hub sees them."""
    return carry(codec, stack) if codec.elementwise else torch.stack([carry(codec, one) for one in stack])


@dataclass(frozen=True)
class Codecs:
    """The codec of each kind of message."""

    rows: Codec = field(default_factory=Plain)
    """Of embeddings, scores and logit gradients."""
    weights: Codec = field(default_factory=Plain)
    """Of the weights that gradient steps change, and of their changes."""

    @cached_property
    def plain_rows(self) -> bool:
        """Whether embeddings and logit gradients travel as they are."""
        return type(self.rows) is Plain

    @cached_property
    def changes(self) -> bool:
        """Whether clients return the changes of their weights, since these are encoded."""
        return type(self.weights) is not Plain

    def carry_rows(self, rows: Tensor) -> Tensor:
        """Return rows as the receiver of a message sees them."""
        return rows if self.plain_rows else carry(self.rows, rows)

    def encode_block(self, block: Block, trainable: Collection[str]) -> Block:
        """Return what travels of a silo's weights, or of a client's changes."""
        if not self.changes:
            return block
        return block | {name: encode(self.weights, block[name]) for name in trainable}

    def decode_block(self, encoded: Block, like: Block, trainable: Collection[str]) -> Block:
        """Return a silo's weights as a client sees them."""
        if not self.changes:
            return encoded
        return encoded | {name: decode(self.weights, encoded[name], like[name]) for name in trainable}

    def carry_block(self, block: Block, trainable: Collection[str]) -> Block:
        """Return a silo's weights as its clients see them."""
        return self.decode_block(self.encode_block(block, trainable), block, trainable)


def row_size(codec: Codec, width: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes of a row in a message, and of the message besides its rows.

    Raises:
        ModelError: the bytes of a message do not grow evenly with its rows, so that they could not be priced.
    """
    sizes = {n: encode(codec, torch.zeros(n, width, dtype=dtype)).nbytes for n in (1, 2, 3, 8, 64)}
    row = sizes[2] - sizes[1]
    fixed = sizes[1] - row
    if any(size != n * row + fixed for n, size in sizes.items()):
        raise ModelError(
            f"codec {name_of(codec)}: {', '.join(f'{n} rows take {size} bytes' for n, size in sizes.items())}; the "
            "bytes of a message must grow evenly with its rows"
        )
    return row, fixed
