"""Private set intersection of several hubs by Diffie–Hellman: no hub learns the IDs of another but the common ones.

Every hub j has a secret number a_j. An ID becomes a point of Curve25519, and a hub *masks* a point by multiplying it
with its secret (X25519); the order of masking does not matter. Hubs stand in a ring:

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
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nacl.bindings
import nacl.exceptions
import numpy as np
import numpy.typing as npt
import polars as pl

from tdcd.data.arrays import Array
from tdcd.data.tables.alignment import id_array
from tdcd.errors import DeploymentError, RunError
from tdcd.files import write_atomically

POINT = nacl.bindings.crypto_scalarmult_BYTES
"""Bytes of a point: its u-coordinate."""
PRIME = 2**255 - 19
"""Of the field that coordinates are from."""
CHUNK = 2_000
"""Points that a thread masks at a time."""
BLOCK = 50_000
"""Points that are kept at a time."""

Points = npt.NDArray[np.uint8]
"""Points of the group; shape (n, POINT)."""
Places = npt.NDArray[np.int64]
"""Places in a list."""
Progress = Callable[[int], None]
"""Takes how many more points are done."""


def _no_progress(points: int) -> None:
    pass


def hashed(ids: Array, threads: int = 1) -> Points:
    """Return the points of IDs, whole numbers or texts: points nobody knows a relation between.

    A hash is mapped onto the curve (Elligator 2), into its subgroup of prime order. Taken as a coordinate as it is,
    half of all hashes would lie on the twist, and tell a bit of their IDs.
    """

    def part(own: Array) -> Points:
        texts = (f"tdcd psi 2 {ids.dtype.kind} {identity}".encode() for identity in own.tolist())
        hashes = (hashlib.blake2b(text, digest_size=32).digest() for text in texts)
        return _points(_to_montgomery([nacl.bindings.crypto_core_ed25519_from_uniform(one) for one in hashes]))

    return _in_threads(part, ids, threads)


def _to_montgomery(points: list[bytes]) -> Iterator[bytes]:
    """Return the u-coordinates (1 + y) / (1 − y) of points in Edwards form; one inversion serves for all of them."""
    ordinates = [int.from_bytes(point, "little") & (2**255 - 1) for point in points]
    products = [1]
    for y in ordinates:
        products.append(products[-1] * (1 - y) % PRIME)
    inverse, coordinates = pow(products[-1], -1, PRIME), []
    for y, before in zip(reversed(ordinates), reversed(products[:-1]), strict=True):
        coordinates.append((1 + y) * inverse * before % PRIME)
        inverse = inverse * (1 - y) % PRIME
    return (u.to_bytes(POINT, "little") for u in reversed(coordinates))


class Done:
    """What is done of an alignment, in files: a hub that is started again goes on, with the same secret.

    The files are for their owner only, and removed when the alignment is done.
    """

    def __init__(self, folder: Path | None, about: str) -> None:
        """Take up what is there, unless it is ``about`` other IDs."""
        self.secret = secrets.token_bytes(32)
        self._folder = folder
        if folder is None:
            return
        file, title = folder / "secret", hashlib.blake2b(about.encode(), digest_size=32).digest()
        found = _read(file)
        if found[:32] == title and len(found) == 64:
            self.secret = found[32:]
            return
        remove_done(folder)
        try:
            folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise RunError(f"{folder}: cannot be made: {error.strerror}") from error
        write_atomically(file, title + self.secret, private=True)

    def points(self, what: str, items: Array, compute: Callable[[Array], Points], progress: Progress) -> Points:
        """Turn items into points, a block at a time; those of an earlier time are read."""
        result = [np.empty((0, POINT), np.uint8)]
        for start in range(0, len(items), BLOCK):
            block = items[start : start + BLOCK]
            result.append(self._block(what, block, compute, progress))
        return np.concatenate(result)

    def _block(self, what: str, block: Array, compute: Callable[[Array], Points], progress: Progress) -> Points:
        if self._folder is None:
            return compute(block)
        content = block.tobytes()
        title = f"{what} {block.dtype} {len(block)} ".encode()
        file = self._folder / hashlib.blake2b(title + content, key=self.secret, digest_size=20).hexdigest()
        found = _read(file)
        if len(found) == POINT * len(block) + 32 and self._seal(found[32:]) == found[:32]:
            progress(len(block))
            return np.frombuffer(found[32:], dtype=np.uint8).reshape(-1, POINT)
        points = compute(block)
        write_atomically(file, self._seal(points.tobytes()) + points.tobytes(), private=True)
        return points

    def _seal(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self.secret, digest_size=32).digest()


def remove_done(folder: Path) -> None:
    """Remove the files: the alignment is done, or about other IDs."""
    try:
        if folder.exists():
            shutil.rmtree(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot be removed: {error.strerror}; remove it by hand") from error


def _read(file: Path) -> bytes:
    """Return what a file holds; nothing if it is not there."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror}; remove its folder by hand") from error


