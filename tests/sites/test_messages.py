import json
import resource
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from tdcd.data.tables.alignment import id_array
from tdcd.sites.messages import frames as messages
from tdcd.sites.messages.frames import (
    CHUNK,
    Assembler,
    Frame,
    Header,
    Message,
    RefusedError,
    Stamp,
    TensorHeader,
    frames,
)
from tdcd.sites.messages.packing import KINDS, message, pack, unpack
from tdcd.sites.messages.predictions import Predict
from tdcd.sites.messages.types import AllIDs, ClientKeys, LaterGradients
from tdcd.sites.transport.wire import tdcd_pb2 as wire
from tdcd.sites.transport.wire.frames import from_wire, to_wire

MOST = 1 << 24
STAMP = Stamp("f00", 3, 7, 1)


def parse_frame(data: bytes) -> Frame:
    """Read a frame as gRPC does, which refuses what protobuf cannot read."""
    try:
        return from_wire(wire.Frame.FromString(data))
    except DecodeError as error:
        raise RefusedError("not a tdcd frame") from error


def carry(message: Message, most: int = MOST) -> Message:
    assembler = Assembler(most)
    *before, last = [assembler.feed(parse_frame(to_wire(frame).SerializeToString())) for frame in frames(message)]
    assert before == [None] * len(before)
    assert last is not None
    return last


def same(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and one.shape == two.shape and one.tolist() == two.tolist()


TENSORS = st.dictionaries(
    st.text(max_size=20),
    arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
        elements=st.integers(0, 1),
    ).map(lambda array: torch.from_numpy(array.copy())),
    max_size=5,
)


@settings(deadline=None)
@given(TENSORS, st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3))
def test_a_message_comes_as_it_went(tensors: dict[str, Tensor], facts: dict[str, int | str]) -> None:
    result = carry(Message("kind", facts, tensors, STAMP))
    assert (result.kind, result.facts, result.stamp) == ("kind", facts, STAMP)
    assert list(result.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert same(result.tensors[name], tensor)


@settings(deadline=None)
@given(TENSORS)
def test_tensors_can_be_taken_as_they_come(tensors: dict[str, Tensor]) -> None:
    taken: dict[str, Tensor] = {}
    assembler = Assembler(MOST)
    assembler.take = taken.__setitem__
    result = [assembler.feed(frame) for frame in frames(Message("kind", {}, tensors, STAMP))][-1]
    assert result is not None
    assert list(result.tensors) == list(tensors) == list(taken)
    for name, tensor in tensors.items():
        left = result.tensors[name]
        assert same(taken[name], tensor)
        assert (left.device.type, left.dtype, left.shape) == ("meta", tensor.dtype, tensor.shape)


def test_no_more_than_a_tensor_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "CHUNK", 1 << 10)
    tensors = {str(number): torch.rand(1 << 10) for number in range(8)}
    assembler, held, taken = Assembler(MOST), [], []
    assembler.take = lambda name, tensor: taken.append(name)
    for frame in frames(Message("weights", {}, tensors, STAMP)):
        assembler.feed(frame)
        held.append(len(assembler._bytes))
    assert taken == list(tensors)
    assert max(held) < tensors["0"].nbytes


def test_large_tensors_go_in_chunks() -> None:
    tensors = {"a": torch.randn(700_001), "b": torch.arange(3, dtype=torch.uint8), "c": torch.randn(50, 50).T}
    message = Message("weights", {}, tensors)
    sizes = [len(frame.chunk) for frame in frames(message)]
    assert max(sizes) == CHUNK
    assert sum(sizes) == 700_002 * 4 + 8 + 10_000
    result = carry(message)
    assert all(same(result.tensors[name], tensor) for name, tensor in tensors.items())


