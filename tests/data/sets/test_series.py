from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from data.sets import trees
from tdcd.data.holdout import Part, parts_of
from tdcd.data.sets import SETS, PatientSets, mimic3, read, split_among
from tdcd.data.sets.base import Dataset
from tdcd.data.sets.inspect import inspect
from tdcd.data.sets.mimic3 import CATEGORIES, CHANNELS, NORMAL
from tdcd.errors import DataError
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job

STAYS = [
    ("a", 132541, 1, ["00:07,HR,80", "00:50,HR,90", "02:00,HR,100", "48:00,HR,70", "00:10,Weight,-1"]),
    ("a", 132539, 0, []),
    ("b", 142675, 0, ["01:30,Weight,81.5"]),
]


def rows_of(dataset: Dataset) -> np.ndarray:
    (rows,) = dataset.pieces()
    return rows


def test_physionet2012(tmp_path: Path) -> None:
    trees.physionet(tmp_path, STAYS)
    dataset = read("physionet2012", tmp_path)
    assert dataset.ids.tolist() == [132539, 132541, 142675]
    assert dataset.labels.tolist() == [0, 1, 0]
    assert dataset.testing is not None
    assert dataset.testing.tolist() == [False, False, True]
    assert dataset.shape == (48, 74)
    assert dataset.attributes["ICUType"].tolist() == [4, 2, 4]
    rows = rows_of(dataset)
    place = dataset.columns.index("HR")
    assert dataset.columns[place + 1] == "HR measured"
    assert rows[1, [0, 1, 2, 3, 46, 47], place].tolist() == [90, 90, 100, 100, 100, 70]  # the last of the hour, carried
    assert rows[1, [0, 1, 2, 3, 46, 47], place + 1].tolist() == [1, 0, 1, 0, 0, 1]
    assert np.isnan(rows[0, :, ::2]).all()
    assert not rows[0, :, 1::2].any()
    weight = dataset.columns.index("Weight")
    assert np.isnan(rows[1, :, weight]).all()  # -1 means that nobody weighed
    blocks = SETS["physionet2012"].features.blocks(dataset.shape, dataset.columns, 0)
    samples, _ = split_among(dataset, blocks, parts_of(dataset.ids, 0, 0, 0, dataset.testing))
    assert [x.shape[-1] for x in samples[Part.TRAIN].features.values()] == [19, 19, 18, 18]
    known = samples[Part.TRAIN].features["silo-2"].numpy()
    assert np.isfinite(known).all()
    heart = known[1, :, place - 19]
    values = rows[1, :, place]
    assert np.allclose(heart, (values - values.mean()) / values.std(), atol=1e-5)
    assert not known[0, :, place - 19].any()  # nothing known: the mean


def in_sets(tmp_path: Path, sets: dict[str, list[str]] | None) -> tuple[list[int], list[int]]:
    """Return who trains and who tests."""
    dataset = read("physionet2012", tmp_path, sets=None if sets is None else PatientSets.model_validate(sets))
    testing = np.zeros(len(dataset), dtype=bool) if dataset.testing is None else dataset.testing
    return dataset.ids[~testing].tolist(), dataset.ids[testing].tolist()


def test_sets_of_physionet2012_train_or_test(tmp_path: Path) -> None:
    trees.physionet(tmp_path, [*STAYS, ("c", 152871, 1, ["00:07,HR,80"])])
    assert in_sets(tmp_path, None) == ([132539, 132541], [142675, 152871])
    assert in_sets(tmp_path, {"train": ["a"], "test": ["c"]}) == ([132539, 132541], [152871])
    assert in_sets(tmp_path, {"train": ["c", "b"], "test": ["a"]}) == ([152871, 142675], [132539, 132541])
    assert in_sets(tmp_path, {"train": ["c"]}) == ([152871], [])
    (tmp_path / "Outcomes-a.txt").unlink()
    assert in_sets(tmp_path, None) == ([142675], [152871])
    with pytest.raises(DataError, match="Outcomes-a.txt: missing"):
        in_sets(tmp_path, {"train": ["a"], "test": ["c"]})
    with pytest.raises(ValueError, match="names set c twice"):
        in_sets(tmp_path, {"train": ["b", "c"], "test": ["c"]})
    with pytest.raises(DataError, match="digits: sets goes with physionet2012 only"):
        read("digits", sets=PatientSets(train=["a"]))


def test_lines_of_physionet2012_without_a_parameter_are_counted_and_left_out(tmp_path: Path) -> None:
    stays = [*STAYS, ("c", 152871, 1, ["00:07,HR,80", "00:09,,81", "01:00, ,"]), ("c", 152873, 0, ["00:09,,-1"])]
    trees.physionet(tmp_path, [stay for stay in stays if stay[0] != "b"])
    dataset = read("physionet2012", tmp_path)
    assert dataset.notes == ("set c: 3 lines of 2 stays name no parameter, and are left out",)
    assert inspect(dataset)["notes"] == dataset.notes[0]
    assert rows_of(dataset)[2, 0, dataset.columns.index("HR")] == 80
    job = load_job("physionet2012", {"data.directory": str(tmp_path), "data.clients": 1})
    assert dataset.notes[0] in load_data(job).federation.notes


