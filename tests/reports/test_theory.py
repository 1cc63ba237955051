"""Both sides of Theorem 1, in the report of a run."""

from dataclasses import replace
from pathlib import Path

import pytest

import tdcd
from serving.models import train_tables
from support import browser, drawn_in_a_browser
from tdcd.reports.figures import Bars, Picture
from tdcd.reports.theory import assumptions, constants, sides, theory_pictures, verdict
from tdcd.runs.layout import THEORY
from tdcd.runs.reader import read_run
from tdcd.runs.records import read_record, write_record
from tdcd.runs.theory import Assumption, GradientPoint, TheoryRecord

RECORD = TheoryRecord(
    rounds=20,
    planned=40,
    rate=0.1,
    highest_rate=0.1,
    local_steps=5,
    smoothness=2.0,
    client_smoothness=4.0,
    variances={"bank": 0.5, "shop <b>": 1.5},
    decrease=0.25,
    measured=0.5,
    terms={"descent": 1.0, "noise": 2.0, "staleness": 3.0, "coupling": 4.0},
    largest_rate=0.00625,
    balanced_rate=0.005,
    balanced_bound=1.25,
    assumptions=(Assumption("plain SGD", True, "no momentum"), Assumption("Lipschitz gradients", None, "kinks")),
    points=(
        GradientPoint(0, 1.0, 0.75, None, None),
        GradientPoint(10, 0.875, 0.5, 0.625, 10.5),
        GradientPoint(20, 0.75, 0.25, 0.5, 10.0),
    ),
    constants_at=(0, 10, 20),
    rows=60,
    clients=4,
    batches=50,
    evaluations=1234,
    passes=56.7,
    seconds=1.5,
    notes=("between rounds, norms are interpolated",),
)


def test_the_record_comes_back_from_its_file(tmp_path: Path) -> None:
    write_record(tmp_path / THEORY, RECORD)
    assert read_record(tmp_path / THEORY, TheoryRecord) == RECORD


def test_figures() -> None:
    curves, bars = theory_pictures(RECORD)
    assert isinstance(curves, Picture)
    assert [(curve.label, curve.x, curve.y) for curve in curves.curves] == [
        ("measured mean", [10.0, 20.0], [0.625, 0.5]),
        ("bound (does not hold)", [10.0, 20.0], [10.5, 10.0]),
        ("at one round", [0.0, 10.0, 20.0], [0.75, 0.5, 0.25]),
    ]
    assert curves.logarithmic == "y"
    assert isinstance(bars, Bars)
    assert list(bars.labels) == ["η = 0.1", "η = 0.00625, admissible"]
    assert {name: values[0] for name, values in bars.parts.items()} == pytest.approx(
        {"descent": 10.0, "noise": 20.0, "staleness": 30.0, "coupling": 40.0}
    )
    admissible = {"descent": 16.0, "noise": 2 / 16, "staleness": 3 / 16**2, "coupling": 4 / 16**3}
    assert [values[1] for values in bars.parts.values()] == pytest.approx(
        [100 * term / sum(admissible.values()) for term in admissible.values()]
    )


def test_tables() -> None:
    rows = dict(sides(RECORD)[1])
    assert rows["measured mean ‖∇L‖²"][0] == "0.5"
    assert rows["bound"][:2] == ["10", ""]
    assert rows["  noise"][:2] == ["2", "20.0%"]
    rows = dict(constants(RECORD)[1])
    assert rows["L_max"][0] == "4"
    assert rows["σ² of bank"] == ["0.5", "over 50 mini-batches"]
    assert rows["balanced η"] == ["0.005", "∝ 1/(Q·√R): descent and noise weigh the same; the bound would be 1.25"]
    assert "balanced η" not in dict(constants(replace(RECORD, balanced_rate=None))[1])
    assert [one[:2] for one in assumptions(RECORD)] == [
        ("rate condition", "no"),
        ("plain SGD", "yes"),
        ("Lipschitz gradients", "unclear"),
    ]


def test_verdicts() -> None:
    assert verdict(RECORD) == (
        "The bound does not hold for this training and is shown as orientation "
        "(η = 0.1 is 16 times the largest admissible rate, 0.00625)."
    )
    broken = replace(RECORD, assumptions=(Assumption("plain SGD", False, "momentum"),), highest_rate=0.001)
    assert "(not met: plain SGD)" in verdict(broken)
    holds = replace(RECORD, highest_rate=0.006)
    assert "The bound is 20 times what was measured." in verdict(holds)
    assert "more was measured than the bound" in verdict(replace(holds, measured=11.0))


def test_the_report_shows_it(tmp_path: Path) -> None:
    run = train_tables(tmp_path, rounds=2)
    assert "<h2>Theory</h2>" not in tdcd.write_report(run).read_text()
    write_record(run / THEORY, RECORD)
    assert read_run(run).theory == RECORD
    page = tdcd.write_report(run).read_text()
    section = page[page.index("<h2>Theory</h2>") : page.index("<h2>What it would cost</h2>")]
    for text in (
        "shown as orientation",
        "shop &lt;b&gt;",
        "Between rounds, norms are interpolated.",
        "1,234 gradients",
    ):
        assert text in section
    assert section.count("<svg") == 2
    if browser():
        for width in (390, 1200):
            assert drawn_in_a_browser(page, tmp_path, width)["width"] <= width, "the page scrolls sideways"
