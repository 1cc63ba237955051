"""Splits as pure functions of a seed: every site computes the same one by itself."""

import numpy as np

from tdcd.core.seeds import derive
from tdcd.data.arrays import Array
from tdcd.errors import DataError


def held_out(ids: Array, fraction: float, seed: int) -> Array:
    """Choose the test IDs: each by its own draw from the ID and the seed, whatever other IDs there are.

    Returns a mask over ``ids``. About ``fraction`` of many IDs, not exactly.
    """
    draws = np.array([derive(seed, "held-out", identity) for identity in ids.tolist()], dtype=np.float64)
    mask: Array = draws / 2.0**63 < fraction
    return mask


def deal_equally(ids: Array, clients: int, silo: str, seed: int) -> dict[str, Array]:
    """Deal a silo's IDs at random to clients of equal size, as the paper does; remainders are dealt too.

    Silos are dealt independently: clients of different silos hold unrelated IDs.
    """
    if clients > len(ids):
        raise DataError(
            f"silo '{silo}': {clients} clients for {len(ids)} rows would leave clients without rows; "
            f"set clients to {len(ids)} or fewer"
        )
    generator = np.random.Generator(np.random.Philox(key=derive(seed, "deal", silo)))
    digits = len(str(clients))
    parts = np.array_split(generator.permutation(ids), clients)
    return {f"{silo}-{k:0{digits}d}": part for k, part in enumerate(parts, start=1)}
