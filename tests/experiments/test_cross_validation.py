"""Cross-validation: what its runs are tested on, what is made of them, and going on."""

import json
import re
import shutil
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import polars as pl
import pytest

import tdcd
from sites.tables import write_tables
from support import run_command
from tdcd.data.holdout import Part
from tdcd.errors import DivergedError, JobError, RunError
from tdcd.experiments.cross_validation import CrossValidation, cross_validate, plan_runs
from tdcd.experiments.splits import Splitting
from tdcd.experiments.sweep_file import parse_sweep
from tdcd.experiments.sweep_run import SweepObserver, run_sweep
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.reports.splits import measure_table
from tdcd.runs.cross_validation import CrossValidationRecord, read_cross_validation
from tdcd.runs.layout import variant_directory
from tdcd.runs.reader import read_run, read_sweep

SMALL = {
    "model.kind": "linear",
    "silos": {},
    "data.clients": 2,
    "training.rounds": 4,
    "training.evaluate_every": 2,
    "training.batch_size": "full",
    "training.rate": 0.1,
    "baselines": ["central", "alone"],
}


def job(**changes: Any) -> Job:
    return load_job("breast-cancer", SMALL | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CrossValidation]:
    path = tmp_path_factory.mktemp("cv") / "out"
    return path, cross_validate(job(), path, folds=3, jobs=2)


def test_every_fold_is_the_run_of_its_job(validated: tuple[Path, CrossValidation], tmp_path: Path) -> None:
    path, result = validated
    fold = {"data__folds": 3, "data__fold": 2, "data__test_fraction": None}
    run_job(job(**fold), tmp_path / "run")
    for variant, name in (("federation", "fold=2"), ("central", "central,fold=2")):
        own = read_run(variant_directory(tmp_path / "run", variant)).kept.test
        assert read_run(path / "runs" / name).kept.test == own
        row = result.frame.filter((pl.col("variant") == variant) & (pl.col("split") == "fold=2"))
        assert row["test_auroc"].to_list() == [own["auroc"]]
    assert result.frame["variant"].n_unique() == 2 + len(read_run(tmp_path / "run").federation.silos)
    assert result.frame.filter(variant="federation")["test_samples"].sum() == 569


def test_means_deviations_and_intervals_are_those_of_the_runs(validated: tuple[Path, CrossValidation]) -> None:
    path, result = validated
    runs = [read_run(path / "runs" / f"fold={fold}") for fold in (1, 2, 3)]
    values = [run.kept.test["auroc"] for run in runs]
    (row,) = result.summary.filter(variant="federation", metric="auroc").to_dicts()
    assert row["runs"] == 3
    assert row["mean"] == pytest.approx(fmean(values))
    assert row["deviation"] == pytest.approx(stdev(values))
    assert (row["minimum"], row["maximum"]) == (min(values), max(values))
    assert row["high"] - row["mean"] == pytest.approx(4.302653 * stdev(values) / sqrt(3))
    shared = fmean(run.federation.test_samples / run.federation.samples for run in runs)
    assert row["mean"] - row["corrected_low"] == pytest.approx(4.302653 * stdev(values) * sqrt(1 / 3 + shared))
    assert read_cross_validation(path) == result.record
    assert re.search(r"federation +auroc +3 of 3 +0\.\d+", repr(result))
    assert "3 folds" in repr(result)


def test_it_goes_on_where_it_was(validated: tuple[Path, CrossValidation], tmp_path: Path) -> None:
    path, result = validated
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shutil.rmtree(copy / "runs" / "fold=3")
    (copy / "runs" / "central,fold=1" / "result.json").unlink()
    begun: list[str] = []

    class Observer(SweepObserver):
        def began(self, name: str) -> None:
            begun.append(name)

    again = cross_validate(job(), copy, folds=3, jobs=1, observer=Observer())
    assert sorted(begun) == ["runs/central,fold=1", "runs/fold=3"]
    assert again.frame.equals(result.frame)
    assert again.record == result.record
    with pytest.raises(RunError, match=r"was run with other settings.*\n.*training.rate: 0.1 there, 0.2 here"):
        cross_validate(job(training__rate=0.2), copy, folds=3, jobs=1)
    assert read_cross_validation(copy) == result.record, "what was refused changes nothing"
    assert read_sweep(copy) == read_sweep(path)


def test_repeats_keep_the_first_folds_and_splits_take_the_jobs_fraction() -> None:
    one, two = (Splitting(3, repeats).jobs(job(), "job") for repeats in (1, 2))
    assert list(two) == ["fold=1", "fold=2", "fold=3", "fold=1,repeat=2", "fold=2,repeat=2", "fold=3,repeat=2"]
    assert {name: two[name] for name in one} == one
    seeds = {name: split.as_table()["data"]["seed"] for name, split in two.items()}
    assert [*seeds.values()] == [2021] * 3 + [2022] * 3
    drawn = Splitting(splits=3).jobs(job(data__test_fraction=0.4), "job")
    tested = [set(load_data(split).ids[Part.TEST].tolist()) for split in drawn.values()]
    assert len(tested) == 3
    assert tested[0] != tested[1] != tested[2]
    assert np.mean([len(ids) for ids in tested]) == pytest.approx(0.4 * 569, rel=0.1)
    assert Splitting().of_job(job(data__folds=7, data__fold=1, data__test_fraction=None)).count == 7
    names = [run.name for own in plan_runs(drawn, ["federation", "left alone"]).values() for run in own.values()]
    assert names[:2] == ["runs/split=1", "runs/left-alone,split=1"]


def test_validation_samples_are_drawn_of_the_other_folds(tmp_path: Path) -> None:
    write_tables(tmp_path)
    split = Splitting(4).jobs(load_job(tmp_path / "job.toml"), "job")["fold=2"]
    data = load_data(split)
    assert len(data.ids[Part.VALIDATION]) > 0
    assert not set(data.ids[Part.VALIDATION]) & set(data.ids[Part.TEST])


