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

from tdcd.core.task import SiloTask

S = TypeVar("S")
T = TypeVar("T")

LARGE = 100_000
"""Weights from which a network's operations are long enough to be worth a thread of their own."""
_LARGE_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase)


class Workers:
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


ALONE = Workers(1)
"""No threads: the caller does everything."""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fitting_workers(tasks: Iterable[SiloTask]) -> int:
    """Return how many workers a federation is worth: all cores for large networks, one for small ones.

    Python's threads take turns between operations; on small networks they only wait for each other.
    """
    tasks = list(tasks)
    clients = sum(len(task.roster.clients) for task in tasks)
    return min(cores(), clients) if any(_large(task.network.module) for task in tasks) else 1


@contextmanager
def torch_threads(workers: int, tasks: Iterable[SiloTask]) -> Iterator[None]:
    """Give torch its own threads only where they help, and put its setting back after.

    They help a single worker with a large network. On small operations, threads that wait for each other many thousand
    times a second gain nothing, and are several times slower when another program wants one of the cores.
    """
    before = torch.get_num_threads()
    if workers > 1 or not any(_large(task.network.module) for task in tasks):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _large(module: nn.Module) -> bool:
    if any(isinstance(layer, _LARGE_LAYERS) for layer in module.modules()):
        return True
    return sum(p.numel() for p in module.parameters()) >= LARGE
