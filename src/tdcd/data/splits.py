"""Which samples are held out, as a pure function of a seed: every site computes the same by itself."""

import numpy as np

from tdcd.core.seeds import derive
from tdcd.data.arrays import Array


def held_out(ids: Array, fraction: float, seed: int) -> Array:
    """Choose the test IDs: each by its own draw from the ID and the seed, whatever other IDs there are.

    Returns a mask over ``ids``. About ``fraction`` of many IDs, not exactly.
    """
    draws = np.array([derive(seed, "held-out", identity) for identity in ids.tolist()], dtype=np.float64)
    mask: Array = draws / 2.0**63 < fraction
    return mask
