"""Folds and refits as settings of a job: what is held out, and from whom."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd
from data.sets.trees import cifar
from sites.tables import write_tables
from tdcd.data.holdout import Part, folds_of
from tdcd.data.sets import cifar10
from tdcd.errors import DataError, JobError
from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import plain_steps
from tdcd.jobs.tables import OpenTables


def read(job: str | Path, **settings: Any) -> JobData:
    return load_data(load_job(job, {f"data.{key}": value for key, value in settings.items()}))


def ids(data: JobData, part: Part) -> set[Any]:
    return set(data.ids[part].tolist()) if part in data.ids else set()


@pytest.mark.parametrize("source", ["digits", "tables", "aligned tables"])
def test_folds_share_out_all_samples(source: str, tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file = tmp_path / "job.toml"
    job = "digits" if source == "digits" else str(file)
    if source != "digits":
        write_tables(tmp_path)
    if source == "aligned tables":
        OpenTables.open(load_job(job), lambda what: None).align()[0].save(tmp_path / "alignment.parquet")
        file.write_text(file.read_text().replace("[data]", '[data]\nalignment = "alignment.parquet"'))
    folds = [read(job, folds=3, fold=fold, validation_fraction=0.2, test_fraction=None) for fold in (1, 2, 3)]
    everyone = set().union(*(ids(folds[0], part) for part in Part))
    tested = [ids(data, Part.TEST) for data in folds]
    assert sum(map(len, tested)) == len(everyone)
    assert set().union(*tested) == everyone
    for data, held in zip(folds, tested, strict=True):
        assert held.isdisjoint(ids(data, Part.TRAIN) | ids(data, Part.VALIDATION))
        assert (
            len(data.federation)
            == len(data.federation.ids)
            == len(everyone) - len(held) - len(data.ids[Part.VALIDATION])
        )
    again = read(job, folds=3, fold=1, seed=5, test_fraction=None)
    assert ids(again, Part.TEST) != tested[0]


def test_a_split_into_folds_replaces_that_of_the_publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10, "IMAGES", 12)
    monkeypatch.setattr(cifar10, "PIECE", 4)
    cifar(tmp_path, images=12)
    data = {"source": "cifar10", "directory": str(tmp_path), "clients": 1, "folds": 2}
    rest = {"model": {"kind": "linear"}, "training": {"loss": "cross-entropy", "rounds": 1, "rate": 0.1}}
    one, other = (load_data(parse_job({"data": data | {"fold": fold}} | rest, "job")) for fold in (1, 2))
    assert ids(one, Part.TEST) == ids(other, Part.TRAIN)
    assert ids(one, Part.TRAIN) == ids(other, Part.TEST)


@pytest.mark.parametrize("held", [{"test_fraction": 0.3}, {"folds": 3, "fold": 2}])
def test_a_refit_trains_on_the_validation_samples_and_tests_on_the_same(held: dict[str, Any], tmp_path: Path) -> None:
    write_tables(tmp_path)
    job = tmp_path / "job.toml"
    before, after = (read(job, **held, validation_fraction=0.3, refit=refit) for refit in (False, True))
    assert ids(after, Part.TEST) == ids(before, Part.TEST)
    assert ids(after, Part.TRAIN) == ids(before, Part.TRAIN) | ids(before, Part.VALIDATION)
    assert Part.VALIDATION not in after.held_out
    assert len(ids(before, Part.VALIDATION)) > 20


def test_a_refit_where_a_column_says_what_is_held_out(tmp_path: Path) -> None:
    import polars as pl

    write_tables(tmp_path)
    for file in tmp_path.glob("bank-*.csv"):
        frame = pl.read_csv(file)
        words = np.array(["train", "validation", "test"])[np.arange(len(frame)) % 3]
        frame.with_columns(part=pl.Series(words)).write_csv(file)
    column = {"split_column": "part", "validation_fraction": None}
    before, after = (read(tmp_path / "job.toml", **column, refit=refit) for refit in (None, True))
    assert ids(after, Part.TRAIN) == ids(before, Part.TRAIN) | ids(before, Part.VALIDATION)
    assert ids(after, Part.TEST) == ids(before, Part.TEST)
    for file in tmp_path.glob("bank-*.csv"):
        file.write_text(file.read_text().replace("validation", "train"))
    with pytest.raises(DataError, match=r"data.refit: there are no validation samples"):
        read(tmp_path / "job.toml", **column, refit=True)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"folds": 5}, "data: fold: it is missing beside folds; folds = 5 and fold = 1 go together"),
        ({"fold": 1}, "data: folds: it is missing beside fold"),
        ({"folds": 5, "fold": 6}, "data: fold: there is no fold 6 of 5; they are numbered 1 to 5"),
        ({"folds": 1, "fold": 1}, "data.folds: should be greater than or equal to 2"),
        ({"folds": 5, "fold": 0}, "data.fold: should be greater than or equal to 1"),
        ({"folds": 5, "fold": 1, "test_fraction": 0.2}, "data: folds: a whole fold is for testing; leave out"),
        ({"refit": True}, "data: refit: there are no validation samples"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(JobError, match=says):
        read("digits", **settings)


def test_a_column_and_folds_exclude_each_other(tmp_path: Path) -> None:
    write_tables(tmp_path)
    with pytest.raises(JobError, match="split_column says what is held out; leave out test_fraction, .* and folds"):
        read(tmp_path / "job.toml", split_column="part", validation_fraction=None, folds=2, fold=1)


def test_a_refit_has_nothing_to_choose_by() -> None:
    data = {"data.validation_fraction": 0.2, "data.refit": True}
    for training in ({"training.select": "best"}, {"training.patience": 3}):
        with pytest.raises(
            JobError, match=r"data.refit: no validation samples are left to choose by; set training.sel"
        ):
            load_job("digits", data | training)
    assert load_job("digits", data).data.refit  # type: ignore[union-attr]


def test_an_empty_fold_is_refused() -> None:
    empty = next(fold for fold in range(1, 4000) if fold not in folds_of(np.arange(1797), 4000, 2021))
    with pytest.raises(DataError, match=rf"fold {empty} of 4000 leaves no samples to test, out of 1,797"):
        read("digits", folds=4000, fold=empty, test_fraction=None)


def test_the_baselines_of_a_cut_cosine_have_its_rates() -> None:
    settings = tdcd.Settings(
        loss="cross-entropy",
        rounds=4,
        local_steps=3,
        rate=0.8,
        schedule=tdcd.schedules.Cosine(over=10),
    )
    steps = plain_steps(settings)
    assert steps.rounds == 12
    assert steps.rate_of(1) == 0.8
    assert steps.rate_of(12) == pytest.approx(settings.rate_of(4), abs=0.06)
    assert steps.rate_of(30) == 0.0
