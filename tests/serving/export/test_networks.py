"""Exported networks compute what tdcd computes, for any number of rows."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tdcd
from support import MODELS, SHAPES, Odd, Remembers, tied
from tdcd.core.objectives import CrossEntropy
from tdcd.data.arrays import Array
from tdcd.errors import JobError, ModelError
from tdcd.serving.export.directory import Export, Format, export_model
from tdcd.serving.model import Model, load_model

pytest.importorskip("onnx", reason="needs pip install 'tdcd[export]'")
ort = pytest.importorskip("onnxruntime", reason="needs pip install 'tdcd[export]'")
KINDS = ("linear", "mlp", "lstm", "cnn-batchnorm", "resnet18")
FORMATS: tuple[Format, ...] = ("onnx", "torch")
SAMPLES = 12


def trained(
    folder: Path, models: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], whole: bool = False, **more: Any
) -> Model:
    """Train a round of a small federation, and read the run again."""
    generator = np.random.default_rng(0)
    silos = []
    for name, shape in shapes.items():
        rows = generator.integers(0, 9, (SAMPLES, *shape)) if whole else generator.normal(size=(SAMPLES, *shape))
        silos.append(tdcd.Silo(name, rows, [range(SAMPLES)]))
    loss = str(more.get("loss", "cross-entropy"))
    labels = generator.integers(0, 2 if loss == "binary-cross-entropy" else 3, SAMPLES)
    table = {"loss": loss, "rounds": 1, "local_steps": 1, "batch_size": 6, "rate": 0.1}
    settings = tdcd.Settings.model_validate(table | more)
    tdcd.train(tdcd.Federation.from_silos(silos, labels), dict(models), settings, directory=folder / "run")
    own = {name: model for name, model in models.items() if isinstance(model, nn.Module)}
    return load_model(folder / "run", own)


def opened(done: Export, file: str) -> Callable[[Mapping[str, Array]], dict[str, Any]]:
    """Return an exported file as a function of the silos' rows."""
    path = done.path / file
    if path.suffix == ".onnx":
        session = ort.InferenceSession(str(path))
        names = [output.name for output in session.get_outputs()]
        return lambda given: dict(zip(names, session.run(None, dict(given)), strict=True))
    program = torch.export.load(str(path)).module()

    def compute(given: Mapping[str, Array]) -> dict[str, Any]:
        tensors = {silo: torch.from_numpy(rows) for silo, rows in given.items()}
        with torch.no_grad():
            if file == "model.pt2":
                return {name: value.numpy() for name, value in program(tensors).items()}
            ((silo, rows),) = tensors.items()
            return {f"{silo}.embedding": program(rows).numpy()}

    return compute


