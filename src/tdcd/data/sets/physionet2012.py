"""PhysioNet/CinC Challenge 2012: who dies in hospital, from the first 48 hours in intensive care."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from tdcd.data.arrays import Array
from tdcd.data.features import Contiguous
from tdcd.data.sets.base import Dataset, Published, whole
from tdcd.data.sets.files import found_in, text_of
from tdcd.data.sets.series import HOURS, carried_forward
from tdcd.errors import DataError, join_names
from tdcd.strict import Strict

SERIES = (
    *("Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS"),
    *("Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "Mg", "MAP", "MechVent", "Na", "NIDiasABP", "NIMAP"),
    *("NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI"),
    *("TroponinT", "Urine", "WBC", "Weight"),
)
DESCRIPTORS = ("Age", "Gender", "Height", "ICUType")
_NUMBERS = {name: number for number, name in enumerate(SERIES)}
_UNKNOWN = -1.0
SetLetter = Literal["a", "b", "c"]
SET_NAMES: tuple[SetLetter, ...] = ("a", "b", "c")


class PatientSets(Strict):
    """Which sets of patients train and which test; others are not read."""

    train: Annotated[list[SetLetter], Field(min_length=1)]
    test: list[SetLetter] = []
    """Default: a fraction of those that train, as for data without a test set."""

    @model_validator(mode="after")
    def _once(self) -> "PatientSets":
        named = [*self.train, *self.test]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"names set {join_names(twice)} twice")
        return self


def _read(directory: Path, sets: PatientSets | None = None) -> Dataset:
    there = [name for name in SET_NAMES if (directory / f"Outcomes-{name}.txt").exists()]
    if not there:
        found_in(directory, holds="Outcomes-a.txt")
    if sets is None:
        sets = PatientSets(train=there[:1], test=there[1:])
    outcomes: dict[str, Mapping[int, int]] = {
        name: _outcomes(directory / f"Outcomes-{name}.txt") for name in (*sets.train, *sets.test)
    }
    stays = [(name, record) for name in outcomes for record in outcomes[name]]
    rows = np.empty((len(stays), HOURS, 2 * len(SERIES)), dtype=np.float32)
    descriptors = np.empty((len(stays), len(DESCRIPTORS)))
    nameless = np.zeros(len(stays), dtype=np.int64)
    for number, (name, record) in enumerate(stays):
        values, descriptors[number], nameless[number] = _stay(directory / f"set-{name}" / f"{record}.txt")
        rows[number, :, 1::2] = ~np.isnan(values)
        rows[number, :, 0::2] = carried_forward(values)
    _nobody_forgotten(directory, outcomes)
    testing = np.array([name in sets.test for name, _ in stays])
    return Dataset(
        ids=np.array([record for _, record in stays]),
        labels=np.array([outcomes[name][record] for name, record in stays]),
        shape=(HOURS, 2 * len(SERIES)),
        pieces=whole(rows),
        testing=testing if sets.test else None,
        columns=tuple(column for name in SERIES for column in (name, f"{name} measured")),
        classes=("survived", "died"),
        standardise=np.arange(2 * len(SERIES)) % 2 == 0,
        attributes={name: descriptors[:, number].astype(np.int64) for number, name in enumerate(DESCRIPTORS)},
        notes=tuple(_about_nameless(stays, nameless)),
    )


def _about_nameless(stays: Sequence[tuple[str, int]], nameless: Array) -> Iterator[str]:
    for name in SET_NAMES:
        lines = nameless[[own == name for own, _ in stays]]
        if lines.any():
            yield (
                f"set {name}: {lines.sum():,} lines of {np.count_nonzero(lines):,} stays name no parameter, and are "
                "left out"
            )


def _outcomes(path: Path) -> Mapping[int, int]:
    """Read who died: 0 or 1 by record, sorted."""
    header, *lines = text_of(path).splitlines() or [""]
    columns = header.split(",")
    if columns[:1] != ["RecordID"] or "In-hospital_death" not in columns:
        raise DataError(f"{path}: its first line must name RecordID and In-hospital_death, not '{header[:60]}'")
    place = columns.index("In-hospital_death")
    record: dict[int, int] = {}
    for number, line in enumerate(lines, start=2):
        cells = line.split(",")
        if len(cells) != len(columns) or not cells[0].isdecimal() or cells[place] not in ("0", "1"):
            raise DataError(f"{path}: line {number} is damaged: '{line[:60]}'")
        if int(cells[0]) in record:
            raise DataError(f"{path}: line {number}: record {cells[0]} is there twice")
        record[int(cells[0])] = int(cells[place])
    if not record:
        raise DataError(f"{path}: it has no records")
    return dict(sorted(record.items()))


def _stay(path: Path) -> tuple[Array, Array, int]:
    """Read a stay.

    Returns:
        The last value of every hour (48, 37), NaN where there is none; the descriptors; and how many lines name no
        parameter, so that nobody can tell what was measured.
    """
    values = np.full((HOURS, len(SERIES)), np.nan, dtype=np.float32)
    descriptors = dict.fromkeys(DESCRIPTORS, _UNKNOWN)
    record, nameless = None, 0
    lines = text_of(path).splitlines()
    if lines[:1] != ["Time,Parameter,Value"]:
        raise DataError(f"{path}: its first line must be Time,Parameter,Value; get it again")
    for number, line in enumerate(lines[1:], start=2):
        try:
            time, name, text = line.split(",")
            if not name.strip():
                nameless += 1
                continue
            hour, value = int(time[:2]), float(text)
            if time[2] != ":" or not 0 <= hour <= HOURS or not isfinite(value):
                raise ValueError(line)
        except (ValueError, IndexError) as error:
            raise DataError(f"{path}: line {number} is damaged: '{line[:60]}'; get it again") from error
        if name == "RecordID":
            record = text
        elif name in descriptors:
            descriptors[name] = value
        elif name in _NUMBERS:
            if value != _UNKNOWN:
                values[min(hour, HOURS - 1), _NUMBERS[name]] = value
        else:
            raise DataError(f"{path}: line {number} names '{name}', which this data set does not have")
    if record != path.stem:
        raise DataError(f"{path}: it says it is record {record}")
    return values, np.array(list(descriptors.values())), nameless


def _nobody_forgotten(directory: Path, outcomes: Mapping[str, Mapping[int, int]]) -> None:
    for name, known in outcomes.items():
        there = {path.stem for path in (directory / f"set-{name}").glob("*.txt")}
        strange = sorted(there - {str(record) for record in known})
        if strange:
            path = directory / f"Outcomes-{name}.txt"
            raise DataError(f"{path}: it has no outcome for the records {join_names(strange)}")


PHYSIONET2012 = Published(
    name="physionet2012",
    what="4,000 + 4,000 + 4,000 stays in intensive care: 37 hourly series of 48 hours, and whether each was measured",
    task="binary: death in hospital",
    origin="physionet.org/content/challenge-2012 (ODC-By); set a is for training, b and c are for testing",
    layout="Outcomes-a.txt, Outcomes-b.txt …\nset-a/132539.txt …\nset-b/142675.txt …",
    features=Contiguous(silos=4),
    read=_read,
)
