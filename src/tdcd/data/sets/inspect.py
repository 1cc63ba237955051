"""A look at a whole data set, to see what one has."""

import hashlib
from collections import defaultdict

import numpy as np

from tdcd.data.sets.base import Dataset
from tdcd.errors import join_names


def inspect(dataset: Dataset) -> dict[str, str]:
    """Read a data set to the end and describe it; also tells of samples that are the same."""
    seen: dict[bytes, list[int]] = defaultdict(list)
    number = unknown = cells = 0
    low, high = np.inf, -np.inf
    for piece in dataset.pieces():
        for row in piece:
            seen[hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest()].append(number)
            number += 1
        cells += piece.size
        unknown += int(np.isnan(piece).sum()) if piece.dtype.kind == "f" else 0
        low, high = min(low, float(np.nanmin(piece))), max(high, float(np.nanmax(piece)))
    shape = " × ".join(map(str, dataset.shape))
    result = {"samples": f"{len(dataset):,}, each {shape}"}
    if dataset.testing is not None:
        result["test set"] = f"{int(dataset.testing.sum()):,} of them, by the publisher"
    counts = np.bincount(dataset.labels, minlength=len(dataset.classes)).tolist()
    result["classes"] = join_names((f"{n} {c:,}" for n, c in zip(dataset.classes, counts, strict=True)), most=40)
    result["values"] = f"{low:g} to {high:g}" + (f"; {unknown / cells:.1%} not known" if unknown else "")
    if dataset.columns:
        result["columns"] = ", ".join(dataset.columns)
    if dataset.attributes:
        result["rows by"] = f"{', '.join(dataset.attributes)} can say which client has a row"
    if dataset.notes:
        result["notes"] = "; ".join(dataset.notes)
    same = [numbers for numbers in seen.values() if len(numbers) > 1]
    if same:
        result["the same"] = _same(dataset, same)
    return result


def _same(dataset: Dataset, groups: list[list[int]]) -> str:
    labels, testing = dataset.labels, dataset.testing
    across = sum(testing is not None and len(set(testing[group].tolist())) > 1 for group in groups)
    contradict = sum(len(set(labels[group].tolist())) > 1 for group in groups)
    some = "; ".join(" = ".join(map(str, dataset.ids[group].tolist()[:3])) for group in groups[:3])
    return (
        f"{len(groups):,} groups of samples with the same features ({across:,} of them in training and test set, "
        f"{contradict:,} with different labels): {some}{' …' if len(groups) > 3 else ''}"
    )