def test_one_set_of_physionet2012_is_enough(tmp_path: Path) -> None:
    trees.physionet(tmp_path, STAYS[:2])
    assert read("physionet2012", tmp_path).testing is None


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("Outcomes-a.txt", "In-hospital_death", "Died", "must name RecordID and In-hospital_death"),
        ("Outcomes-a.txt", "132539,6,1,5,-1,0", "132539,6,1", "Outcomes-a.txt: line 3 is damaged: '132539,6,1'"),
        ("Outcomes-a.txt", "132539,6", "132541,6", "line 3: record 132541 is there twice"),
        ("Outcomes-a.txt", "132539,6,1,5,-1,0\n", "", "it has no outcome for the records 132539"),
        ("set-a/132539.txt", "Time,Parameter", "Time,Name", "its first line must be Time,Parameter,Value"),
        ("set-a/132541.txt", "00:50,HR,90", "00:50,HR", "132541.txt: line 9 is damaged: '00:50,HR'"),
        ("set-a/132541.txt", "00:50,HR,90", "99:50,HR,90", "132541.txt: line 9 is damaged"),
        ("set-a/132541.txt", "00:50,HR,90", "00:50,HR,inf", "132541.txt: line 9 is damaged"),
        ("set-a/132541.txt", "00:50,HR", "00:50,Mood", "line 9 names 'Mood', which this data set does not have"),
        ("set-a/132541.txt", "RecordID,132541", "RecordID,1", "it says it is record 1"),
    ],
)
def test_damaged_physionet2012(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    trees.physionet(tmp_path, STAYS)
    path = tmp_path / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read("physionet2012", tmp_path)


def test_a_stay_of_physionet2012_is_missing(tmp_path: Path) -> None:
    trees.physionet(tmp_path, STAYS)
    (tmp_path / "set-b" / "142675.txt").unlink()
    with pytest.raises(DataError, match="142675.txt: missing"):
        read("physionet2012", tmp_path)
    with pytest.raises(DataError, match="Outcomes-a.txt is not there, so it is not this data set; it has 132539.txt"):
        read("physionet2012", tmp_path / "set-a")


def plainly(stay: list[dict[str, str]]) -> np.ndarray:
    """The discretisation written out cell by cell: another way to the same 48 × 76."""
    hours: list[Mapping[str, str]] = []
    last = dict(NORMAL)
    masks = []
    for hour in range(48):
        seen: dict[str, str] = {}
        for row in stay:
            time = float(row["Hours"])
            if hour < time <= hour + 1 or (hour == 0 and time == 0):
                seen |= {name: cell for name, cell in row.items() if cell and name != "Hours"}
        last |= seen
        hours.append(dict(last))
        masks.append([float(name in seen) for name in CHANNELS])
    rows = []
    for hour_values, mask in zip(hours, masks, strict=True):
        numbers: list[float] = []
        for name in CHANNELS:
            if name in CATEGORIES:
                numbers += [float(hour_values[name] == value) for value in CATEGORIES[name]]
            else:
                numbers.append(float(hour_values[name]))
        rows.append(numbers + mask)
    return np.array(rows)


MIMIC = [
    ("train", "2_episode1_timeseries.csv", 1, [
        {"Hours": "0.0", "Heart Rate": "90", "Glascow coma scale total": "14"},
        {"Hours": "0.5", "Heart Rate": "95", "Glascow coma scale eye opening": "To Pain"},
        {"Hours": "1.0", "Temperature": "37.5"},
        {"Hours": "1.2", "Temperature": "38.5", "Capillary refill rate": "1.0"},
        {"Hours": "47.9", "pH": "7.1", "Glascow coma scale total": "3"},
        {"Hours": "60.0", "pH": "6.1"},
    ]),
    ("train", "10_episode2_timeseries.csv", 0, [{"Hours": "20", "Weight": "70.5"}]),
    ("test", "5_episode1_timeseries.csv", 0, [{"Hours": "3", "Glucose": "140"}]),
]  # fmt: skip


def test_mimic3(tmp_path: Path) -> None:
    trees.mimic(tmp_path, MIMIC)
    dataset = read("mimic3", tmp_path)
    assert len(mimic3.COLUMNS) == 76
    assert dataset.ids.tolist() == [
        *("train/10_episode2_timeseries.csv", "train/2_episode1_timeseries.csv", "test/5_episode1_timeseries.csv")
    ]
    assert dataset.labels.tolist() == [0, 1, 0]
    rows = rows_of(dataset)
    for number, stay in ((0, MIMIC[1]), (1, MIMIC[0]), (2, MIMIC[2])):
        assert np.allclose(rows[number], plainly(stay[3]))
    assert dataset.standardise is not None
    assert dataset.standardise.sum() == 12
    blocks = SETS["mimic3"].features.blocks(dataset.shape, dataset.columns, 0)
    samples, _ = split_among(dataset, blocks, parts_of(dataset.ids, 0, 0, 0, dataset.testing))
    assert [x.shape[-1] for x in samples[Part.TRAIN].features.values()] == [19] * 4


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("train/listfile.csv", "stay,y_true", "stay,y", "must be stay,y_true"),
        ("train/listfile.csv", ".csv,1", ".csv,", "line 2 is damaged"),
        ("train/listfile.csv", "10_episode2", "2_episode1", "is there twice"),
        (
            "train/2_episode1_timeseries.csv",
            "To Pain",
            "To Pane",
            "line 3: 'To Pane' is no Glascow .*did you mean 'To Pain'",
        ),
        ("train/2_episode1_timeseries.csv", "37.5", "warm", "line 4: Temperature is 'warm', not a number"),
        ("train/2_episode1_timeseries.csv", "7.1", "nan", "pH is nan"),
        ("train/2_episode1_timeseries.csv", "Hours,", "Time,", "must name Hours and the 17 channels"),
        ("train/2_episode1_timeseries.csv", "\n60.0", "\nlate", "line 7 is damaged: it has no hour"),
        ("train/2_episode1_timeseries.csv", "7.1\n", "7.1,8\n", "line 6 is damaged: 19 cells"),
    ],
)
def test_damaged_mimic3(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    trees.mimic(tmp_path, MIMIC)
    path = tmp_path / "in-hospital-mortality" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        read("mimic3", tmp_path / "in-hospital-mortality")