@dataclass
class Member:
    """A hub's part in the ring: its secret, and how it has shuffled each set that came by."""

    threads: int = 1
    done: Done = field(default_factory=lambda: Done(None, ""))
    _orders: dict[str, Places] = field(default_factory=dict, repr=False)

    def hashed(self, ids: pl.Series) -> Points:
        """Return the points of the own IDs."""
        compute, result = partial(hashed, threads=self.threads), [np.empty((0, POINT), np.uint8)]
        for start in range(0, len(ids), BLOCK):
            block = id_array(ids.slice(start, BLOCK))  # of all texts, it would give each the room of the longest
            result.append(self.done.points("hashed", block, compute, _no_progress))
        return np.concatenate(result)

    def masked(
        self, origin: str, points: Points, progress: Progress = _no_progress, count: int | None = None
    ) -> Points:
        """Mask the points of a silo's set, so many if that is known, and shuffle them.

        Raises:
            DeploymentError: what came is no list of different points of the curve.
        """
        check_set(origin, points, count)
        order = self._shuffled(origin, points)
        self._orders[origin] = order

        def mask(chunk: Points) -> Points:
            try:
                result = _points(nacl.bindings.crypto_scalarmult(self.done.secret, bytes(point)) for point in chunk)
            except nacl.exceptions.RuntimeError as error:  # whatever the secret, the product would be 0
                raise DeploymentError(f"aligning: the set of silo '{origin}' has a point of low order") from error
            progress(len(chunk))
            return result

        return self.done.points("masked", points, lambda block: _in_threads(mask, block, self.threads), progress)[order]

    def _shuffled(self, origin: str, points: Points) -> Places:
        """Return an order of points that nobody else can guess; the same for the same points and secret."""
        content = f"{origin} {len(points)} ".encode() + points.tobytes()
        seed = hashlib.blake2b(content, key=self.done.secret, digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(seed))).permutation(len(points))

    def unshuffled(self, origin: str, places: Places) -> Places:
        """Turn places in a silo's list as it left this hub into places in the list as it came.

        Raises:
            DeploymentError: there are no such places.
        """
        order = self._orders.get(origin)
        if order is None or (len(places) and (places.min() < 0 or places.max() >= len(order))):
            raise DeploymentError(f"aligning: damaged: places that the set of silo '{origin}' does not have")
        return np.sort(order[places])


def check_set(origin: str, points: Points, count: int | None = None) -> None:
    """Check that something is a list of different points, so many if that is known.

    Raises:
        DeploymentError: it is not.
    """
    if points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != POINT:
        raise DeploymentError(f"aligning: the set of silo '{origin}' is damaged: no list of points")
    if count is not None and len(points) != count:
        raise DeploymentError(f"aligning: the set of silo '{origin}' has {len(points):,} points, and not {count:,}")
    if (points[:, -1] > 127).any() or ((points[:, 1:-1] == 255).all(1) & (points[:, -1] == 127)).any():
        raise DeploymentError(f"aligning: the set of silo '{origin}' is damaged: not a coordinate of a point")
    if len({bytes(point) for point in points}) < len(points):
        raise DeploymentError(f"aligning: the set of silo '{origin}' has a point twice")


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


def _in_threads(function: Callable[[Array], Points], items: Array, threads: int) -> Points:
    """Turn items into points, a chunk at a time. The library lets other threads run while it computes."""
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    with ThreadPoolExecutor(threads) as pool:
        return np.concatenate([np.empty((0, POINT), np.uint8), *pool.map(function, chunks)])


def _points(points: Iterable[bytes]) -> Points:
    return np.frombuffer(b"".join(points), dtype=np.uint8).reshape(-1, POINT)
