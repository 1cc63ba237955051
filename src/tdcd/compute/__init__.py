"""How a group of one silo's clients computes: one interface, several paths with the same numbers."""

from tdcd.compute.base import Compute
from tdcd.compute.choose import ComputeName, choose, gains_by_workers, make
from tdcd.compute.loop import draws
from tdcd.compute.threads import Threads, cores, one_torch_thread

__all__ = [
    "Compute",
    "ComputeName",
    "Threads",
    "choose",
    "cores",
    "draws",
    "gains_by_workers",
    "make",
    "one_torch_thread",
]
