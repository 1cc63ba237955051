"""Data that a function of the user's own returns, named by a job."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tdcd
from tdcd.jobs.load import parse_job
from tdcd.sites.local_deployment import LocalFederation

CODE = """
import numpy as np
import tdcd

def read(rows=60, extra="test"):
    rng = np.random.default_rng(0)
    x = {"bank": rng.normal(size=(rows + 9, 3)), "shop": rng.normal(size=(rows + 9, 2))}
    y = (x["bank"].sum(1) + x["shop"].sum(1) > 0).astype(int)
    silos = [tdcd.Silo(name, rows_[:rows], [range(20), range(20, rows)]) for name, rows_ in x.items()]
    test = tdcd.Samples.from_arrays({name: rows_[rows:] for name, rows_ in x.items()}, y[rows:])
    return {"federation": tdcd.Federation.from_silos(silos, y[:rows]), extra: test}

def plain():
    return read()["federation"]

def frames():
    import polars as pl
    made = read()
    rows = made["federation"].samples.features["bank"].numpy()
    test = made["test"].features["bank"].numpy()
    labels = made["federation"].samples.labels, made["test"].labels
    bank = tdcd.Silo("bank", pl.DataFrame(rows, schema=["x", "y", "z"]), [range(60)])
    turned = pl.DataFrame(test, schema=["x", "y", "z"]).select("z", "y", "x")
    return {
        "federation": tdcd.Federation.from_silos([bank], labels[0]),
        "test": tdcd.Samples.from_arrays({"bank": turned}, labels[1]),
    }

def named(path, what="", given=0):
    assert (path, what, given) == ("x.csv", "y", 3)
    return plain()

def wrong():
    return [1, 2]

def nothing():
    return {"test": read()["test"]}

def fails():
    raise ValueError("no such year")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "hospitals.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    import sys

    sys.modules.pop("hospitals", None)


def job(source: str = "hospitals:read", **more: Any) -> Any:
    training = {"loss": "cross-entropy", "rounds": 4, "rate": 0.1, "evaluate_every": 2}
    table = {"data": {"source": source}, "model": {"kind": "linear"}, "training": training}
    return table | more


def test_a_function_is_trained_on_as_arrays_are(folder: Path) -> None:
    read = parse_job(job(data={"source": "hospitals:read", "options": {"rows": 50}}, baselines=["alone"]), "job")
    data = tdcd.load_data(read)
    assert len(data.federation) == 50
    result = tdcd.run_job(read, folder / "run")
    (test,) = data.held_out.values()
    same = tdcd.train(data.federation, tdcd.models.Linear(), read.training, test=test)
    assert result.federation.kept.test == same.kept.test
    assert set(result.baselines) == {"bank alone", "shop alone"}
    with pytest.raises(
        tdcd.RunError, match="its data source is 'hospitals:read', which is code that you have not allowed"
    ):
        tdcd.load_model(folder / "run").predict_held_out()
    run = tdcd.load_model(folder / "run", imports=["hospitals"])
    assert torch.equal(run.result.scores(test.features), same.scores(test.features))
    assert run.predict_held_out().frame.height == 9
    assert tdcd.load_job(folder / "run" / "job.toml") == read


def test_a_function_may_return_the_federation_alone(folder: Path) -> None:
    data = tdcd.load_data(parse_job(job("hospitals:plain", silos={"bank": {"model": {"kind": "mlp"}}}), "job"))
    assert (len(data.federation), dict(data.held_out)) == (60, {})


def test_options_may_have_any_name(folder: Path) -> None:
    options = {"path": "x.csv", "what": "y", "given": 3}
    data = tdcd.load_data(parse_job(job(data={"source": "hospitals:named", "options": options}), "job"))
    assert len(data.federation) == 60


def test_frames_of_a_function_may_have_their_columns_in_any_order(folder: Path) -> None:
    read = parse_job(job("hospitals:frames"), "job")
    result = tdcd.run_job(read, folder / "run").federation
    data, plain = tdcd.load_data(read), tdcd.load_data(parse_job(job(), "job"))
    (test,), (expected,) = data.held_out.values(), plain.held_out.values()
    assert torch.equal(test.features["bank"], expected.features["bank"])
    assert result.evaluate(test) == pytest.approx(result.kept.test)
    assert tdcd.load_model(folder / "run", imports=["hospitals"]).predict_held_out().measures == result.evaluate(test)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (job("hospitals:wrong"), r"job: hospitals:wrong: federation should be a tdcd.Federation, not <class 'list'>"),
        (job("hospitals:nothing"), "job: hospitals:nothing returned no federation, but test"),
        (
            job("hospitals:fails"),
            r"data source 'hospitals:fails': the factory failed for \{\}: ValueError: no such year",
        ),
        (job("hospitals:raed"), "data source 'hospitals:raed': the module 'hospitals' has no 'raed'"),
        (job("nowhere:read"), "data source 'nowhere:read': there is no module 'nowhere'"),
        (
            job(data={"source": "hospitals:read", "options": {"extra": "tests"}}),
            "returned 'tests', which is not known; did you mean 'test'",
        ),
        (job(silos={"bnak": {}}), "silos.bnak: the data has no such silo; did you mean 'bank'"),
    ],
)
def test_functions_that_return_something_else(folder: Path, table: Any, says: str) -> None:
    with pytest.raises(tdcd.TdcdError, match=says):
        tdcd.load_data(parse_job(table, "job"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"data": {"source": "hospitals:read", "clients": 3}}, "data.clients|unknown key 'clients'"),
        ({"silos": {"bank": {"clients": 3}}}, "silos.bank.clients: the function hospitals:read says who holds what"),
        ({"data": {"source": "hospitals:2"}}, "data.source: is written as 'package.module:function'"),
        ({"labels": {"positive": "x"}}, 'labels.positive goes with data.source = "tables" only'),
    ],
)
def test_what_a_job_on_a_function_cannot_say(more: Any, says: str) -> None:
    with pytest.raises(tdcd.JobError, match=says):
        parse_job(job(**more), "job")


def test_sites_refuse_it_by_name(folder: Path) -> None:
    with pytest.raises(tdcd.JobError, match="data.source: the function 'hospitals:read' .* can be simulated only"):
        LocalFederation.laid_out(parse_job(job(), "job"), folder / "sites", insecure=True)
