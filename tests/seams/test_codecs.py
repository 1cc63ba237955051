"""Codecs: what travels, by hand; the compiled rounding; a user's own; what is wrong is named."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tdcd
from seams.test_aggregators import train as train_with
from support import CODINGS, distance, problem, same
from tdcd.compute import kernels
from tdcd.compute.kernel import Kernel
from tdcd.core.aggregators import Median
from tdcd.core.codecs import CODECS, BFloat16, Codec, Codecs, Float16, Plain, row_size
from tdcd.core.codecs.base import carry, carry_each
from tdcd.core.local_steps import LocalSteps
from tdcd.core.state import SiloState
from tdcd.core.topology import deal
from tdcd.training.settings import CODEC

HALVES: tuple[Codec, ...] = (Float16(), BFloat16())


def train(codec: Any, **more: Any) -> tdcd.Result:
    return train_with(None, codec=codec, **more)


def test_every_kind_of_the_package_is_drawn_in_the_contract_suite() -> None:
    assert {type(codec) for codecs in CODINGS for codec in (codecs.rows, codecs.weights)} == set(CODECS.values())


@pytest.mark.parametrize(
    ("codec", "numbers"),
    [
        (Plain(), [1 / 3, 70000.0, 1e-9]),
        (Float16(), [0.333251953125, float("inf"), 0.0]),
        (BFloat16(), [0.333984375, 70144.0, 137 * 2.0**-37]),
    ],
)
def test_what_each_makes_of_three_numbers(codec: Codec, numbers: list[float]) -> None:
    for dtype in (torch.float32, torch.float64):
        seen = carry(codec, torch.tensor([1 / 3, 70000.0, 1e-9], dtype=dtype))
        assert torch.equal(seen, torch.tensor(numbers, dtype=dtype))


@pytest.mark.parametrize("codec", [*HALVES, Plain()], ids=repr)
def test_it_is_written_as_it_is_read(codec: Codec) -> None:
    assert CODEC.read(CODEC.write(codec)) == codec


def test_bytes_of_a_message() -> None:
    assert row_size(Plain(), 3, torch.float32) == (12, 0)
    assert row_size(Float16(), 3, torch.float64) == (6, 0)
    assert row_size(Bytes(), 3, torch.float32) == (3, 4)
    with pytest.raises(tdcd.ModelError, match=r"codec '\S+:Uneven': 1 rows take .* must grow evenly"):
        row_size(Uneven(), 3, torch.float32)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", HALVES, ids=repr)
def test_kernels_round_as_torch_does(kind: str, dtype: torch.dtype, codec: Codec) -> None:
    """Changes of all sizes: below the smallest numbers of half precision, and above the largest."""
    if why := kernels.load("chain")[1]:
        pytest.skip(why)
    made = problem([kind], [1], samples=40, batch=40, steps=LocalSteps(2), dtype=dtype)
    task = made.tasks["silo-0"]
    exact, short = Kernel(replace(task, updates=Plain())), Kernel(replace(task, updates=codec))
    block, shards, still = task.network.initial(), deal(made.round(1).batch, task.roster), torch.zeros(40, 3).to(dtype)
    numbers = 0
    for power in range(-36, 24, 2):
        round_ = replace(made.round(1), rate=2.0**power)
        changes, rounded = (path.descend(block, round_, shards, still).result() for path in (exact, short))
        for name, tensor in changes.items():
            assert torch.equal(rounded[name], carry(codec, tensor)), (name, power)
            numbers += tensor.numel()
    assert numbers > 2000


@pytest.mark.parametrize("codec", HALVES, ids=repr)
def test_a_hub_keeps_all_digits_of_its_own_weights(codec: Codec) -> None:
    """Steps that are small against the weights add up, though the weights themselves travel in short numbers."""
    coded = problem(["linear"], [2], codecs=Codecs(weights=codec), rate=1e-5, samples=20, batch=20)
    exact = problem(["linear"], [2], rate=1e-5, samples=20, batch=20)
    moved = distance(exact.run(exact.engine("auto"), 20), exact.initial())
    apart = distance(coded.run(coded.engine("auto"), 20), exact.run(exact.engine("auto"), 20))
    assert 0 < apart < 0.02 * moved


def test_running_statistics_travel_as_they_are() -> None:
    made = problem(["cnn-batchnorm"], [2], codecs=Codecs(weights=Float16()))
    task = made.tasks["silo-0"]
    sent = made.codecs.carry_block(task.sent(SiloState(task.network.initial())), task.network.trainable)
    for name, tensor in task.network.initial().items():
        kept = tensor if name in task.network.buffers else tensor.half().double()
        assert torch.equal(sent[name], kept)


def test_the_ledger_counts_what_travels() -> None:
    plain, both = (problem(["mlp", "linear"], [3, 2], codecs=codecs) for codecs in (CODINGS[0], CODINGS[-1]))
    rows, weights = (
        problem(["mlp", "linear"], [3, 2], codecs=codecs)
        for codecs in (Codecs(rows=Float16()), Codecs(weights=Float16()))
    )
    sent = [made.training().ledger() for made in (plain, rows, weights, both)]
    traffic = [ledger.traffic(ledger.counts(plain.round(1).batch.numpy())).total for ledger in sent]
    assert traffic[3] * 4 == traffic[0]
    assert traffic[1] + traffic[2] == traffic[0] + traffic[3]
    assert traffic[1] < traffic[0] > traffic[2]


def test_private_labels_and_a_median_take_it() -> None:
    for path in ("loop", "stacked", "layers"):
        made = problem(["mlp", "linear"], [3, 2], codecs=CODINGS[-1], aggregator=Median())
        assert distance(made.run(made.engine(path), 3), made.run(made.engine("oracle"), 3)) < 1e-9


# A user's own


@dataclass(frozen=True)
class Bytes:
    """One byte a number, in steps of the largest over 127; the step travels in front, as four bytes."""

    elementwise: bool = False

    def encode(self, tensor: Tensor) -> Tensor:
        step = (tensor.abs().max().float() / 127).clamp(min=1e-30)
        return torch.cat([step.reshape(1).view(torch.uint8), (tensor / step).round().to(torch.int8).view(-1).byte()])

    def decode(self, encoded: Tensor, like: Tensor) -> Tensor:
        step = encoded[:4].clone().view(torch.float32)
        return (encoded[4:].view(torch.int8).to(like.dtype) * step.to(like.dtype)).reshape(like.shape)


class Uneven(Bytes):
    def encode(self, tensor: Tensor) -> Tensor:
        return torch.cat([super().encode(tensor), torch.zeros(len(tensor) ** 2, dtype=torch.uint8)])


class OwnHalf(Float16):
    """Half precision under another name: no path knows it."""


def test_a_codec_of_ones_own_is_close_and_smaller(tmp_path: Any) -> None:
    exact, coded = train(None), train(Bytes(), directory=tmp_path / "run")
    assert 0 < distance(coded.blocks, exact.blocks) < 0.05
    assert 0.25 < coded.history[-1].traffic.total / exact.history[-1].traffic.total < 0.6
    again = train(Bytes(), directory=tmp_path / "run", resume=True)
    assert same(again.blocks, coded.blocks)


@pytest.mark.parametrize("path", ["loop", "stacked", "layers", "auto"])
def test_a_codec_of_ones_own_is_honoured_on_every_path(path: Any) -> None:
    assert distance(train(OwnHalf(), compute=path).blocks, train(Float16(), compute="loop").blocks) < 2e-4
    assert distance(train(Bytes(), compute=path).blocks, train(Bytes(), compute="loop").blocks) < 5e-3


def test_a_path_that_cannot_honour_it_is_refused() -> None:
    for path, why in (("one-step", "its codec is for each client's weights"), ("kernel", "do not know the codec Own")):
        with pytest.raises(tdcd.ModelError, match=why):
            train(OwnHalf(), compute=path)
    with pytest.raises(tdcd.ModelError, match="the oracle does not know the codec OwnHalf"):
        train(OwnHalf(), engine="oracle")


def test_each_message_is_encoded_by_itself() -> None:
    stack = torch.tensor([[1.0, 0.5], [100.0, 50.0]])
    assert torch.equal(carry_each(Bytes(), stack)[0], carry(Bytes(), stack[0]))
    assert not torch.equal(carry(Bytes(), stack)[0], carry(Bytes(), stack[0]))


@dataclass(frozen=True)
class Wrong(Bytes):
    encoded: Any = None
    decoded: Any = None

    def encode(self, tensor: Tensor) -> Tensor:
        return self.encoded(super().encode(tensor), tensor) if self.encoded else super().encode(tensor)

    def decode(self, encoded: Tensor, like: Tensor) -> Tensor:
        found = super().decode(encoded, like)
        return self.decoded(found) if self.decoded else found


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"encoded": lambda e, t: None}, "'what it encodes' became NoneType, not a tensor"),
        ({"encoded": lambda e, t: e[: 5 + int(t.abs().sum() > 0)]}, "'what it encodes' became .* of shape"),
        ({"encoded": lambda e, t: 1 / 0}, "it failed: ZeroDivisionError"),
        ({"decoded": lambda t: t.half()}, "'what it decodes' became torch.float16"),
        ({"decoded": lambda t: t[:1]}, "'what it decodes' became .* of shape"),
        ({"decoded": lambda t: 1 / 0}, "it failed: ZeroDivisionError"),
    ],
)
def test_what_a_wrong_one_makes_is_refused_and_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(tdcd.ModelError, match=r"codec '.*:Wrong': " + message):
        train(Wrong(**wrong))


class InPlace(OwnHalf):
    """Changes what it is given."""

    def encode(self, tensor: Tensor) -> Tensor:
        return super().encode(tensor.clamp_(-0.1, 0.1))


class Aside(OwnHalf):
    def encode(self, tensor: Tensor) -> Tensor:
        return super().encode(tensor.clamp(-0.1, 0.1))


def test_one_that_changes_what_it_is_given_changes_a_copy() -> None:
    for path in ("loop", "stacked"):
        assert same(train(InPlace(), compute=path).blocks, train(Aside(), compute=path).blocks)


def test_numbers_that_become_infinite_end_the_training() -> None:
    with pytest.raises(tdcd.DivergedError, match="no longer finite"):
        train(Wrong(decoded=lambda t: t / 0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"codec": "half"}, "unknown kind of codec 'half'"),
        ({"codec": {"kind": "float16", "of": "rows"}}, "unknown key 'of' of the kind 'float16'"),
        ({"codec": 3}, "it is no codec: .* not int, which lacks decode, elementwise, encode"),
        ({"codec_for": "weights"}, 'codec_for = "weights": no codec is named'),
        ({"codec": "float16", "codec_for": "rows"}, "codec_for"),
    ],
)
def test_settings_that_are_wrong(given: dict[str, Any], message: str) -> None:
    base = {"loss": "cross-entropy", "rounds": 1, "rate": 0.1}
    with pytest.raises(ValueError, match=message):
        tdcd.Settings.model_validate(base | given)
