"""Published data sets, read from their publishers' own files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from tdcd.data.sets.base import Dataset, Published, leave_in_files, split_among
from tdcd.data.sets.builtin import BREAST_CANCER, DIGITS
from tdcd.data.sets.cifar10 import CIFAR10
from tdcd.data.sets.idx import IDX
from tdcd.data.sets.mimic3 import MIMIC3
from tdcd.data.sets.modelnet import MODELNET
from tdcd.data.sets.physionet2012 import PHYSIONET2012, PatientSets
from tdcd.errors import DataError, nearest

SetName = Literal["digits", "breast-cancer", "cifar10", "idx", "mimic3", "modelnet", "physionet2012"]
SETS: Mapping[str, Published] = {
    entry.name: entry for entry in (DIGITS, BREAST_CANCER, CIFAR10, IDX, MIMIC3, MODELNET, PHYSIONET2012)
}
assert set(SETS) == set(get_args(SetName))  # noqa: S101


def read(
    name: str, directory: str | Path | None = None, pixels: int | None = None, sets: PatientSets | None = None
) -> Dataset:
    """Read a data set.

    Args:
        name: Which one.
        directory: Where its files lie; those that come with tdcd need none.
        pixels: Scale pictures to this width and height; for ModelNet.
        sets: Which sets of patients train and which test; for PhysioNet 2012.

    Raises:
        DataError: a file is missing, truncated or damaged; the message names it.
    """
    if name not in SETS:
        raise DataError(f"there is no data set '{name}'{nearest(name, SETS)}")
    entry = SETS[name]
    if entry.origin and directory is None:
        raise DataError(f"{name}: say in which directory its files are; 'tdcd data list' says where to get them")
    if not entry.origin and directory is not None:
        raise DataError(f"{name}: it comes with tdcd and takes no directory")
    if pixels is not None and name != MODELNET.name:
        raise DataError(f"{name}: pixels goes with {MODELNET.name} only")
    if sets is not None and name != PHYSIONET2012.name:
        raise DataError(f"{name}: sets goes with {PHYSIONET2012.name} only")
    options = [option for option in (pixels, sets) if option is not None]
    return entry.read(Path(directory or "."), *options)


__all__ = ["SETS", "Dataset", "PatientSets", "Published", "SetName", "leave_in_files", "read", "split_among"]
