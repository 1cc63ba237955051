"""What looks wrong in columns that can be read: codes for "no value", outliers, amounts, dates, the label itself.

Every rule here prefers silence: a warning about an ordinary table teaches its reader to read none.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from tdcd.data.arrays import Array

FEWEST_ROWS = 50
"""Rows below which a table is too small to tell what is ordinary."""
FEW = 0.01
"""Outliers are at most so many of the rows."""
FAR = 10
"""Outliers are so many times farther from the other values than these are from each other."""
_ENDS = 12
"""Different values at each end of a column that may be outliers."""
_SMALL = (-9.0, -8.0, -7.0)
_AMOUNT = re.compile(
    r"\(?[+\-−]?\s*([$€£¥₹]|[A-Z]{3}\s)\s*[+\-−]?\s*[0-9][0-9.,'’\s]*\)?"
    r"|\(?[+\-−]?[0-9][0-9.,'’\s]*([$€£¥₹]|\s(EUR|USD|GBP|CHF))\)?"
    r"|[+\-−]?[0-9]{1,3}([.,'’\s\u00a0\u202f][0-9]{3})+([.,][0-9]+)?"
)
"""With a currency, or with groups of digits."""
_DATES = (
    (re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?"), "2026-01-28"),
    (re.compile(r"\d{4}/\d{1,2}/\d{1,2}([T ].*)?"), "2026/01/28"),
    (re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}( .*)?"), "28.01.2026"),
    (re.compile(r"\d{1,2}\.\d{1,2}\.\d{2}( .*)?"), "28.01.26"),
    (re.compile(r"\d{1,2}/\d{1,2}/\d{4}( .*)?"), "28/01/2026"),
    (re.compile(r"\d{1,2}/\d{1,2}/\d{2}( .*)?"), "28/01/26"),
    (re.compile(r"\d{1,2}-\d{1,2}-\d{4}( .*)?"), "28-01-2026"),
    (re.compile(r"\d{1,2}[ -][A-Za-z]{3,9}\.?[ -]\d{2,4}( .*)?"), "28 Jan 2026"),
)


@dataclass(frozen=True)
class NumberSuspects:
    """Numbers of a column that stand apart from the others."""

    codes: tuple[float, ...]
    """Which look like codes for "no value"."""
    outliers: tuple[float, ...]
    low: float
    """The least of the others."""
    high: float
    """The greatest of the others."""


def suspect_numbers(values: Array) -> NumberSuspects | None:
    """Return the numbers of a column that look like codes, or lie far from all others; None if there are none."""
    if len(values) < FEWEST_ROWS:
        return None
    distinct, counts = np.unique(values, return_counts=True)
    codes = _codes(distinct)
    keep = ~np.isin(distinct, codes)
    distinct, counts = distinct[keep], counts[keep]
    low, high = _ordinary(distinct, counts)
    outliers = tuple(distinct[(distinct < low) | (distinct > high)].tolist())
    return NumberSuspects(tuple(sorted(codes)), outliers, low, high) if codes or outliers else None


def _codes(distinct: Array) -> list[float]:
    """Return values that people write where there is none: nines apart from the others, −9 to −7 or −1 below zero."""
    nines = [value for value in distinct.tolist() if abs(value) >= 99 and set(f"{abs(value):.15g}") == {"9"}]
    rest = distinct[~np.isin(distinct, [*nines, *_SMALL])]
    if len(rest) < 3:
        return []
    low, high = float(rest[0]), float(rest[-1])
    codes = []
    for value in nines:
        gap = max(low - value, value - high)
        if gap >= high - low or (value < 0 <= low):
            codes.append(value)
    if low >= 0:
        codes += [value for value in distinct.tolist() if value in _SMALL]
    elif low == -1 and len(rest) > 10 and rest[1] >= 0:
        codes.append(-1.0)
    return codes


def _ordinary(distinct: Array, counts: Array) -> tuple[float, float]:
    """Return the least and the greatest number that are no outliers."""
    first, last = 0, len(distinct) - 1
    most = max(3, FEW * counts.sum())
    for low, high in product(range(min(_ENDS, len(distinct))), range(len(distinct) - 1, len(distinct) - 1 - _ENDS, -1)):
        if high - low < 4 or counts[:low].sum() + counts[high + 1 :].sum() > most:
            continue
        reach = FAR * (distinct[high] - distinct[low])
        below = low == 0 or distinct[low] - distinct[low - 1] >= reach
        above = high == len(distinct) - 1 or distinct[high + 1] - distinct[high] >= reach
        if below and above and high - low < last - first:
            first, last = low, high
    return float(distinct[first]), float(distinct[last])


def amounts(counts: Mapping[str, int]) -> list[str]:
    """Return the texts that are amounts of money or numbers in groups of digits, most frequent first."""
    return sorted((text for text in counts if _AMOUNT.fullmatch(text)), key=lambda text: (-counts[text], text))


def date_spellings(texts: Iterable[str]) -> dict[str, str]:
    """Return the ways in which texts write dates, each with an example."""
    result: dict[str, str] = {}
    for text in texts:
        for pattern, spelling in _DATES:
            if pattern.fullmatch(text):
                result.setdefault(spelling, text)
                break
    return result


def tells_class(groups: Array, labels: Array) -> float:
    """Return how well groups tell classes: the share of rows whose class is that of their group, mean over classes."""
    table = np.zeros((int(groups.max()) + 1, int(labels.max()) + 1))
    np.add.at(table, (groups, labels), 1)
    table = table[:, table.sum(0) > 0]
    weighted = table / table.sum(0)
    return float(weighted.max(1).sum() / table.shape[1])


def separates(values: Array, positive: Array) -> float:
    """Return the AUROC of a column by itself, or of its opposite."""
    distinct, place = np.unique(values, return_inverse=True)
    ones = np.bincount(place, positive, len(distinct))
    zeros = np.bincount(place, ~positive, len(distinct))
    below = np.cumsum(zeros) - zeros
    area = float((ones * (below + zeros / 2)).sum() / (ones.sum() * zeros.sum()))
    return max(area, 1 - area)
