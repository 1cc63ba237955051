"""Calls into torch that are not public. Each is tried once; where it fails, the public way serves."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])
Gradients = tuple[Tensor | None, ...]


def first_that_works(*ways: F, trial: Callable[[F], bool]) -> F:
    """Return the first way that passes a trial; the last one needs none."""
    for way in ways[:-1]:
        try:
            if trial(way):
                return way
        except Exception:  # noqa: S112 - another torch may not have it, or not in this form
            continue
    return ways[-1]


def _engine_backward(outputs: Tensor, gradients: Tensor, weights: tuple[Tensor, ...]) -> Gradients:
    """What ``torch.autograd.grad`` calls after checks that take a fifth of a small network's step."""
    result: Gradients = torch.autograd.Variable._execution_engine.run_backward(
        (outputs,), (gradients,), False, False, weights, True, accumulate_grad=False
    )
    return result


def _public_backward(outputs: Tensor, gradients: Tensor, weights: tuple[Tensor, ...]) -> Gradients:
    return torch.autograd.grad(outputs, weights, gradients, allow_unused=True)


def _carries_back(way: Callable[[Tensor, Tensor, tuple[Tensor, ...]], Gradients]) -> bool:
    with torch.enable_grad():
        used, unused = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        one, two = way(3 * used, torch.full((2,), 2.0), (used, unused))
    return one is not None and torch.equal(one, torch.full((2,), 6.0)) and two is None and used.grad is None


def _foreach_add(tensors: list[Tensor], changes: list[Tensor], factor: float) -> None:
    torch._foreach_add_(tensors, changes, alpha=factor)


def _public_add(tensors: list[Tensor], changes: list[Tensor], factor: float) -> None:
    for tensor, change in zip(tensors, changes, strict=True):
        tensor.add_(change, alpha=factor)


def _adds(way: Callable[[list[Tensor], list[Tensor], float], None]) -> bool:
    tensors = [torch.ones(2), torch.ones(3, dtype=torch.float64)]
    way(tensors, [torch.ones(2), torch.full((3,), 2.0)], -0.5)
    return torch.equal(tensors[0], torch.full((2,), 0.5)) and torch.equal(tensors[1], torch.zeros(3).double())


def _foreach_copy(tensors: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(tensors, sources)


def _public_copy(tensors: list[Tensor], sources: list[Tensor]) -> None:
    for tensor, source in zip(tensors, sources, strict=True):
        tensor.copy_(source)


def _copies(way: Callable[[list[Tensor], list[Tensor]], None]) -> bool:
    tensors = [torch.zeros(2), torch.zeros(())]
    way(tensors, [torch.ones(2), torch.ones(())])
    return torch.equal(tensors[0], torch.ones(2)) and bool(tensors[1] == 1)


run_backward = first_that_works(_engine_backward, _public_backward, trial=_carries_back)
"""Return the gradients at weights, given the gradient at outputs; ``None`` for weights they do not depend on."""
add_all_ = first_that_works(_foreach_add, _public_add, trial=_adds)
"""Add changes times a factor to tensors, in place."""
copy_all_ = first_that_works(_foreach_copy, _public_copy, trial=_copies)
"""Copy tensors, in place."""


def add_scaled_(block: Mapping[str, Tensor], changes: Mapping[str, Tensor], factor: float) -> None:
    """Add changes times a factor to the tensors of a block that they are named after, in place."""
    if changes:
        add_all_([block[name] for name in changes], list(changes.values()), factor)


_CALLS = count(1)


def is_batched(tensor: Tensor) -> bool:
    """Tell whether a tensor stands for many in ``torch.func.vmap``: its values cannot be looked at."""
    try:
        return bool(torch._C._functorch.is_batchedtensor(tensor))
    except AttributeError:
        return type(tensor) is not Tensor and not isinstance(tensor, torch.nn.Parameter)


def writes(tensor: Tensor) -> int:
    """Return how often a tensor was written to; a new number each time where torch does not count."""
    return tensor._version if hasattr(tensor, "_version") else next(_CALLS)