def compare(model: Model, done: Export, dtype: Any = np.float32) -> None:
    """Compare an export with the model, by the model's own functions."""
    suffix = Path(done.files[0]).suffix
    silos = {silo.name: silo.row_shape for silo in model.result.description.silos if silo.features}
    objective, whole = model.result.objective, opened(done, f"model{suffix}")
    alone = {silo: opened(done, f"silos/{silo}{suffix}") for silo in silos}
    for rows in (1, 3, 150):
        generator = np.random.default_rng(rows)
        given = {silo: generator.normal(size=(rows, *shape)).astype(dtype) for silo, shape in silos.items()}
        made = whole(given)
        assert np.allclose(made["scores"], model.result.scores(given), rtol=1e-5, atol=1e-5)
        if objective.meaning == "numbers":
            assert np.allclose(made["prediction"], model.result.predict(given), rtol=1e-5, atol=1e-5)
        else:
            assert np.allclose(made["probabilities"], model.result.probabilities(given), atol=1e-5)
            assert np.array_equal(made["class"], objective.predictions(torch.from_numpy(made["scores"])))
        for silo, compute in alone.items():
            embedding = compute({silo: given[silo]})[f"{silo}.embedding"]
            assert np.allclose(embedding, made[f"{silo}.embedding"], rtol=1e-5, atol=1e-5)
        assert np.allclose(sum(made[f"{silo}.embedding"] for silo in silos), made["scores"], rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A silo for each kind of network."""
    folder = tmp_path_factory.mktemp("kinds")
    return trained(folder, {kind: MODELS[kind] for kind in KINDS}, {kind: SHAPES[kind] for kind in KINDS})


@pytest.fixture(scope="module")
def programs(all_kinds: Model) -> Export:
    return export_model(all_kinds, all_kinds.path.parent / "programs", "torch")


def test_every_kind_of_network_as_a_graph(all_kinds: Model, tmp_path: Path) -> None:
    done = export_model(all_kinds, tmp_path / "out")
    assert done.difference <= 1e-5
    compare(all_kinds, done)


def test_every_kind_of_network_as_a_program(all_kinds: Model, programs: Export) -> None:
    assert programs.difference <= 1e-5
    compare(all_kinds, programs)


@pytest.mark.parametrize(
    ("format_", "loss"), [("onnx", "binary-cross-entropy"), ("onnx", "poisson"), ("torch", "poisson")]
)
def test_double_precision_and_other_losses(tmp_path: Path, format_: Format, loss: str) -> None:
    run = trained(
        tmp_path, {"a": MODELS["mlp"], "b": MODELS["linear"]}, {"a": (4,), "b": (5,)}, loss=loss, precision="float64"
    )
    done = export_model(run, tmp_path / "out", format_)
    assert done.difference < 1e-12
    compare(run, done, np.float64)


class Words(nn.Module):
    """A network on whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.table(rows).sum(1)
        return result


@pytest.mark.parametrize("format_", FORMATS)
def test_networks_of_ones_own(tmp_path: Path, format_: Format) -> None:
    run = trained(tmp_path, {"a": Words(), "b": Words()}, {"a": (4,), "b": (2,)}, whole=True)
    done = export_model(run, tmp_path / "out", format_)
    given = {silo: np.random.default_rng(1).integers(0, 9, (5, width)) for silo, width in (("a", 4), ("b", 2))}
    made = opened(done, done.files[0])(given)
    assert np.allclose(made["scores"], run.result.scores(given), atol=1e-6)


class Draws(nn.Module):
    """A network that draws random numbers, also once it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.linear(rows)
        return result + torch.randn_like(result)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    ("network", "message"),
    [(Odd(3, 3), "silo 'b': its network cannot be exported to"), (Draws(), "from what tdcd computes, more than 1e-05")],
    ids=["branch", "draws"],
)
def test_what_cannot_be_exported_is_named_and_nothing_is_written(
    tmp_path: Path, format_: Format, network: nn.Module, message: str
) -> None:
    run = trained(tmp_path, {"a": MODELS["linear"], "b": network}, {"a": (5,), "b": (3,)})
    with pytest.raises(ModelError, match=message) as caught:
        export_model(run, tmp_path / "out", format_)
    assert "silo 'b'" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_network_that_remembers_calls_is_no_program(tmp_path: Path) -> None:
    """A graph has no state: it is the same for each call, as the network is for tdcd."""
    run = trained(tmp_path, {"a": Remembers(4, 3)}, {"a": (4,)})
    with pytest.raises(ModelError, match=r"silo 'a'.*remembers earlier calls"):
        export_model(run, tmp_path / "out", "torch")
    compare(run, export_model(run, tmp_path / "out"))


def test_a_wrong_graph_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, {"a": tied(4, 3)}, {"a": (4,)})
    with pytest.raises(JobError, match="--prepared is for runs over tables"):
        export_model(run, tmp_path / "right", prepared=True)
    compare(run, export_model(run, tmp_path / "right"))
    monkeypatch.setattr(CrossEntropy, "predictions", lambda self, scores: scores.argmin(-1) * 0)
    block = run.result.blocks["a"]
    export_with = dict(block)
    block["3.bias"] = block["3.bias"] + 1e-3

    def stale(*arguments: Any) -> dict[str, Tensor]:
        block.update(export_with)
        return embed(*arguments)

    from tdcd.serving.export import onnx_check
    from tdcd.serving.export.inputs import embed

    monkeypatch.setattr(onnx_check, "embed", stale)
    with pytest.raises(ModelError, match=r"silo 'a': the exported model is 0\.001 from what tdcd computes, more than"):
        export_model(run, tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_a_program_has_nothing_pickled_and_says_what_it_is(programs: Export) -> None:
    import io
    import pickle
    from unittest.mock import patch

    said = {"tdcd.json": ""}
    with (
        patch.object(pickle, "Unpickler", side_effect=AssertionError),
        patch.object(torch, "load", side_effect=AssertionError),
    ):
        torch.export.load(io.BytesIO((programs.path / "silos" / "lstm.pt2").read_bytes()), extra_files=said)
    assert json.loads(said["tdcd.json"])["silo"] == "lstm"


def test_a_silo_named_as_an_output_is_refused(tmp_path: Path) -> None:
    run = trained(tmp_path, {"scores": MODELS["linear"]}, {"scores": (5,)})
    with pytest.raises(ModelError, match="silo 'scores': an output of exported models has this name"):
        export_model(run, tmp_path / "out")
