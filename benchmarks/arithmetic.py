"""The limit that no program can beat: the multiplications of a round over what this machine multiplies in a second."""

import time

import torch
from torch import Tensor, nn

from workloads import Workload


def forward_flops(module: nn.Module, rows: Tensor) -> tuple[float, float]:
    """Return the operations of the matrix products in a forward pass of one row.

    All of them, and those on the row itself: it has no gradient.
    """
    parts: list[tuple[float, float]] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        if isinstance(layer, nn.Linear):
            whole = 2.0 * inputs[0].numel() * layer.out_features
            parts.append((whole, whole))
        elif isinstance(layer, nn.Conv1d | nn.Conv2d):
            assert isinstance(output, Tensor)  # noqa: S101
            whole = 2.0 * layer.weight[0].numel() * output.numel()
            parts.append((whole, whole))
        elif isinstance(layer, nn.RNNBase):
            per_number = 2.0 * inputs[0].shape[0] * inputs[0].shape[1]
            weights = {name: per_number * w.numel() for name, w in layer.named_parameters() if "weight" in name}
            parts.append((sum(weights.values()), weights["weight_ih_l0"]))

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        module(rows)
    for hook in hooks:
        hook.remove()
    return sum(whole for whole, _ in parts) / len(rows), parts[0][1] / len(rows)


def round_flops(made: Workload) -> float:
    """Return those of a round: forward for the exchange; forward and back, to weights and inputs, in each step."""
    total = 0.0
    for task in made.tasks.values():
        whole, first = forward_flops(task.network.module, task.features[:2])
        total += len(made.round.batch) * (whole + task.steps.count * (3 * whole - first))
    return total


def product_rate(threads: int, size: int = 2048) -> float:
    """Return the operations a second of a large float32 matrix product."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(30):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(before)
    return 2 * size**3 / best
