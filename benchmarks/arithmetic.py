"""The limit that no program can beat: the multiplications of a round over what this machine multiplies in a second."""

import time

import torch
from torch import Tensor, nn

from workloads import Workload


def forward_flops(module: nn.Module, rows: Tensor) -> float:
    """Return the floating-point operations of the matrix products in a forward pass of one row."""
    total = 0.0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        nonlocal total
        if isinstance(layer, nn.Linear):
            total += 2 * layer.in_features * inputs[0].numel() / layer.in_features * layer.out_features
        elif isinstance(layer, nn.Conv1d | nn.Conv2d):
            assert isinstance(output, Tensor)  # noqa: S101
            total += 2 * layer.weight[0].numel() * output.numel()
        elif isinstance(layer, nn.RNNBase):
            weights = sum(w.numel() for name, w in layer.named_parameters() if "weight" in name)
            total += 2 * weights * inputs[0].shape[0] * inputs[0].shape[1]

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        module(rows)
    for hook in hooks:
        hook.remove()
    return total / len(rows)


def round_flops(made: Workload) -> float:
    """Return those of a whole round: a forward pass for the exchange, forward and twice back for each local step."""
    rows = len(made.round.batch)
    return sum(
        forward_flops(task.network.module, task.features[:2]) * rows * (1 + 3 * task.steps.count)
        for task in made.tasks.values()
    )


def product_rate(threads: int, size: int = 2048) -> float:
    """Return the operations a second of a large float32 matrix product."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    torch.set_num_threads(before)
    return 2 * size**3 / best
