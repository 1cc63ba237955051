"""Private set intersection of several hubs by Diffie–Hellman: no hub learns the IDs of another but the common ones.

Every hub j has a secret number a_j. An ID becomes a point of the group Ristretto255, and a hub *masks* a point by
multiplying it with its secret; the order of masking does not matter. Hubs stand in a ring:

    forth    each hub hashes and masks its own IDs, shuffles them and sends them on; every other hub masks, shuffles
             and sends on what it gets. After N hubs a set is masked by all and goes to the leader
    meeting  points that are in all sets masked by all are the common IDs. The leader cannot tell which IDs they are,
             nor which of its own: others have shuffled them
    back     the places of the common points go back round the ring; each hub undoes its own shuffling, and the hub
             that the set came from learns which of its IDs are common

What the hubs learn: everyone the size of everyone's set and the common IDs; the leader also how many IDs any
two or more sets have in common, not which.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import rbcl

from tdcd.data.arrays import Array
from tdcd.errors import DeploymentError

POINT = rbcl.crypto_core_ristretto255_BYTES
"""Bytes of a point."""
CHUNK = 2_000
"""Points that a thread masks at a time."""

Points = npt.NDArray[np.uint8]
"""Points of the group; shape (n, POINT)."""
Places = npt.NDArray[np.int64]
"""Places in a list."""
Progress = Callable[[int], None]
"""Takes how many more points are done."""


def _no_progress(points: int) -> None:
    pass


def hashed(ids: Array) -> Points:
    """Return the points of IDs, whole numbers or texts: points nobody knows a relation between."""
    texts = (f"tdcd psi 1 {ids.dtype.kind} {identity}".encode() for identity in ids.tolist())
    return _points(rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(text).digest()) for text in texts)


@dataclass
class Member:
    """A hub's part in the ring: its secret, and how it has shuffled each set that came by."""

    threads: int = 1
    _secret: bytes = field(default_factory=rbcl.crypto_core_ristretto255_scalar_random, repr=False)
    _orders: dict[str, Places] = field(default_factory=dict, repr=False)

    def masked(self, origin: str, points: Points, progress: Progress = _no_progress) -> Points:
        """Mask the points of a silo's set and shuffle them.

        Raises:
            DeploymentError: what came is no list of points.
        """
        if points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != POINT:
            raise DeploymentError(f"aligning: the set of silo '{origin}' is damaged: no list of points")
        order = _shuffled(len(points))
        self._orders[origin] = order
        chunks = [points[start : start + CHUNK] for start in range(0, len(points), CHUNK)]

        def mask(chunk: Points) -> Points:
            try:
                result = _points(rbcl.crypto_scalarmult_ristretto255(self._secret, bytes(point)) for point in chunk)
            except RuntimeError as error:
                raise DeploymentError(f"aligning: the set of silo '{origin}' is damaged: not a point") from error
            progress(len(chunk))
            return result

        with ThreadPoolExecutor(self.threads) as pool:
            done = list(pool.map(mask, chunks))
        return np.concatenate([np.empty((0, POINT), np.uint8), *done])[order]

    def unshuffled(self, origin: str, places: Places) -> Places:
        """Turn places in a silo's list as it left this hub into places in the list as it came.

        Raises:
            DeploymentError: there are no such places.
        """
        order = self._orders.get(origin)
        if order is None or (len(places) and (places.min() < 0 or places.max() >= len(order))):
            raise DeploymentError(f"aligning: damaged: places that the set of silo '{origin}' does not have")
        return np.sort(order[places])


def common_places(sets: Mapping[str, Points]) -> dict[str, Places]:
    """Return the places of the points that all sets have, in each of them."""
    lists = {silo: [bytes(point) for point in points] for silo, points in sets.items()}
    common = set.intersection(*(set(points) for points in lists.values()))
    return {
        silo: np.flatnonzero(np.fromiter((point in common for point in points), dtype=bool, count=len(points)))
        for silo, points in lists.items()
    }


def ring(silos: Iterable[str], origin: str) -> tuple[str, ...]:
    """Return the hubs in the order in which the set of a silo visits them."""
    names = sorted(silos)
    start = names.index(origin)
    return (*names[start:], *names[:start])


def _shuffled(count: int) -> Places:
    """Return the numbers below ``count`` in an order that nobody can guess."""
    generator = np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    return generator.permutation(count)


def _points(points: Iterable[bytes]) -> Points:
    return np.frombuffer(b"".join(points), dtype=np.uint8).reshape(-1, POINT)
