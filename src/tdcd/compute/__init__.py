"""How a group of one silo's clients computes: one interface, several paths with the same numbers."""

from tdcd.compute.choose import ComputeName, choose
from tdcd.compute.interface import Compute
from tdcd.compute.threads import fitting_threads

__all__ = ["Compute", "ComputeName", "choose", "fitting_threads"]