def test_a_fold_that_diverges_is_named_and_in_no_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one fold trains by another rate, it alone diverges."""
    jobs = Splitting.jobs

    def too_fast(splitting: Splitting, given: Job, where: str) -> dict[str, Job]:
        result = jobs(splitting, given, where)
        fast = result["fold=3"].training.replace(rate=1e30)
        return result | {"fold=3": result["fold=3"].model_copy(update={"training": fast})}

    monkeypatch.setattr(Splitting, "jobs", too_fast)
    monkeypatch.chdir(tmp_path)
    settings = ["--set", "training.rounds=2", "--set", "baselines=[]"]
    command = ["cv", "digits", "--folds", 4, "--jobs", 1, "--out", "out", *settings]
    monkeypatch.setenv("COLUMNS", "120")
    status = run_command(*command, "--json")
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert status == 2
    assert [run["split"] for run in record["runs"] if run["status"] == "diverged"] == ["fold=3"]
    assert all(measure["runs"] == 3 for measure in record["measures"])
    accuracies = [run["measures"]["accuracy"] for run in record["runs"] if run["split"] != "fold=3"]
    (mean,) = (measure["mean"] for measure in record["measures"] if measure["metric"] == "accuracy")
    assert mean == pytest.approx(fmean(accuracies))
    assert "1 of 4 runs diverged and is in no mean: federation, fold 3: diverged (its last good round" in captured.err
    assert "In no mean:</b> federation, fold 3" in Path("out/report.html").read_text()
    assert run_command(*command) == 2, "nor is it a success where all runs have ended before"
    assert re.search(r"accuracy +3 of 4 +0\.", capsys.readouterr().out)


def test_a_command_shows_the_table_and_writes_a_report(
    validated: tuple[Path, CrossValidation],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, result = validated
    monkeypatch.setenv("COLUMNS", "120")
    shutil.copytree(path, tmp_path / "out")
    sets = [f"{key}={json.dumps(value)}" for key, value in SMALL.items() if key != "silos"]
    options = [option for one in sets for option in ("--set", one)]
    assert run_command("cv", "breast-cancer", "--folds", 3, *options, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert re.search(r"(\d+) runs, of which \1 have ended before", printed)
    mean = result.summary.filter(variant="central", metric="auroc")["mean"].item()
    assert re.search(rf"AUROC +central +3 of 3 +{mean:.4f} ± ", printed)
    assert "95% t-interval" in printed
    assert "share training samples" in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{mean:.4f} ± " in page
    assert "Lines are means over folds" in page
    assert "What the paper claims" not in page
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command("cv", "breast-cancer", "--folds", 3, *options, "--out", tmp_path / "out") == 0
    narrow = capsys.readouterr().out
    assert re.search(rf"AUROC +central +3 of 3 +{mean:.4f} ± \d\.\d+ +\d\.\d+ … \d\.\d+ *\n", narrow)
    assert "95% t-interval" not in narrow
    assert run_command("compare", tmp_path / "out") == 0
    assert "over folds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--folds", 1], "folds: a whole number from 2 up is wanted, not 1"),
        (["--repeats", 0], "repeats: a whole number from 1 up is wanted, not 0"),
        (["--splits", 1], "splits: a whole number from 2 up is wanted, not 1"),
        (["--splits", 5, "--folds", 5], "leave out folds and repeats, or splits"),
        (["--splits", 5, "--repeats", 2], "leave out folds and repeats, or splits"),
        (["--quiet", "--json"], "--quiet and --json exclude each other"),
        (["--engine", "cloud"], "engine: 'cloud' is not known for a sweep"),
        (["--set", "training.rate=fast"], "training.rate: should be a valid number"),
    ],
)
def test_mistakes(options: list[Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("cv", "digits", *options, "--out", tmp_path / "out") == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_says_itself_what_is_held_out(tmp_path: Path) -> None:
    write_tables(tmp_path)
    text = (tmp_path / "job.toml").read_text().replace("validation_fraction = 0.1", 'split_column = "part"')
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(JobError, match="the column 'part' says what is held out, so that there are no other"):
        cross_validate(tmp_path / "job.toml", tmp_path / "out")
    run_job(job(baselines=[], training__rounds=1), tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        cross_validate(job(), tmp_path / "run", folds=2)


def test_it_replaces_no_sweep_and_no_sweep_replaces_it(validated: tuple[Path, CrossValidation], tmp_path: Path) -> None:
    sweep = parse_sweep('name = "s"\njob = "digits"\niterations = 1\nevaluate_every = 1', "sweep.toml")
    sweep = sweep.model_copy(update={"settings": {"training": {"local_steps": 1}}})
    with pytest.raises(RunError, match="already holds a cross-validation; choose another directory for this sweep"):
        run_sweep(sweep, validated[0])
    run_sweep(sweep, tmp_path / "sweep", jobs=1)
    with pytest.raises(RunError, match="already holds a sweep; choose another directory for this cross-validation"):
        cross_validate(job(), tmp_path / "sweep")


def test_a_single_variant_needs_no_column_of_its_own(validated: tuple[Path, CrossValidation]) -> None:
    record = validated[1].record
    one = [measure for measure in record.measures if measure.variant == "federation"]
    alone = CrossValidationRecord("job", "3 folds", 3, 0.95, record.runs, tuple(one))
    assert "trained by" in measure_table(record)[0]
    assert "trained by" not in measure_table(alone)[0]


def test_names_of_the_public_interface() -> None:
    assert tdcd.cross_validate is cross_validate
    assert issubclass(DivergedError, tdcd.TdcdError)
