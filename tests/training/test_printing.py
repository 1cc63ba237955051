"""What users see when they print something, and the history as a table."""

import copy
import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest

import tdcd
from tdcd.runs.history import History

RNG = np.random.default_rng(0)
NAMES = [f"silo-{number}" for number in range(12)]
X = {name: RNG.normal(size=(60, 3)) for name in NAMES}
Y = (sum(X.values()).sum(1) > 0).astype(int)  # type: ignore[union-attr]
CLIENTS = {f"client-{number}": range(number, 60, 20) for number in range(20)}
SILOS = [tdcd.Silo(name, X[name], CLIENTS) for name in NAMES]
FEDERATION = tdcd.Federation.from_silos(SILOS, Y)
SAMPLES = tdcd.Samples.from_arrays(X, Y)
SETTINGS = tdcd.Settings(loss="binary-cross-entropy", rounds=6, rate=0.1, batch_size=30, evaluate_every=1)


@pytest.fixture(scope="module")
def result() -> tdcd.Result:
    return tdcd.train(FEDERATION, tdcd.models.Linear(), SETTINGS, validation=SAMPLES, test=SAMPLES)


def test_what_is_printed_is_short(result: tdcd.Result) -> None:
    job = tdcd.load_job("digits")
    values: list[object] = [result, result.history, FEDERATION, SILOS[0], SAMPLES, SETTINGS, job.training, job.model]
    for value in values:
        text = repr(value)
        assert len(text) <= 1000, text
        assert text.count("\n") <= 11, text
    values = [result.history, result.kept, SILOS[0], SAMPLES, SETTINGS]
    for value in values:
        assert len(repr(value)) <= 600, repr(value)


def test_a_result_says_how_good_it_is(result: tdcd.Result) -> None:
    text = repr(result)
    assert text.startswith("Result of 6 rounds, binary-cross-entropy; 48 weights of round 6, silos silo-0, silo-1,")
    assert f"{result.kept.test['auroc']:.4g}" in text
    assert "loss" in text.splitlines()[1]
    html = result._repr_html_()
    assert html.count("<tr>") == 4
    assert f"<td>{result.kept.test['auroc']:.4g}</td>" in html


def test_a_federation_says_who_takes_part() -> None:
    lines = repr(FEDERATION).splitlines()
    assert lines[0] == "Federation of 12 silos, 60 samples"
    assert lines[2].split() == ["silo-0", "20", "3", "(3,)", "float64"]
    assert lines[-1].split() == ["…", "and", "4", "more"]
    assert "<td>silo-0</td><td>20</td>" in FEDERATION._repr_html_()


def test_labels_and_names_are_escaped() -> None:
    silos = [tdcd.Silo("a", X["silo-0"], [range(60)]), tdcd.Silo("b", None, [range(60)])]
    assert "labels only" in repr(tdcd.Federation.from_silos(silos, Y))
    odd = tdcd.Settings(loss="squared-error", rounds=1, rate=1)
    assert repr(odd).startswith("Settings(loss=SquaredError(), rounds=1, rate=1")


def test_a_repr_makes_the_same_settings_again() -> None:
    assert repr(tdcd.models.MLP(hidden=[64])) == "MLP()"
    assert eval(repr(tdcd.models.MLP(hidden=[8])), vars(tdcd.models)) == tdcd.models.MLP(hidden=[8])  # noqa: S307


def test_the_history_is_a_sequence(result: tdcd.Result) -> None:
    history = result.history
    assert len(history) == 7
    assert [line.round for line in history] == list(range(7))
    assert history[-1] == result.final
    assert history == tuple(history)
    assert [line.round for line in history[5:]] == [5, 6]
    for same in (copy.deepcopy(history), pickle.loads(pickle.dumps(history))):  # noqa: S301
        assert same == history


def test_the_history_is_a_table(result: tdcd.Result) -> None:
    frame = result.history.to_frame()
    assert frame.height == 7
    assert frame["test_auroc"].to_list() == [line.test["auroc"] for line in result.history]
    assert frame["train_loss"].to_list() == [line.train["loss"] for line in result.history]
    assert frame["hub_to_hub"].to_list() == [line.traffic.hub_to_hub for line in result.history]
    assert frame["rows_validation"].to_list() == [60] * 7
    assert frame.select(pl.col("round").is_sorted()).item()
    assert all(not kind.is_nested() for kind in frame.dtypes)


def test_measures_that_are_missing_are_null(result: tdcd.Result) -> None:
    lines: list[Any] = list(result.history)
    table = {**lines[1].as_dict(), "test": {}, "traffic": lines[1].traffic, "rows": lines[1].rows}
    frame = History([lines[0], tdcd.Evaluation(**table)]).to_frame()
    assert frame["test_loss"].to_list() == [lines[0].test["loss"], None]
    assert History().to_frame().height == 0
