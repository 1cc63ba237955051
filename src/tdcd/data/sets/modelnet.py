"""ModelNet seen from twelve sides: pictures of three-dimensional shapes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tdcd.data.arrays import Array
from tdcd.data.features import Index, Views
from tdcd.data.sets.base import Dataset, Published
from tdcd.data.sets.files import folders
from tdcd.errors import DataError, join_names

if TYPE_CHECKING:
    from PIL.Image import Image

VIEWS = 12
_PICTURE = re.compile(r"(?P<shape>.+)_(?P<view>\d{3})\.png", re.IGNORECASE)


@dataclass(frozen=True)
class _Shape:
    name: str
    """Such as ``bed/train/bed_0001``."""
    views: tuple[Path, ...]


def _read(directory: Path, pixels: int | None = None) -> Dataset:
    if not directory.is_dir():
        raise DataError(f"{directory}: no such directory")
    root, part_first = _layout(directory)
    record = {part: _classes(root, part, part_first) for part in ("train", "test")}
    classes = sorted(record["train"].keys() | record["test"].keys())
    for part, folders_ in record.items():
        if lacking := [name for name in classes if name not in folders_]:
            raise DataError(f"{root}: these classes have no {part} shapes: {join_names(lacking)}")
    shapes: list[_Shape] = []
    labels: list[int] = []
    testing: list[bool] = []
    for part, folders_ in record.items():
        for label, name in enumerate(classes):
            own = _shapes(folders_[name], f"{name}/{part}")
            shapes += own
            labels += [label] * len(own)
            testing += [part == "test"] * len(own)
    first = _opened(shapes[0].views[0])
    mode, size = ("L" if first.mode in ("1", "L", "LA") else "RGB"), first.size
    side = (pixels, pixels) if pixels else size

    def pieces() -> Iterator[Array]:
        for shape in shapes:
            yield np.stack([_pixels(view, mode, size, side) for view in shape.views])[np.newaxis]

    def some(rows: Array, index: Index) -> Array:
        (view,) = index  # silos share twelve pictures in no other way
        if not isinstance(view, int):
            raise TypeError(f"a silo takes {index} of every shape")
        return np.stack([_pixels(shapes[row].views[view], mode, size, side) for row in rows])

    return Dataset(
        ids=np.array([shape.name for shape in shapes]),
        labels=np.array(labels),
        shape=(VIEWS, 1 if mode == "L" else 3, side[1], side[0]),
        pieces=pieces,
        some=some,
        testing=np.array(testing),
        classes=tuple(classes),
        standardise=np.ones(1 if mode == "L" else 3, dtype=bool),
    )


def _layout(directory: Path) -> tuple[Path, bool]:
    """Find the root, and whether it has train/CLASS or CLASS/train, from where a first picture lies."""
    picture = next(directory.rglob("?*_001.png"), None)
    if picture is not None:
        in_folder = picture.name == f"{picture.parent.name}_001.png"
        above = picture.parent.parent if in_folder else picture.parent
        for part_first, name in ((False, above.name), (True, above.parent.name)):
            if name in ("train", "test"):
                return above.parent.parent, part_first
    raise DataError(f"{directory}: no pictures such as train/CLASS/SHAPE_001.png or CLASS/train/SHAPE_001.png there")


def _classes(root: Path, part: str, part_first: bool) -> dict[str, Path]:
    """Return the folder of each class that has such a part."""
    if part_first:
        return {folder.name: folder for folder in folders(root / part)} if (root / part).is_dir() else {}
    return {folder.name: folder / part for folder in folders(root) if (folder / part).is_dir()}


def _shapes(place: Path, name: str) -> list[_Shape]:
    """Return the shapes of a class, sorted; each with its twelve views in order."""
    views: dict[str, dict[int, Path]] = {}
    for folder in (place, *folders(place)):
        for path in sorted(folder.iterdir()):
            if match := _PICTURE.fullmatch(path.name):
                shape = folder.name if folder != place else match["shape"]
                views.setdefault(shape, {})[int(match["view"])] = path
    if not views:
        raise DataError(f"{place}: no pictures such as SHAPE_001.png or SHAPE/SHAPE_001.png")
    for shape, result in views.items():
        if sorted(result) != list(range(1, VIEWS + 1)):
            lacks = sorted(set(range(1, VIEWS + 1)) - set(result)) or "none of them"
            more = f"; and has {len(result)}" if len(result) > VIEWS else ""
            raise DataError(f"{place}: shape '{shape}' lacks the views {lacks} of 1 to {VIEWS}{more}")
    return [
        _Shape(f"{name}/{shape}", tuple(views[shape][view] for view in sorted(views[shape])))
        for shape in sorted(views, key=_natural)
    ]


def _natural(name: str) -> list[tuple[int, str]]:
    """Order 2 before 10."""
    return [(int(part or 0) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def _opened(path: Path) -> "Image":
    from PIL import Image

    try:
        image = Image.open(path)
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: damaged, not a picture that can be read ({error}); get it again") from error
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{path}: more than 8 bits a pixel ({image.mode}); save it with 8 bits")
    return image


def _pixels(path: Path, mode: str, size: tuple[int, int], side: tuple[int, int]) -> Array:
    """Return a picture as (channels, height, width) bytes."""
    from PIL.Image import Resampling

    image = _opened(path)
    if image.size != size:
        parts = [f"{width} × {height}" for width, height in (image.size, size)]
        raise DataError(f"{path}: {parts[0]} pixels; the first picture has {parts[1]}")
    image = image.convert(mode)
    if side != size:
        image = image.resize(side, Resampling.BOX)
    array = np.asarray(image)
    return array[np.newaxis] if mode == "L" else array.transpose(2, 0, 1)


MODELNET = Published(
    name="modelnet",
    what="ModelNet10 or ModelNet40: pictures of shapes from twelve sides",
    task="10 or 40 classes",
    origin="modelnet.cs.princeton.edu; the twelve-view pictures come from the authors of multi-view CNNs",
    layout="CLASS/{train,test}/SHAPE_001.png … SHAPE_012.png\n"
    "or  CLASS/{train,test}/SHAPE/SHAPE_001.png … SHAPE_012.png\n"
    "or  {train,test}/CLASS/…  of either kind",
    features=Views(),
    read=_read,
)
