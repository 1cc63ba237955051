"""Quality in reports: its figures and tables, for every kind of labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tdcd
from support import objective_of
from tdcd.core.topology import roster_of
from tdcd.reports import quality
from tdcd.reports.page import write_evaluation
from tdcd.runs.quality import Cut, QualityRecord
from tdcd.runs.reader import read_run
from tdcd.runs.records import write_record
from tdcd.training.quality import Assessment, assess


def record_of(kind: str, rows: int = 400, classes: int = 3) -> QualityRecord:
    random = np.random.default_rng(2)
    width = classes if kind == "ce" else 1
    scores = random.normal(size=(rows, width))
    objective = objective_of(kind)
    if kind == "ce":
        labels = (scores + random.normal(size=scores.shape)).argmax(1)
    elif kind == "bce":
        labels = (scores[:, 0] + random.normal(size=rows) > 1).astype(float)
    else:
        labels = scores + random.normal(size=scores.shape)
    what = Assessment(
        samples=f"the {rows} test samples",
        cuts=[Cut(0.4, "f1", "the 90 validation samples"), Cut(0.5, "half")],
        holders={"bank": roster_of(np.arange(rows) % 3, ["north", "south & <east>", "west"])},
    )
    return assess(objective, torch.tensor(scores), torch.tensor(labels), what)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("bce", ["roc", "precision-recall", "calibration", "gains"]),
        ("ce", ["roc", "precision-recall", "calibration"]),
        ("se", ["predicted"]),
    ],
)
def test_every_kind_of_labels_has_a_page(kind: str, names: list[str], tmp_path: Path) -> None:
    record = record_of(kind)
    assert [picture.name for picture in quality.quality_pictures(record)] == names
    write_evaluation(record, tmp_path / "page.html", "A page", "of a run")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == len(names)
    assert "Clients of bank" in page
    assert "south &amp; &lt;east&gt;" in page
    for value in ("auroc", "brier") if kind != "se" else ("mae", "r2"):
        assert f"{record.measures[value]:.4f}" in page
    assert len(page) < 250_000


def test_the_confusion_at_the_threshold() -> None:
    record = record_of("bce")
    point = record.points[0]
    matrix = quality.confusion(record)
    assert matrix is not None
    assert matrix.names == ("0", "1")
    assert matrix.counts == (
        (point.true_negatives, point.false_positives),
        (point.false_negatives, point.true_positives),
    )
    assert quality.describe_point(point) == "0.4, best F1 on the 90 validation samples"


def test_one_class_only_has_what_is_defined() -> None:
    z, y = torch.randn(30, 1), torch.zeros(30)
    record = assess(objective_of("bce"), z, y, Assessment("some rows"))
    assert [picture.name for picture in quality.quality_pictures(record)] == ["calibration"]
    assert quality.quality_view(record)["missing"] == "Curves and areas are undefined: all rows are of one class."


def test_a_run_report_has_it(tmp_path: Path) -> None:
    tdcd.run_job(tdcd.load_job("breast-cancer", {"training.rounds": 2, "baselines": []}), tmp_path / "run")
    page = tdcd.write_report(tmp_path / "run").read_text()
    assert "How good it is" in page
    run = read_run(tmp_path / "run")
    assert run.quality is not None
    assert f"{run.quality.measures['brier']:.4f}" in page
    write_record(tmp_path / "run" / "quality.json", replace(run.quality, samples="the <b>bold</b> samples"))
    assert "<b>bold" not in tdcd.write_report(tmp_path / "run").read_text()
    (tmp_path / "run" / "quality.json").write_text("{}")
    with pytest.raises(tdcd.RunError, match=r"quality.json: damaged"):
        tdcd.write_report(tmp_path / "run")