@settings(deadline=None)
@given(st.lists(st.text(max_size=9), max_size=9), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_texts_and_numbers(texts: list[str], numbers: list[int]) -> None:
    texts = [text.replace("\0", "") for text in texts]  # refused: see below
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair is no text
    for values in (pl.Series(texts, dtype=pl.String), pl.Series(numbers, dtype=pl.Int64)):
        assert unpack(carry(pack(AllIDs(values))), AllIDs).ids.equals(values)
        assert unpack(carry(pack(Predict("run", 1, id_array(values)))), Predict).ids.tolist() == values.to_list()


def test_texts_with_nul_are_refused() -> None:
    """Arrays and digests of texts do not tell a NUL from their end."""
    letters, ends = torch.tensor([97, 0], dtype=torch.uint8), torch.tensor([2])
    with pytest.raises(RefusedError, match="'ids' .*'ids'.*: the character NUL in a text"):
        unpack(Message("ids", {}, {"ids letters": letters, "ids ends": ends}), AllIDs)


def test_damaged_texts_are_refused() -> None:
    good = pl.Series(["ab", "c"])
    for ends in ([1, 9], [3, 2], [-1, 3], [1, 2]):
        with pytest.raises(RefusedError, match="damaged texts"):
            unpack(Message("ids", {}, {**pack(AllIDs(good)).tensors, "ids ends": torch.tensor(ends)}), AllIDs)
    for name, value in (("ids letters", torch.tensor([255, 255, 255]).byte()), ("ids ends", torch.tensor([2.0, 3.0]))):
        tensors = {**pack(AllIDs(good)).tensors, name: value}
        with pytest.raises(RefusedError, match="ids"):
            unpack(Message("ids", {}, tensors), AllIDs)
    with pytest.raises(RefusedError, match="without 'ids'"):
        unpack(Message("ids"), AllIDs)


def header(facts: str = "", tensors: Sequence[TensorHeader] = ()) -> Frame:
    return Frame(Header("", 0, 0, 0, 0, "k", facts, tuple(tensors)), b"")


def tensor(dtype: str, *shape: int) -> TensorHeader:
    return TensorHeader("a", dtype, shape)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        ([Frame(None, b"x")], "without a header"),
        ([Frame(None, b"")], "without a header"),
        (
            [header(tensors=[tensor("int8", 9)]), Frame(None, b"")],
            "empty frame",
        ),
        ([header(tensors=[tensor("float32", 1 << 40)])], "larger than the"),
        ([header(tensors=[tensor("float32", 1 << 63, 1 << 63)])], "larger than the"),
        ([header(tensors=[tensor("float32", 1 << 63, 0)])], "impossible shape"),
        ([header(tensors=[tensor("object", 1)])], "unknown type: 'object'"),
        ([header(tensors=[tensor("int8", *[1] * 17)])], "17 dimensions"),
        ([header(tensors=[tensor("int8", 0)] * 2)], "same name"),
        ([header(tensors=[tensor("int8", 0)] * 100_001)], "100001 tensors"),
        ([header(facts="{")], "not JSON"),
        ([header(facts="[]")], "not a JSON object"),
        ([header(facts="[" * 100_000)], "not JSON"),
        ([header(tensors=[tensor("int8", 9)])] * 2, "before the one before it has ended"),
        (
            [header(tensors=[tensor("int8", 9)]), Frame(None, b"x" * 17)],
            "more bytes than its header",
        ),
    ],
)
def test_what_is_refused(stream: list[Frame], why: str) -> None:
    assembler = Assembler(MOST)
    *before, last = stream
    for frame in before:
        assembler.feed(frame)
    with pytest.raises(RefusedError, match=why):
        assembler.feed(last)


