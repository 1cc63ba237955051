"""How a group of one silo's clients computes: one interface, several paths with the same numbers."""

from tdcd.compute.base import Compute
from tdcd.compute.choose import ComputeName, choose, gains_by_workers, make
from tdcd.compute.loop import draws
from tdcd.compute.workers import Workers, cores, one_torch_thread

__all__ = [
    "Compute",
    "ComputeName",
    "Workers",
    "choose",
    "cores",
    "draws",
    "gains_by_workers",
    "make",
    "one_torch_thread",
]
