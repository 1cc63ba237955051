"""Threads that share the work of a round.

Work is cut into pieces by what the work is, never by how many threads there are, and results are added up in a fixed
order: the numbers are the same whatever the number of workers.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from tdcd.compute.footprint import bytes_per_row
from tdcd.compute.modules import weights_of
from tdcd.core.task import SiloTask

S = TypeVar("S")
T = TypeVar("T")

_HEAVY_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)
_HEAVY_WEIGHTS, _HEAVY_ROW = 100_000, 8192


class Threads:
    """A pool of threads, each with one thread of torch's own; a single worker is the caller itself."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = (
            ThreadPoolExecutor(count, "tdcd", initializer=torch.set_num_threads, initargs=(1,)) if count > 1 else None
        )

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """Return the function of every item, in order. A single item is done by the caller."""
        items = list(items)
        return [function(item) for item in items] if len(items) == 1 else list(self.stream(function, items))

    def stream(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """Yield the function of every item, in order, with no more than a few results waiting to be taken."""
        if self._pool is None:
            yield from map(function, items)
            return
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(self._pool.submit(function, item))
                if len(waiting) > 2 * self.count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


ALONE = Threads(1)
"""No threads: the caller does everything."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch's own operations to one thread, and put its setting back after."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def heavy(task: SiloTask) -> bool:
    """Tell whether a network's operations are long enough to be worth a thread of their own.

    Python's threads take turns between operations; on small networks they only wait for each other, and are several
    times slower when another program wants one of the cores.
    """
    module = task.network.module
    if any(isinstance(layer, _HEAVY_LAYERS) for layer in module.modules()) or weights_of(module) >= _HEAVY_WEIGHTS:
        return True
    return (bytes_per_row(task) or 0) >= _HEAVY_ROW
