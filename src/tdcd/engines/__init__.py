"""Where hubs and clients live."""

from tdcd.engines.base import Engine, Training
from tdcd.engines.local import LocalEngine
from tdcd.engines.oracle import OracleEngine

__all__ = ["Engine", "LocalEngine", "OracleEngine", "Training"]
