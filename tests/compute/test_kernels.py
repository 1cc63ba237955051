"""Kernels refuse what does not fit, by a code, before they read or write anything."""

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from support import problem
from tdcd.compute import kernels
from tdcd.compute.kernel import Kernel
from tdcd.compute.kernels import Span, check, span
from tdcd.core.topology import deal
from tdcd.errors import ModelError

pytestmark = pytest.mark.skipif(bool(kernels.load("chain")[1]), reason=f"no kernel here: {kernels.load('chain')[1]}")

ROWS, WIDTH, SAMPLES = 4, 3, 9


class Call:
    """A call of a kernel that fits, one argument of which can be replaced."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        layers = [2, 0, 0, 5, 1, 1, 4, 1, 1, 1, 1, 0, 0, 0, 0, 4, 1, 1, WIDTH, 1, 1, 1, 1, 0, 0]
        numbers = [2, 5, 4, WIDTH] if kind == "lstm" else layers
        chain = [(4, 5), (4,), (WIDTH, 4), (WIDTH,)]
        self.shapes = [(16, 5), (16, 4), (16,), (16,), (WIDTH, 4), (WIDTH,)] if kind == "lstm" else chain
        self.weights: list[Tensor | None] = [torch.randn(shape, dtype=torch.float64) for shape in self.shapes]
        self.arguments: dict[str, Any] = {
            "numbers": numbers,
            "features": torch.randn(SAMPLES, 2 if kind == "lstm" else 1, 5, dtype=torch.float64),
            "samples": torch.tensor([0, 3, 8, 1]),
            "E": WIDTH,
            "loss": 0,
            "stale": torch.randn(ROWS, WIDTH, dtype=torch.float64),
            "labels": None,
            "classes": torch.randint(WIDTH, (SAMPLES,)),
            "share": None,
            "steps": 2,
            "clients": 2,
            "firsts": torch.tensor([0, 1]),
            "counts": torch.tensor([1, 3]),
            "groups": 2,
            "returns": 0,
            "sums": torch.zeros(sum(torch.Size(shape).numel() for shape in self.shapes), dtype=torch.float64),
            "out": torch.zeros(ROWS, WIDTH, dtype=torch.float64),
        }

    def _network(self) -> tuple[list[Any], object]:
        a = self.arguments
        numbers = (ctypes.c_int * len(a["numbers"]))(*a["numbers"])
        weights = (Span * len(self.weights))(*(span(w, torch.float64) for w in self.weights))
        return [
            Span(ctypes.addressof(numbers), len(numbers)),
            Span(ctypes.addressof(weights), len(weights)),
            span(a["features"], torch.float64),
            span(a["samples"], torch.int64),
            a["E"],
        ], (numbers, weights)

    def descend(self, **more: Any) -> int:
        self.arguments |= more
        a, (network, kept) = self.arguments, self._network()
        library = kernels.load(self.kind)[0]
        assert library is not None
        code: int = library.tdcd_descend_double(
            *network, a["loss"], 1.0, span(a["stale"], torch.float64), span(a["labels"], torch.float64),
            span(a["classes"], torch.int64), span(a["share"], torch.float64), a["steps"], 0.1, a["clients"],
            span(a["firsts"], torch.int64), span(a["counts"], torch.int64), 1, a["groups"],
            span(a["sums"], torch.float64), a["returns"], 2,
        )  # fmt: skip
        del kept
        return code

    def embed(self, **more: Any) -> int:
        self.arguments |= more
        a, (network, kept) = self.arguments, self._network()
        library = kernels.load(self.kind)[0]
        assert library is not None
        code: int = library.tdcd_embed_double(*network, span(a["out"], torch.float64), 2)
        del kept
        return code


KINDS = ("chain", "lstm")


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_fits(kind: str) -> None:
    assert Call(kind).descend() == 0
    call = Call(kind)
    assert call.embed() == 0
    assert call.arguments["out"].abs().sum() > 0
    assert Call(kind).embed(samples=torch.empty(0, dtype=torch.int64), out=torch.empty(0, WIDTH).double()) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"stale": torch.zeros(ROWS, 0, dtype=torch.float64)}, 3),
        ({"stale": torch.zeros(ROWS, WIDTH - 1, dtype=torch.float64)}, 3),
        ({"stale": torch.zeros(ROWS, WIDTH + 1, dtype=torch.float64)}, 3),
        ({"stale": torch.zeros(ROWS - 1, WIDTH, dtype=torch.float64)}, 3),
        ({"stale": None}, 3),
        ({"loss": 4}, 3),
        ({"loss": -1}, 3),
        ({"loss": 1, "labels": torch.zeros(SAMPLES, WIDTH).double()}, 3),
        ({"loss": 2}, 3),
        ({"loss": 2, "labels": torch.zeros(SAMPLES, 1).double()}, 3),
        ({"classes": torch.zeros(SAMPLES - 1, dtype=torch.int64)}, 3),
        ({"classes": None}, 3),
        ({"share": torch.ones(ROWS - 1).double()}, 3),
        ({"samples": torch.tensor([0, 3, 9, 1])}, 2),
        ({"samples": torch.tensor([0, -1, 8, 1])}, 2),
        ({"features": torch.zeros(11).double()}, 2),
        ({"E": WIDTH + 1}, 1),
        ({"E": 0}, 1),
        ({"numbers": [2, 5, 4]}, 1),
        ({"numbers": []}, 1),
        ({"numbers": [0] * 25}, 1),
        ({"numbers": [1 << 30, 5, 4, WIDTH]}, 1),
        ({"firsts": torch.tensor([0, 2])}, 4),
        ({"firsts": torch.tensor([-1, 1])}, 4),
        ({"counts": torch.tensor([0, 3])}, 4),
        ({"counts": torch.tensor([1])}, 4),
        ({"clients": 0}, 4),
        ({"groups": 3}, 4),
        ({"sums": torch.zeros(1).double()}, 5),
        ({"steps": -1}, 5),
        ({"returns": -1}, 5),
        ({"returns": 4}, 5),
    ],
)
def test_what_does_not_fit_is_refused(kind: str, more: dict[str, Any], code: int) -> None:
    assert Call(kind).descend(**more) == code


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_another_size_are_refused(kind: str) -> None:
    for number, shape in enumerate(Call(kind).shapes):
        call = Call(kind)
        call.weights[number] = torch.zeros(torch.Size(shape).numel() + 1, dtype=torch.float64)
        assert call.descend() == 1
        assert call.embed() == 1
    call = Call(kind)
    call.weights[0] = None
    assert call.embed() == 1
    call = Call(kind)
    call.weights.pop()
    assert call.embed() == 1


def test_codes_are_exceptions() -> None:
    check(0)
    with pytest.raises(MemoryError, match="out of memory"):
        check(6)
    for code in (1, 2, 3, 4, 5, 7):
        with pytest.raises(ValueError, match=r"\w"):
            check(code)


def test_tensors_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match=r"torch\.float32"):
        span(torch.zeros(3), torch.float64)
    with pytest.raises(TypeError, match="contiguous"):
        span(torch.zeros(3, 4).double().T, torch.float64)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(12, 0), torch.zeros(12, 2), torch.zeros(12, 3), torch.zeros(11, 3).double()]
)
def test_the_silo_is_named(wrong: Tensor) -> None:
    made = problem(["mlp"], [3])
    task, round_ = made.tasks["silo-0"], made.round(1)
    with pytest.raises(ModelError, match="silo 'silo-0': its network failed in the local steps"):
        Kernel(task).descend(task.network.initial(), round_, deal(round_.batch, task.roster), wrong)
