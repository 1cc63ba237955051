"""How a group of one silo's clients computes: one interface, several paths with the same numbers."""

from tdcd.compute.choose import PATHS, Path, choose
from tdcd.compute.interface import Compute

__all__ = ["PATHS", "Compute", "Path", "choose"]
