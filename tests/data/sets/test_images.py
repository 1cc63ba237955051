import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.sets import trees
from tdcd.data.features import FeatureSplit, Strips, Tiles
from tdcd.data.holdout import Part, parts_of
from tdcd.data.sets import SETS, cifar10, leave_in_files, read, split_among
from tdcd.data.sets.base import Dataset
from tdcd.data.sources import read_stored
from tdcd.errors import DataError


def rows_of(dataset: Dataset) -> np.ndarray:
    return np.concatenate(list(dataset.pieces()))


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.setattr(cifar10, "IMAGES", 20)
    monkeypatch.setattr(cifar10, "PIECE", 5)
    return trees.cifar(tmp_path, 20)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_cifar10(tmp_path: Path, cifar: np.ndarray, below: str) -> None:
    dataset = read("cifar10", tmp_path / below)
    assert len(dataset) == 120
    assert dataset.testing is not None
    assert dataset.testing.nonzero()[0].tolist() == list(range(100, 120))
    assert dataset.labels.tolist() == cifar[:, :, 0].ravel().tolist()
    assert np.array_equal(rows_of(dataset).reshape(120, -1), cifar[:, :, 1:].reshape(120, -1))
    blocks = SETS["cifar10"].features.blocks(dataset.shape, (), 0)
    samples, ids = split_among(dataset, blocks, parts_of(dataset.ids, 0, 0, 0, dataset.testing))
    assert ids[Part.TEST].tolist() == list(range(100, 120))
    joined = np.concatenate([samples[Part.TRAIN].features[silo].numpy() for silo in ("left", "right")], axis=-1)
    pixels = cifar[:5, :, 1:].reshape(100, 3, 32, 32) / 255
    means, deviations = np.array([0.4914, 0.4822, 0.4465]), np.array([0.247, 0.243, 0.261])
    assert np.allclose(joined, (pixels - means.reshape(3, 1, 1)) / deviations.reshape(3, 1, 1), atol=1e-5)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda d: (d / "data_batch_3.bin").unlink(), "data_batch_3.bin: missing"),
        (lambda d: (d / "data_batch_1.bin").unlink(), "data_batch_1.bin is not there, so it is not this data set"),
        (
            lambda d: (d / "test_batch.bin").write_bytes(b"x" * 99),
            "test_batch.bin: truncated: 99 bytes instead of 61,460",
        ),
        (lambda d: (d / "test_batch.bin").write_bytes(b"x" * 61461), "test_batch.bin: not what it should be"),
        (lambda d: (d / "test_batch.bin").write_bytes(b"\x0b" * 61460), "image 0 has the label 11, not 0 to 9"),
        (lambda d: (d / "batches.meta.txt").write_text("cat\ndog\n"), "the classes are not those of CIFAR-10"),
        (lambda d: (d / "batches.meta.txt").unlink(), "batches.meta.txt: missing"),
    ],
)
@pytest.mark.usefixtures("cifar")
def test_damaged_cifar10(tmp_path: Path, harm: Any, message: str) -> None:
    harm(tmp_path / "cifar-10-batches-bin")
    with pytest.raises(DataError, match=message):
        read("cifar10", tmp_path)


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(tmp_path: Path, zipped: bool) -> None:
    arrays = trees.idx(tmp_path, zipped=zipped)
    dataset = read("idx", tmp_path)
    assert dataset.shape == (1, 4, 6)
    assert dataset.classes == ("0", "1", "2")
    assert dataset.testing is not None
    assert dataset.testing.tolist() == [False] * 7 + [True] * 3
    expected = np.concatenate([arrays["train-images-idx3-ubyte"], arrays["t10k-images-idx3-ubyte"]])
    assert np.array_equal(rows_of(dataset)[:, 0], expected)
    assert dataset.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 0, 1, 2]


