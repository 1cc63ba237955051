"""MNIST and its likes (Fashion-MNIST, KMNIST …) in the IDX format, gzipped or not."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np

from tdcd.data.arrays import Array
from tdcd.data.features import Strips
from tdcd.data.sets.base import Dataset, Published
from tdcd.errors import DataError

_UBYTE = 8
"""The only type of number that these sets have: unsigned bytes."""


def _read(directory: Path) -> Dataset:
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    images, labels = [], []
    for part in ("train", "t10k"):
        image_file, label_file = _file(directory, f"{part}-images", 3), _file(directory, f"{part}-labels", 1)
        images.append(_array(image_file, 3))
        labels.append(_array(label_file, 1))
        if len(images[-1]) != len(labels[-1]):
            raise DataError(f"{image_file} has {len(images[-1])} images, {label_file.name} {len(labels[-1])} labels")
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(f"{directory}: images for training and testing are of different sizes")
    y = np.concatenate(labels).astype(np.int64)
    return Dataset(
        ids=np.arange(len(y)),
        labels=y,
        shape=(1, *images[0].shape[1:]),
        pieces=lambda: iter([part[:, np.newaxis] for part in images]),
        testing=np.arange(len(y)) >= len(labels[0]),
        classes=tuple(str(number) for number in range(int(y.max()) + 1)),
        divisor=255.0,
    )


def _file(directory: Path, stem: str, axes: int) -> Path:
    names = [f"{stem}{mark}idx{axes}-ubyte{end}" for mark in "-." for end in ("", ".gz")]
    for name in names:
        if (directory / name).exists():
            return directory / name
    raise DataError(f"{directory}: {names[0]} is missing (or {names[1]})")


def _array(path: Path, axes: int) -> Array:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: damaged, cannot be read: {error}; get it again") from error
    if data[:4] != bytes([0, 0, _UBYTE, axes]):
        raise DataError(f"{path}: not an IDX file of {axes} axes of bytes: it begins with {data[:4].hex(' ')}")
    shape = [int.from_bytes(data[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(axes)]
    expected = 4 + 4 * axes + prod(shape)
    if len(data) != expected or not prod(shape):
        raise DataError(f"{path}: truncated or damaged: {len(data):,} bytes instead of {expected:,}; get it again")
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


IDX = Published(
    name="idx",
    what="MNIST and sets in its format (Fashion-MNIST, KMNIST …): grey images; the t10k files are for testing",
    task="as many classes as labels",
    origin="their publishers' pages, such as yann.lecun.com/exdb/mnist",
    layout="train-images-idx3-ubyte[.gz]\ntrain-labels-idx1-ubyte[.gz]\nt10k-images-idx3-ubyte[.gz]\n"
    "t10k-labels-idx1-ubyte[.gz]",
    features=Strips(silos=2),
    read=_read,
)