def test_memory_follows_what_has_come_not_what_is_promised() -> None:
    assembler = Assembler(1 << 40)
    tracemalloc.start()
    assembler.feed(header(tensors=[tensor("uint8", 1 << 39)]))
    assembler.feed(Frame(None, b"x" * 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.slow
def test_a_hundred_thousand_spoilt_streams_do_no_harm() -> None:
    """Flip, cut, double, reorder and invent frames: the decoder gives a message or refuses, and nothing else."""
    generator = np.random.default_rng(2021)
    whole = [
        to_wire(frame).SerializeToString()
        for message in (
            Message("weights", {"a": 1}, {"w": torch.randn(3, 2), "b": torch.arange(3)}, STAMP),
            pack(AllIDs(pl.Series(["x", "yy"])), STAMP),
            Message("ready", {"rows": [1, 2], "text": "ü"}),
        )
        for frame in frames(message)
    ]
    refused = accepted = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100_000):
        assembler = Assembler(1 << 16)
        for _ in range(int(generator.integers(1, 4))):
            data = bytearray(whole[generator.integers(len(whole))])
            for _ in range(int(generator.integers(0, 4))):
                kind = generator.integers(4)
                if kind == 0 and data:
                    data[generator.integers(len(data))] = generator.integers(256)
                elif kind == 1:
                    del data[generator.integers(len(data) + 1) :]
                elif kind == 2:
                    data += generator.bytes(int(generator.integers(12)))
                else:
                    place = int(generator.integers(len(data) + 1))
                    data[place:place] = data[: generator.integers(len(data) + 1)]
            try:
                result = assembler.feed(parse_frame(bytes(data)))
            except RefusedError:
                refused += 1
                break
            accepted += result is not None
            if result is not None:
                json.dumps(result.facts)
                assert result.nbytes <= 1 << 16
    assert refused > 10_000
    assert accepted > 5_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_names_that_users_choose_are_no_fields() -> None:
    """Whatever silos, weights and columns are called, tensors travel by the place in their field."""
    envelope = pack(LaterGradients((torch.zeros(1), torch.ones(2))))
    assert list(envelope.tensors) == ["scores/0", "scores/1"]
    assert envelope.facts == {"scores": 2}
    ids, facts = pl.Series([1]), (pl.Series(["a"]),)
    keys = ClientKeys("d", False, True, ("ids", "facts"), "x.csv", ("ids letters",), ids, facts)
    assert set(pack(keys).tensors) == {"ids", "facts/0 letters", "facts/0 ends"}
    got = unpack(carry(pack(keys)), ClientKeys)
    assert (got.columns, got.named, got.facts[0].to_list()) == (("ids", "facts"), ("ids letters",), ["a"])


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda m: replace(m, kind="embed"), "received 'embed' where 'later gradients' is expected"),
        (lambda m: replace(m, facts={}), "without 'scores'"),
        (lambda m: replace(m, facts={"scores": 3}), "without 'scores'"),
        (lambda m: replace(m, facts={"scores": -1}), "without 'scores'"),
        (lambda m: replace(m, facts={"scores": True}), "without 'scores'"),
        (lambda m: replace(m, facts={"scores": 2, "more": 1}), "unexpected field 'more'"),
        (lambda m: replace(m, facts={"scores": 1}), "unexpected field 'scores/1'"),
        (lambda m: replace(m, tensors={**m.tensors, "x": torch.zeros(1)}), "unexpected field 'x'"),
    ],
)
def test_a_message_has_its_fields_and_no_others(spoil: Callable[[Message], Message], why: str) -> None:
    envelope = pack(LaterGradients((torch.zeros(1), torch.ones(2))))
    assert unpack(envelope, LaterGradients).scores[1].tolist() == [1, 1]
    with pytest.raises(RefusedError, match=why):
        unpack(spoil(envelope), LaterGradients)


def test_values_are_of_the_types_that_a_message_says() -> None:
    envelope = pack(ClientKeys("d", False, True, ("a",), "x.csv", (), pl.Series([1]), ()))
    for name, value in (("digest", 7), ("unchanged", 1), ("columns", [1]), ("columns", "a"), ("file", None)):
        with pytest.raises(RefusedError, match=f"without '{name}', or with a malformed one"):
            unpack(replace(envelope, facts={**envelope.facts, name: value}), ClientKeys)


def test_every_kind_stands_for_one_type() -> None:
    with pytest.raises(ValueError, match="two types of messages of the kind 'embed'"):
        message("embed")(type("Other", (), {}))
    assert len(set(KINDS.values())) == len(KINDS)


@pytest.mark.parametrize("shape", [(0, 1 << 31, 1 << 31), (1 << 62, 0, 4)])
def test_empty_tensors_of_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RefusedError, match="impossible shape"):
        Assembler(MOST).feed(header(tensors=[tensor("float32", *shape)]))