def test_damaged_idx(tmp_path: Path) -> None:
    trees.idx(tmp_path / "a", zipped=False)
    path = tmp_path / "a" / "t10k-images-idx3-ubyte"
    data = path.read_bytes()
    for content, message in (
        (data[:-1], "truncated or damaged: 87 bytes instead of 88"),
        (b"\0\0\x08\x01" + data[4:], "not an IDX file of 3 axes of bytes: it begins with 00 00 08 01"),
        (data[:4] + (2).to_bytes(4, "big") + data[8:-24], "has 2 images, t10k-labels-idx1-ubyte 3 labels"),
        (data[:8] + (6).to_bytes(4, "big") + (4).to_bytes(4, "big") + data[16:], "of different sizes"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read("idx", tmp_path / "a")
    path.unlink()
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte is missing"):
        read("idx", tmp_path / "a")
    trees.idx(tmp_path / "b", zipped=True)
    path = tmp_path / "b" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="train-images-idx3-ubyte.gz: damaged"):
        read("idx", tmp_path / "b")
    trees.idx(tmp_path / "d", zipped=True)
    path = tmp_path / "d" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for place in range(10, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(DataError, match="train-images-idx3-ubyte.gz: "):
            read("idx", tmp_path / "d")
    with pytest.raises(DataError, match="no such directory"):
        read("idx", tmp_path / "c")


@pytest.mark.parametrize("part_first", [False, True])
@pytest.mark.parametrize("folders", [False, True])
@pytest.mark.parametrize("above", ["", "modelnet40"])
def test_modelnet(tmp_path: Path, part_first: bool, folders: bool, above: str) -> None:
    trees.modelnet(tmp_path / above, part_first=part_first, folders=folders)
    dataset = read("modelnet", tmp_path)
    assert dataset.classes == ("bed", "sofa")
    assert dataset.ids.tolist() == [
        *("bed/train/bed_2", "bed/train/bed_10", "sofa/train/sofa_2", "sofa/train/sofa_10"),
        *("bed/test/bed_3", "sofa/test/sofa_3"),
    ]
    assert dataset.labels.tolist() == [0, 0, 1, 1, 0, 1]
    assert dataset.shape == (12, 1, 4, 6)
    values = rows_of(dataset)[:, :, 0, 0, 0]
    assert values[0].tolist() == [120 + view for view in range(1, 13)]
    blocks = SETS["modelnet"].features.blocks(dataset.shape, (), 0)
    samples, ids = split_among(dataset, blocks, parts_of(dataset.ids, 0, 0, 0, dataset.testing))
    assert ids[Part.TRAIN].tolist() == sorted(dataset.ids[:4].tolist())
    third = samples[Part.TRAIN].features["view-03"].numpy()
    training = np.array([123.0, 113.0, 23.0, 13.0])  # bed 2 and 10, sofa 2 and 10
    expected = dict(zip(dataset.ids, (training - training.mean()) / training.std(), strict=False))
    for identity, picture in zip(ids[Part.TRAIN], third, strict=True):
        assert np.allclose(picture, expected[identity], atol=1e-6)
    test = samples[Part.TEST].features["view-03"].numpy()
    assert np.allclose(test[0], (133 - training.mean()) / training.std(), atol=1e-6)


def test_modelnet_in_colour_and_scaled(tmp_path: Path) -> None:
    trees.modelnet(tmp_path, part_first=True, folders=True, mode="RGB")
    dataset = read("modelnet", tmp_path, pixels=2)
    assert dataset.shape == (12, 3, 2, 2)
    assert rows_of(dataset)[0, 4, :, 0, 0].tolist() == [125, 0, 255]
    with pytest.raises(DataError, match="digits: pixels goes with modelnet only"):
        read("digits", pixels=8)


def test_damaged_modelnet(tmp_path: Path) -> None:
    trees.modelnet(tmp_path, part_first=True, folders=True)
    picture = tmp_path / "test" / "bed" / "bed_3" / "bed_3_007.png"
    whole = picture.read_bytes()
    picture.write_bytes(whole[:40])
    with pytest.raises(DataError, match="bed_3_007.png: damaged, not a picture"):
        rows_of(read("modelnet", tmp_path))
    picture.unlink()
    with pytest.raises(DataError, match=r"shape 'bed_3' lacks the views \[7\] of 1 to 12"):
        read("modelnet", tmp_path)
    from PIL import Image

    Image.new("L", (5, 4)).save(picture)
    with pytest.raises(DataError, match="bed_3_007.png: 5 × 4 pixels; the first picture has 6 × 4"):
        rows_of(read("modelnet", tmp_path))
    Image.new("I;16", (6, 4)).save(picture)
    with pytest.raises(DataError, match="bed_3_007.png: more than 8 bits a pixel"):
        rows_of(read("modelnet", tmp_path))
    (tmp_path / "test" / "sofa").rename(tmp_path / "test" / "desk")
    with pytest.raises(DataError, match="these classes have no (train shapes: desk|test shapes: sofa)"):
        read("modelnet", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures such as train/CLASS"):
        read("modelnet", tmp_path / "empty")


@pytest.mark.parametrize("split", [None, Strips(silos=3), Tiles()])
@pytest.mark.usefixtures("cifar")
def test_cifar10_left_in_its_files(tmp_path: Path, split: FeatureSplit | None) -> None:
    check_left_in_files("cifar10", tmp_path, split)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_modelnet_left_in_its_files(tmp_path: Path, mode: str) -> None:
    trees.modelnet(tmp_path, part_first=True, folders=True, mode=mode)
    check_left_in_files("modelnet", tmp_path, None)


def check_left_in_files(name: Any, directory: Path, split: FeatureSplit | None) -> None:
    """What is read in pieces anywhere is, to the bit, what was cut out of the whole."""
    dataset = read(name, directory)
    blocks = (split or SETS[name].features).blocks(dataset.shape, (), 0)
    parts = parts_of(dataset.ids, 0.2, 0.1, 3)
    whole, ids = split_among(dataset, blocks, parts)
    left, same_ids = leave_in_files(dataset, partial(read, name, directory), blocks, parts)
    for part, samples in whole.items():
        assert np.array_equal(ids[part], same_ids[part])
        assert np.array_equal(samples.labels, left[part].labels)
        for silo, rows in samples.features.items():
            stored = pickle.loads(pickle.dumps(left[part].stored[silo]))  # noqa: S301 - as it is sent to a node
            assert np.array_equal(read_stored([stored], silo)[0], rows)
            assert np.array_equal(stored.read(np.array([1, 0])), rows[[1, 0]])
            assert stored.digest() == left[part].stored[silo].digest()
