"""Randomness as a pure function of a seed and words: nothing is seeded at import, no state travels."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def derive(seed: int, *words: str | int) -> int:
    """Return a 63-bit seed that depends on ``seed`` and on every word, the same on every machine."""
    text = "\x1f".join(str(word) for word in (seed, *words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def derive_each(seed: int, word: str | int, last: Sequence[str | int]) -> npt.NDArray[np.int64]:
    """Return ``derive(seed, word, one)`` for each of many last words."""
    start, blake2b = f"{seed}\x1f{word}\x1f".encode(), hashlib.blake2b
    digests = [blake2b(start + str(one).encode(), digest_size=8).digest() for one in last]
    numbers = np.frombuffer(b"".join(digests), dtype=">u8")
    return (numbers >> np.uint64(1)).astype(np.int64)


def client_seed(seed: int, number: int, silo: str, client: str) -> int:
    """Return the seed of one client's stream in one round (dropout and the like draw from it).

    The stream restarts in every round, so that a resumed run draws what an uninterrupted one would.
    """
    return derive(seed, "client", number, silo, client)
