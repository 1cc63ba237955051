import json
import resource
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from tdcd.data.arrays import Array
from tdcd.deployment import messages
from tdcd.deployment.messages import (
    CHUNK,
    Assembler,
    Message,
    RefusedError,
    Stamp,
    array_tensors,
    frames,
    tensors_array,
)
from tdcd.deployment.wire.tdcd_pb2 import Frame, Header, TensorHeader

MOST = 1 << 24
STAMP = Stamp("f00", 3, 7, 1)


def carry(message: Message, most: int = MOST) -> Message:
    assembler = Assembler(most)
    *before, last = [assembler.feed_bytes(frame.SerializeToString()) for frame in frames(message)]
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
    for values in (np.array(texts, dtype=np.str_), np.array(numbers, dtype=np.int64)):
        result = tensors_array("ids", carry(Message("keys", {}, array_tensors("ids", values))))
        assert result.tolist() == values.tolist()


def test_texts_with_nul_are_refused() -> None:
    """Arrays of texts do not tell a NUL at the end from the end."""
    letters, ends = torch.tensor([97, 0], dtype=torch.uint8), torch.tensor([2])
    with pytest.raises(RefusedError, match="the character NUL in a text of 'ids'"):
        tensors_array("ids", Message("keys", {}, {"ids letters": letters, "ids ends": ends}))


def test_damaged_texts_are_refused() -> None:
    good: Array = np.array(["ab", "c"])
    for name, value in (("ids ends", [1, 9]), ("ids ends", [3, 2]), ("ids letters", [255, 255, 255])):
        tensors = array_tensors("ids", good)
        tensors[name] = torch.tensor(value, dtype=tensors[name].dtype)
        with pytest.raises(RefusedError, match="ids"):
            tensors_array("ids", Message("keys", {}, tensors))
    with pytest.raises(RefusedError, match="without 'ids'"):
        tensors_array("ids", Message("keys"))


def header(**log: object) -> Frame:
    return Frame(header=Header(kind="k", **log))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        ([Frame(chunk=b"x")], "without a header"),
        ([Frame()], "without a header"),
        (
            [header(tensors=[TensorHeader(name="a", dtype="int8", shape=[9])]), Frame()],
            "empty frame",
        ),
        ([header(tensors=[TensorHeader(name="a", dtype="float32", shape=[1 << 40])])], "larger than the"),
        ([header(tensors=[TensorHeader(name="a", dtype="float32", shape=[1 << 63, 1 << 63])])], "larger than the"),
        ([header(tensors=[TensorHeader(name="a", dtype="float32", shape=[1 << 63, 0])])], "strange shape"),
        ([header(tensors=[TensorHeader(name="a", dtype="object", shape=[1])])], "unknown type: 'object'"),
        ([header(tensors=[TensorHeader(name="a", dtype="int8", shape=[1] * 17)])], "17 dimensions"),
        ([header(tensors=[TensorHeader(name="a", dtype="int8", shape=[0])] * 2)], "same name"),
        ([header(tensors=[TensorHeader(name="a", dtype="int8", shape=[0])] * 100_001)], "100001 tensors"),
        ([header(facts="{")], "not JSON"),
        ([header(facts="[]")], "not a JSON object"),
        ([header(facts="[" * 100_000)], "not JSON"),
        ([header(tensors=[TensorHeader(name="a", dtype="int8", shape=[9])])] * 2, "before the one before it has ended"),
        (
            [header(tensors=[TensorHeader(name="a", dtype="int8", shape=[9])]), Frame(chunk=b"x" * 17)],
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


def test_bytes_that_are_no_frame_are_refused() -> None:
    with pytest.raises(RefusedError, match="not a tdcd frame"):
        Assembler(MOST).feed_bytes(b"\xff\xff\xff")


def test_memory_follows_what_has_come_not_what_is_promised() -> None:
    assembler = Assembler(1 << 40)
    tracemalloc.start()
    assembler.feed(header(tensors=[TensorHeader(name="a", dtype="uint8", shape=[1 << 39])]))
    assembler.feed(Frame(chunk=b"x" * 1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_hundred_thousand_spoilt_streams_do_no_harm() -> None:
    """Flip, cut, double, reorder and invent frames: the decoder gives a message or refuses, and nothing else."""
    generator = np.random.default_rng(2021)
    whole = [
        frame.SerializeToString()
        for message in (
            Message("weights", {"a": 1}, {"w": torch.randn(3, 2), "b": torch.arange(3)}, STAMP),
            Message("keys", {}, array_tensors("ids", np.array(["x", "yy"])), STAMP),
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
                result = assembler.feed_bytes(bytes(data))
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
    """Whatever silos and weights are called, their fields are not those of the protocol."""
    fields = {messages.OTHERS, messages.WITHOUT, "embeddings", "rows", "lost", "away", "gradients", "train", "labels"}
    for name in (*fields, "w", "of", "of x", "w x", ""):
        assert not {messages.weight(name), messages.requester(name)} & fields
        assert messages.weight(name) != messages.requester(name)
    with pytest.raises(RefusedError, match="unexpected tensor 'w x'"):
        messages.gradient_requests({messages.weight("x"): torch.zeros(1), messages.WITHOUT: torch.zeros(1)})
    asking = {messages.requester("without"): torch.zeros(1)}
    assert messages.gradient_requests(asking | {messages.WITHOUT: torch.ones(1)}) == asking
