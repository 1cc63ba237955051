"""MIMIC-III in-hospital mortality, as the public mimic3-benchmarks extraction lays it out.

17 channels become 76 columns an hour: 12 numbers, 5 categories one-hot encoded, and 17 masks that tell what was
measured. The last value of an hour counts; an hour without one takes the last value before it, or a normal one.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tdcd.data.arrays import Array
from tdcd.data.features import Contiguous
from tdcd.data.sets.base import Dataset, Published, whole
from tdcd.data.sets.files import found_in, text_of
from tdcd.data.sets.series import HOURS, carried_forward
from tdcd.errors import DataError, nearest

NORMAL: Mapping[str, str] = {
    "Capillary refill rate": "0.0",
    "Diastolic blood pressure": "59.0",
    "Fraction inspired oxygen": "0.21",
    "Glascow coma scale eye opening": "4 Spontaneously",
    "Glascow coma scale motor response": "6 Obeys Commands",
    "Glascow coma scale total": "15",
    "Glascow coma scale verbal response": "5 Oriented",
    "Glucose": "128.0",
    "Heart Rate": "86",
    "Height": "170.0",
    "Mean blood pressure": "77.0",
    "Oxygen saturation": "98.0",
    "Respiratory rate": "19",
    "Systolic blood pressure": "118.0",
    "Temperature": "36.6",
    "Weight": "81.0",
    "pH": "7.4",
}
"""The channels in order, and the value of one that was never measured."""
CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "Capillary refill rate": ("0.0", "1.0"),
    "Glascow coma scale eye opening": (
        *("To Pain", "3 To speech", "1 No Response", "4 Spontaneously", "None", "To Speech", "Spontaneously"),
        "2 To pain",
    ),
    "Glascow coma scale motor response": (
        *("1 No Response", "3 Abnorm flexion", "Abnormal extension", "No response", "4 Flex-withdraws"),
        *("Localizes Pain", "Flex-withdraws", "Obeys Commands", "Abnormal Flexion", "6 Obeys Commands"),
        *("5 Localizes Pain", "2 Abnorm extensn"),
    ),
    "Glascow coma scale total": ("11", "10", "13", "12", "15", "14", "3", "5", "4", "7", "6", "9", "8"),
    "Glascow coma scale verbal response": (
        *("1 No Response", "No Response", "Confused", "Inappropriate Words", "Oriented", "No Response-ETT"),
        *("5 Oriented", "Incomprehensible sounds", "1.0 ET/Trach", "4 Confused", "2 Incomp sounds"),
        "3 Inapprop words",
    ),
}
CHANNELS = tuple(NORMAL)
COLUMNS = (
    *(f"{name}->{value}" if value else name for name in CHANNELS for value in CATEGORIES.get(name, ("",))),
    *(f"mask->{name}" for name in CHANNELS),
)
_JUST = 1e-6
"""A measurement at exactly 1:00 belongs to the hour before."""


def _read(directory: Path) -> Dataset:
    directory = found_in(directory, "in-hospital-mortality", "data/in-hospital-mortality", holds="train/listfile.csv")
    stays = [
        (part, stay, died)
        for part in ("train", "test")
        for stay, died in _listed(directory / part / "listfile.csv").items()
    ]
    rows = np.empty((len(stays), HOURS, len(COLUMNS)), dtype=np.float32)
    for number, (part, stay, _) in enumerate(stays):
        rows[number] = _encoded(_hourly(directory / part / stay))
    return Dataset(
        ids=np.array([f"{part}/{stay}" for part, stay, _ in stays]),
        labels=np.array([died for _, _, died in stays]),
        shape=(HOURS, len(COLUMNS)),
        pieces=whole(rows),
        testing=np.array([part == "test" for part, _, _ in stays]),
        columns=COLUMNS,
        classes=("survived", "died"),
        standardise=np.array(["->" not in column for column in COLUMNS]),
    )


def _listed(path: Path) -> Mapping[str, int]:
    """Read a list of stays and who died, sorted by stay."""
    header, *lines = text_of(path).splitlines() or [""]
    if header.split(",")[:2] != ["stay", "y_true"]:
        raise DataError(f"{path}: its first line must be stay,y_true, not '{header[:60]}'")
    record: dict[str, int] = {}
    for number, line in enumerate(lines, start=2):
        stay, _, died = line.partition(",")
        if not stay or died not in ("0", "1"):
            raise DataError(f"{path}: line {number} is damaged: '{line[:60]}'")
        if stay in record:
            raise DataError(f"{path}: line {number}: {stay} is there twice")
        record[stay] = int(died)
    if not record:
        raise DataError(f"{path}: it has no stays")
    return dict(sorted(record.items()))


def _hourly(path: Path) -> Array:
    """Read a stay: the last value of every hour (48, 17), NaN where there is none; categories by their number."""
    values = np.full((HOURS, len(CHANNELS)), np.nan)
    header, *lines = list(csv.reader(text_of(path).splitlines())) or [[]]
    if header[:1] != ["Hours"] or sorted(header[1:]) != sorted(CHANNELS):
        raise DataError(f"{path}: its first line must name Hours and the 17 channels; it names {header[:4]} …")
    places = [CHANNELS.index(name) for name in header[1:]]
    for number, cells in enumerate(lines, start=2):
        try:
            hours = float(cells[0])
        except (ValueError, IndexError) as error:
            raise DataError(f"{path}: line {number} is damaged: it has no hour") from error
        if len(cells) != len(header) or hours < 0:
            raise DataError(f"{path}: line {number} is damaged: {len(cells)} cells, hour {hours:g}")
        if hours <= HOURS + _JUST:
            hour = max(0, int(hours - _JUST))
            for place, cell in zip(places, cells[1:], strict=True):
                if cell:
                    values[hour, place] = _number(CHANNELS[place], cell, f"{path}: line {number}")
    return values


def _number(channel: str, cell: str, where: str) -> float:
    """Return a measurement; of a category, its number."""
    if channel in CATEGORIES:
        if cell not in CATEGORIES[channel]:
            raise DataError(f"{where}: '{cell}' is no {channel}{nearest(cell, CATEGORIES[channel])}")
        return CATEGORIES[channel].index(cell)
    try:
        value = float(cell)
    except ValueError as error:
        raise DataError(f"{where}: {channel} is '{cell}', not a number") from error
    if not np.isfinite(value):
        raise DataError(f"{where}: {channel} is {cell}")
    return value


def _encoded(values: Array) -> Array:
    """Turn a stay (48, 17) into its columns (48, 76)."""
    measured = ~np.isnan(values)
    normal = [_number(channel, cell, "normal values") for channel, cell in NORMAL.items()]
    values[0] = np.where(measured[0], values[0], normal)
    filled = carried_forward(values)
    parts: Sequence[Array] = [
        filled[:, place, np.newaxis] == np.arange(len(CATEGORIES[channel]))
        if channel in CATEGORIES
        else filled[:, place, np.newaxis]
        for place, channel in enumerate(CHANNELS)
    ]
    return np.hstack([*parts, measured])


MIMIC3 = Published(
    name="mimic3",
    what="MIMIC-III in-hospital mortality: 17 channels of 48 hours as 76 columns an hour",
    task="binary: death in hospital",
    origin="physionet.org/content/mimiciii (credentialed), extracted by github.com/YerevaNN/mimic3-benchmarks",
    layout="in-hospital-mortality/{train,test}/\n  listfile.csv\n  SUBJECT_episodeN_timeseries.csv …",
    features=Contiguous(silos=4),
    read=_read,
)
