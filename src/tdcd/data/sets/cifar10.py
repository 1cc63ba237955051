"""CIFAR-10 in its binary version: 60,000 colour images of 32 × 32 pixels in 10 classes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tdcd.data.arrays import Array
from tdcd.data.features import Index, Strips
from tdcd.data.sets.base import Dataset, Published
from tdcd.data.sets.files import check_size, found_in, text_of
from tdcd.errors import DataError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
IMAGES = 10_000
"""In each file."""
RECORD = 1 + 3 * 32 * 32
"""Bytes of a label and an image."""
PIECE = 250
"""Images read at a time."""


def _read(directory: Path) -> Dataset:
    directory = found_in(directory, "cifar-10-batches-bin", holds=FILES[0])
    paths = [check_size(directory / name, IMAGES * RECORD) for name in FILES]
    names = tuple(text_of(directory / "batches.meta.txt").split())
    if names != CLASSES:
        raise DataError(f"{directory / 'batches.meta.txt'}: the classes are not those of CIFAR-10 in their order")
    labels = np.concatenate([_labels(path) for path in paths])

    def pieces() -> Iterator[Array]:
        for path in paths:
            with path.open("rb") as file:
                for _ in range(IMAGES // PIECE):
                    records = np.fromfile(file, dtype=np.uint8, count=PIECE * RECORD).reshape(PIECE, RECORD)
                    yield records[:, 1:].reshape(PIECE, 3, 32, 32)

    def some(rows: Array, index: Index) -> Array:
        out = np.empty((len(rows), *np.broadcast_to(0, (3, 32, 32))[index].shape), np.uint8)
        for number, path in enumerate(paths):
            here = np.flatnonzero(rows // IMAGES == number)
            if len(here):
                records = np.memmap(path, dtype=np.uint8, mode="r", shape=(IMAGES, RECORD))
                images = records[rows[here] - number * IMAGES, 1:].reshape(-1, 3, 32, 32)
                out[here] = images[:, *index]
        return out

    return Dataset(
        ids=np.arange(len(labels)),
        labels=labels,
        shape=(3, 32, 32),
        pieces=pieces,
        some=some,
        testing=np.arange(len(labels)) >= 5 * IMAGES,
        classes=CLASSES,
        offset=255 * np.array([0.4914, 0.4822, 0.4465]).reshape(3, 1, 1),
        divisor=255 * np.array([0.247, 0.243, 0.261]).reshape(3, 1, 1),
        attributes={"file": np.repeat(np.arange(1, len(FILES) + 1), IMAGES)},
    )


def _labels(path: Path) -> Array:
    labels = np.memmap(path, dtype=np.uint8, mode="r", shape=(IMAGES, RECORD))[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        image = int(np.argmax(labels >= len(CLASSES)))
        raise DataError(f"{path}: damaged: image {image} has the label {labels[image]}, not 0 to 9; get it again")
    return labels


CIFAR10 = Published(
    name="cifar10",
    what="60,000 colour images of 32 × 32 pixels; the last 10,000 are for testing",
    task="10 classes",
    origin="www.cs.toronto.edu/~kriz/cifar.html: CIFAR-10 binary version",
    layout="cifar-10-batches-bin/\n  batches.meta.txt\n  data_batch_1.bin … data_batch_5.bin\n  test_batch.bin",
    features=Strips(silos=2),
    read=_read,
)
