"""Whichever way a model predicts, it predicts the same: simulation, assembled model, HTTP, ONNX."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from serving.http_models import serving
from tdcd.serving.model import load_model

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
