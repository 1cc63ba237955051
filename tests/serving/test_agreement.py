"""Whichever way a model predicts, it predicts the same: simulation, assembled model, HTTP, ONNX, across sites."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import tdcd
from serving.http_models import serving
from sites.memory import run_virtually
from sites.serving import Sites, train
from tdcd.jobs.load import load_job
from tdcd.jobs.schema import TableJob
from tdcd.serving.frames import prediction_frame
from tdcd.serving.model import load_model
from tdcd.sites.participants import check_serves
from tdcd.sites.security.identity import Identity

MAKE_TABLES = Path(__file__).parents[2] / "examples" / "bank_insurer" / "make_tables.py"

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'tdcd[serve]'")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="not installed: pip install 'tdcd[export]'")
pytest.importorskip("onnxscript", reason="not installed: pip install 'tdcd[export]'")

NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (tdcd.models.Linear(), (5,)),
    "mlp": (tdcd.models.MLP(hidden=[6]), (5,)),
    "lstm": (tdcd.models.LSTM(hidden=3), (4, 3)),
    "cnn": (tdcd.models.CNN(channels=[4, 4]), (3, 8, 8)),
    "resnet18": (tdcd.models.ResNet18(width=4), (3, 16, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_all_ways_agree(name: str, tmp_path: Path) -> None:
    network, shape = NETWORKS[name]
    draw = np.random.default_rng(2)
    rows = {silo: draw.normal(size=(24, *shape)).astype(np.float32) for silo in ("left", "right")}
    silos = [tdcd.Silo(silo, x, [range(12), range(12, 24)]) for silo, x in rows.items()]
    settings = tdcd.Settings(loss="cross-entropy", rounds=2, local_steps=2, rate=0.05)
    federation = tdcd.Federation.from_silos(silos, np.arange(24) % 3)
    result = tdcd.train(federation, network, settings, directory=tmp_path / "run")
    new = {silo: draw.normal(size=(7, *shape)).astype(np.float32) for silo in rows}
    expected = result.probabilities(new).numpy()
    model = tdcd.assemble([tmp_path / "run"], tmp_path / "model")
    central = load_model(model).result.probabilities(new).numpy()
    with serving(model) as server:
        asked = [{silo: x[k].tolist() for silo, x in new.items()} for k in range(7)]
        reply = server.predict(asked)
    assert reply.status == 200, reply.body
    served = np.array([list(one["probabilities"].values()) for one in reply.json["predictions"]])
    tdcd.export_model(load_model(model), tmp_path / "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    outputs = [output.name for output in session.get_outputs()]
    exported = dict(zip(outputs, session.run(None, new), strict=True))["probabilities"]
    assert torch.allclose(torch.from_numpy(expected).sum(1), torch.ones(7), atol=1e-5)
    for ways in (central, served, exported):
        assert np.abs(ways - expected).max() < 1e-5


def across_sites(job: TableJob, folder: Path, new: Path, ids: list[int]) -> Any:
    """Return the probabilities that hubs and clients make together of tables that each client has for itself."""
    tables = {
        Identity(silo, client): new / silo / Path(one.file).name
        for silo, own in job.silos.items()
        for client, one in own.files.items()
    }
    sites, made = Sites(job, folder, tables), list[Any]()

    async def go() -> None:
        async with sites.running():
            made.append(await sites.ask(ids))

    run_virtually(go())
    assert not made[0].without.any()
    return prediction_frame(job.training.objective, (), np.array(ids), made[0].values)[:, 2].to_numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [{"kind": "linear"}, {"kind": "mlp", "hidden": [32]}], ids=lambda model: model["kind"]
)
def test_all_ways_agree_on_the_tables_of_the_bank_and_the_insurer(model: dict[str, Any], tmp_path: Path) -> None:
    subprocess.run([sys.executable, MAKE_TABLES, "--out", tmp_path], check=True, capture_output=True)
    quick = {"model": model, "training.rounds": 20, "training.evaluate_every": 20, "baselines": []}
    job = load_job(tmp_path / "loans.toml", quick)
    job = check_serves(job.model_copy(update={"data": job.data.model_copy(update={"alignment": None})}))
    run = train(job, tmp_path / "runs")
    tables = {silo: tmp_path / "loans" / f"new-{silo}.csv" for silo in job.silos}
    simulated = run.predict_tables({silo: [file] for silo, file in tables.items()}).frame
    ids, expected = simulated["id"].to_list(), simulated["probability of 1"].to_numpy()
    assert len(ids) == 20

    hubs = [tmp_path / "runs" / silo for silo in job.silos]
    assembled = load_model(tdcd.assemble(hubs, tmp_path / "model"))
    central = assembled.predict_tables({silo: [file] for silo, file in tables.items()}).frame
    assert central["id"].to_list() == ids

    columns = {silo: [column.name for column in made.columns] for silo, made in run.preparations.items()}
    rows = {silo: pl.read_csv(file).sort("customer").select(columns[silo]) for silo, file in tables.items()}
    with serving(tmp_path / "model") as server:
        both = zip(*(rows[silo].to_dicts() for silo in job.silos), strict=True)
        reply = server.predict([dict(zip(job.silos, one, strict=True)) for one in both])
    assert reply.status == 200, reply.body

    tdcd.export_model(assembled, tmp_path / "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    order = {silo: pl.read_csv(file, infer_schema=False) for silo, file in tables.items()}
    cells = {
        silo: frame.sort(pl.col("customer").cast(pl.Int64))
        .select(columns[silo])
        .fill_null("")
        .to_numpy()
        .astype(object)
        for silo, frame in order.items()
    }
    (exported,) = session.run(["probabilities"], cells)

    ways = {
        "assembled": central["probability of 1"].to_numpy(),
        "over HTTP": np.array([one["probabilities"]["1"] for one in reply.json["predictions"]]),
        "ONNX": exported,
        "across sites": across_sites(job, tmp_path / "runs", tmp_path / "loans" / "new", ids),
    }
    assert {way: float(np.abs(made - expected).max()) < 1e-5 for way, made in ways.items()} == dict.fromkeys(ways, True)
