"""Users' arrays, lists and tensors, taken in with care."""

import hashlib
import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tdcd.errors import DataError, join_names

Array = npt.NDArray[Any]
ArrayLike = Tensor | npt.ArrayLike
Data = ArrayLike | Dataset[Any]
"""Rows or labels of users: arrays, or map-style torch datasets of rows or of pairs (row, label)."""
LONGEST = 256
"""Characters of an ID or a label: an array of texts takes the memory of the longest for each."""
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""A number as tables write it; Python takes 1_10 and other digits for one, too."""
IDs = Sequence[int] | Sequence[str] | Array | Tensor


def to_tensor(values: Data, what: str, *, place: int = 0) -> Tensor:
    """Return numbers as a tensor, without copying where possible.

    Of a torch dataset of pairs (row, label), ``place`` says which of them.

    Raises:
        DataError: not numbers, no rows, or something not finite.
    """
    if isinstance(values, Dataset):
        values = _from_dataset(values, what, place)
    tensor = values.detach() if isinstance(values, Tensor) else _from_numpy(values, what)
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch computes little with these
        tensor = tensor.to(torch.int64)
    if tensor.layout != torch.strided or tensor.is_complex():
        raise DataError(f"{what}: a dense array of real numbers is wanted, not {tensor.dtype} as {tensor.layout}")
    if tensor.ndim == 0 or tensor.numel() == 0:
        raise DataError(f"{what}: no rows, or rows without numbers")
    if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all():  # NaN passes through
        finite = tensor.isfinite()
        bad = (~finite.flatten(1).all(1) if tensor.ndim > 1 else ~finite).nonzero()[:, 0]
        raise DataError(
            f"{what}: NaN or infinite numbers in {len(bad)} of {len(tensor)} rows "
            f"(row {join_names(bad.tolist())}); fill or drop them first"
        )
    return tensor


def _from_dataset(dataset: Dataset[Any], what: str, place: int) -> Tensor:
    """Return the rows or the labels of a dataset in the order of their numbers."""
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise DataError(f"{what}: a dataset without a length; only map-style datasets know which row is which")
    if isinstance(dataset, TensorDataset) and place < len(dataset.tensors) <= 2:
        return dataset.tensors[place]
    rows = []
    for number in range(len(dataset)):
        item = dataset[number]
        if isinstance(item, tuple | list):
            if len(item) != 2 or not isinstance(item[0], Tensor | np.ndarray):
                raise DataError(
                    f"{what}: item {number} of the dataset is no pair (row, label) with an array or a tensor as its "
                    f"row, but {describe_value(item)}; return torch.tensor(row), or (torch.tensor(row), label)"
                )
            item = item[place]
        try:
            rows.append(torch.as_tensor(item))
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(
                f"{what}: item {number} of the dataset is no pair (row, label) of numbers: {error}"
            ) from error
    try:
        return torch.stack(rows)
    except RuntimeError as error:
        raise DataError(f"{what}: the items of the dataset are not of one shape and type: {error}") from error


def _from_numpy(values: npt.ArrayLike, what: str) -> Tensor:
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(f"{what}: a masked array; fill what is masked first")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what}: not an array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what}: not numbers but {array.dtype}; encode text and dates as numbers first")
    kind = np.dtype(np.float64) if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    array = np.require(array.astype(kind, copy=False), requirements=["C", "W"])
    return torch.from_numpy(array)


def to_ids(values: IDs, what: str) -> Array:
    """Return IDs as a vector of int64 or of texts."""
    objects = isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.dtype.kind == "O")
    if objects and any(isinstance(value, str) and "\0" in value for value in values):
        raise DataError(f"{what}: an ID holds the character NUL, which arrays of texts do not tell from its end")
    array = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    if array.dtype.kind == "U" and isinstance(values, list | tuple) and not all(isinstance(v, str) for v in values):
        raise DataError(f"{what}: IDs are all whole numbers or all texts, not both: {describe_value(values)}")
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array.ravel()):
        array = array.astype(np.str_)
    if array.ndim == 1 and array.size == 0:
        return array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise DataError(f"{what}: IDs must be a list of whole numbers or of texts, not {describe_value(values)}")
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what}: the ID {array.max()} is too large; write such IDs as texts")
    return array.astype(np.int64)


def places_in(ordered: Array, ids: Array) -> Array:
    """Return the place of each ID among IDs in ascending order; −1 for those that are not there."""
    if len(ordered) == 0 or ids.dtype.kind != ordered.dtype.kind:
        return np.full(len(ids), -1)
    places = np.searchsorted(ordered, ids).clip(max=len(ordered) - 1)
    return np.where(ordered[places] == ids, places, -1)


def is_constant(mean: float, deviation: float) -> bool:
    """Tell whether a column is constant but for rounding."""
    return deviation <= 1e-15 * abs(mean)


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of named tensors: names, types, shapes and every byte."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def describe_value(value: object) -> str:
    """Return a value as a message can show it."""
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}…"
