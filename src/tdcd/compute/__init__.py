"""How a group of one silo's clients computes: one interface, several paths with the same numbers."""

from tdcd.compute.choose import ComputeName, choose
from tdcd.compute.interface import Compute

__all__ = ["Compute", "ComputeName", "choose"]
