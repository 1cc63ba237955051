"""Models that were assembled are measured as their runs are."""

from pathlib import Path

import pytest

from serving.models import as_hub_runs, new_tables, train_tables
from tdcd.errors import DataError, JobError
from tdcd.serving.assemble import assemble
from tdcd.serving.evaluate import Choice, evaluate_held_out, evaluate_tables
from tdcd.serving.model import load_model


def test_an_assembled_model_is_measured_as_its_run(tmp_path: Path) -> None:
    run = train_tables(tmp_path)
    assemble(as_hub_runs(run, tmp_path / "hubs"), tmp_path / "model")
    choice = Choice(threshold=0.4)
    measured, expected = (
        evaluate_tables(load_model(path), new_tables(tmp_path), choice)[0] for path in (tmp_path / "model", run)
    )
    assert measured.measures == expected.measures
    assert {one.silo: one for one in measured.silos} == {one.silo: one for one in expected.silos}
    assert measured.points[0] == expected.points[0]
    assert {client.name for one in measured.silos if one.silo == "bank" for client in one.clients} == {
        "north",
        "sea",
        "south",
    }
    predicted = load_model(run).predict_tables(new_tables(tmp_path)).measures
    assert {name: measured.measures[name] for name in predicted} == pytest.approx(dict(predicted))
    with pytest.raises(JobError, match="give one with --threshold"):
        evaluate_tables(load_model(tmp_path / "model"), new_tables(tmp_path), Choice(best="f1"))
    with pytest.raises(DataError, match="a model holds no rows"):
        evaluate_held_out(load_model(tmp_path / "model"))
