"""Whole trainings on a cluster of Ray, started on this machine: the local engine's numbers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import tdcd
from jobs.three_silos import write_tables
from support import Interrupt, distance, same
from trajectories import FILES, check_trajectory

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tdcd[ray]'")

RNG = np.random.default_rng(4)
X = RNG.normal(size=(300, 9))
Y = (X @ RNG.normal(size=9) > 0).astype(int)
HELD = {"a": 37, "b": 20, "c": 3}
SETTINGS = tdcd.Settings(
    loss="binary-cross-entropy",
    rounds=6,
    local_steps=3,
    batch_size=150,
    rate=0.3,
    evaluate_every=2,
    precision="float64",
)
TEST = tdcd.Samples.from_arrays({"a": X[:50, :4], "b": X[:50, 4:6], "c": X[:50, 6:]}, Y[:50])


@pytest.fixture(autouse=True, scope="module")
def _cluster() -> Iterator[None]:
    yield
    ray.shutdown()


def federation(**features: Any) -> tdcd.Federation:
    columns = {"a": X[:, :4], "b": X[:, 4:6], "c": X[:, 6:]} | features
    silos = [tdcd.Silo(j, columns[j], [range(300)[k::count] for k in range(count)]) for j, count in HELD.items()]
    return tdcd.Federation.from_silos(silos, Y)


def train(engine: Any, settings: tdcd.Settings = SETTINGS, **more: Any) -> tdcd.Result:
    made = more.pop("federation", None) or federation()
    models = {silo: tdcd.models.MLP(hidden=[5]) for silo in made.with_features}
    return tdcd.train(made, models, settings, engine=engine, **more)


def check_equal(ray: tdcd.Result, local: tdcd.Result) -> None:
    assert distance(ray.blocks, local.blocks) < 1e-9
    for one, two in zip(ray.history, local.history, strict=True):
        assert (one.round, one.traffic) == (two.round, two.traffic)
        assert one.train == pytest.approx(two.train, abs=1e-9)
        assert one.test == pytest.approx(two.test, abs=1e-9)


@pytest.mark.parametrize("name", FILES)
def test_follows_the_authors_trajectory(name: str) -> None:
    check_trajectory(name, "ray")


@pytest.mark.parametrize(
    ("change", "more"),
    [
        ({}, {}),
        ({"optimizer": {"kind": "adam"}, "carry_optimizer": True, "codec": "bfloat16", "averaging": "samples"}, {}),
        ({"aggregator": {"kind": "median"}, "proximal": 0.1}, {}),
        ({"aggregator": {"kind": "momentum"}, "participation": 0.5, "codec": "float16"}, {}),
        ({}, {"silos": {"b": tdcd.SiloSettings(local_steps=5, rate=0.1)}}),
        ({}, {"labels": tdcd.Labels(silo="b", sharing="exact", clip=0.5, noise=0.3)}),
        ({"codec": "float16"}, {"labels": tdcd.Labels(silo="a", sharing="stale")}),
    ],
)  # fmt: skip
def test_trains_as_the_local_engine(change: dict[str, Any], more: dict[str, Any]) -> None:
    settings = SETTINGS.replace(**change)
    check_equal(train("ray", settings, test=TEST, **more), train("local", settings, test=TEST, **more))


def test_a_silo_that_has_labels_only() -> None:
    silos = [tdcd.Silo(j, x, [range(0, 300, 2), range(1, 300, 2)]) for j, x in (("a", X[:, :4]), ("b", X[:, 4:]))]
    made = tdcd.Federation.from_silos([*silos, tdcd.Silo("clerk", None, [range(300)])], Y)
    more: dict[str, Any] = {"federation": made, "labels": tdcd.Labels(silo="clerk", sharing="exact", clip=1.0)}
    check_equal(train("ray", **more), train("local", **more))


def test_rows_are_read_at_the_nodes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X[:, :4])
    stored = federation(a=tdcd.ArrayFile(tmp_path / "a.npy"))
    check_equal(train("ray", federation=stored, test=TEST), train("local", test=TEST))
    simulation = tdcd.Simulation(stored, tdcd.models.Linear(), SETTINGS, engine="ray")
    with pytest.raises(tdcd.JobError, match="the rows of silo a are read at the nodes"):
        simulation.clients(simulation.init())
    simulation.close()
    broken = X[:, :4].copy()
    broken[7, 2] = np.inf
    np.save(tmp_path / "a.npy", broken)
    with pytest.raises(tdcd.DataError, match="silo 'a': NaN or infinite numbers in 1 of .* rows"):
        train("ray", federation=stored)


def test_a_job_over_tables_with_its_baselines(tmp_path: Path) -> None:
    table = write_tables(tmp_path) | {"baselines": ["central", "alone"]}
    results = {}
    for engine in ("ray", "local"):
        (tmp_path / "job.toml").write_text(tomli_w.dumps(table | {"engine": engine}))
        results[engine] = tdcd.run_job(tdcd.load_job(tmp_path / "job.toml"), tmp_path / engine)
    for name, result in results["ray"].all.items():
        assert distance(result.blocks, results["local"].all[name].blocks) < 1e-6  # it trains in float32
        assert result.description.samples == results["local"].all[name].description.samples
    here, there = (tdcd.read_run(tmp_path / engine).quality for engine in ("local", "ray"))
    assert here is not None
    assert there is not None
    assert there.measures == pytest.approx(here.measures, abs=1e-4)
    assert [[client.rows for client in one.clients] for one in there.silos] == [
        [client.rows for client in one.clients] for one in here.silos
    ]


def test_a_stopped_training_goes_on(tmp_path: Path) -> None:
    whole = train("ray")
    with pytest.raises(KeyboardInterrupt):
        train("ray", directory=tmp_path / "run", callbacks=[Interrupt(4)])
    assert same(train("ray", directory=tmp_path / "run", resume=True).blocks, whole.blocks)


def test_a_loop_of_ones_own() -> None:
    whole = train("ray")
    simulation = tdcd.Simulation(federation(), tdcd.models.MLP(hidden=[5]), SETTINGS, engine="ray")
    state = simulation.init()
    for _ in range(SETTINGS.rounds):
        state = simulation.round(state)
    assert same(state.weights, whole.blocks)
    assert simulation.evaluate(state).train == whole.history[-1].train
    simulation.close()
