"""Groups of a silo's clients, and sums along a fixed tree of them.

A silo's clients are cut into groups by their number alone, and each group is computed by itself. Sums of groups are
added along a binary tree, whoever computes them: so a federation's numbers do not depend, to the bit, on how many
bundles and nodes there are. A bundle adds up what lies whole in it and sends at most two sums a level of the tree.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

CLIENTS = 16
"""A group has at least so many clients, so that they can be computed together."""
MOST = 1024
"""A silo has at most so many groups, and so many bundles."""


def group_count(clients: int) -> int:
    """Return the number of groups of a silo: a power of two."""
    return 1 << min(max(clients // CLIENTS, 1), MOST).bit_length() - 1


def cut(count: int, parts: int) -> list[int]:
    """Return where each of some parts of a list begins, and its end: as equal as they can be."""
    return [index * count // parts for index in range(parts + 1)]


class Fold(Generic[T]):
    """Adds up the sums of groups along the tree, as far as both halves of a node are here."""

    def __init__(self, merge: Callable[[T, T], T]) -> None:
        self._merge = merge
        self._nodes: dict[tuple[int, int], T | None] = {}

    def add(self, size: int, index: int, value: T | None) -> None:
        """Add the sum of groups ``size * index`` to ``size * (index + 1)``; nothing if they have no rows."""
        while (size, index ^ 1) in self._nodes:
            other = self._nodes.pop((size, index ^ 1))
            left, right = (other, value) if index & 1 else (value, other)
            value = right if left is None else left if right is None else self._merge(left, right)
            size, index = 2 * size, index >> 1
        self._nodes[size, index] = value

    def nodes(self) -> list[tuple[int, int, T | None]]:
        """Return what could not be added to its neighbour."""
        return [(size, index, value) for (size, index), value in self._nodes.items()]

    def total(self, groups: int) -> T | None:
        """Return the sum of all groups.

        Raises:
            RuntimeError: not all groups are there.
        """
        if set(self._nodes) != {(groups, 0)}:
            raise RuntimeError(f"these parts of {groups} groups were added: {sorted(self._nodes)}")
        return self._nodes[groups, 0]
