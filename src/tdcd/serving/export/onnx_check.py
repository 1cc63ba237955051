"""Files of ONNX, computed by onnxruntime and compared with what tdcd computes itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from tdcd.core.task import sum_embeddings
from tdcd.data.arrays import Array
from tdcd.errors import ModelError
from tdcd.serving.export.check import compare_head, distance
from tdcd.serving.export.inputs import BATCHES, SiloInput, embed
from tdcd.serving.model import Model


def compare(model: Model, inputs: Sequence[SiloInput], whole: Path, files: Mapping[str, Path]) -> float:
    """Compute random batches by the files; return the largest difference from what tdcd computes.

    Args:
        model: The model.
        inputs: What the silos take.
        whole: The file of the whole model.
        files: The file of each silo.

    Raises:
        ModelError: they differ, or cannot be computed.
    """
    sessions = {silo: open_session(path) for silo, path in files.items()}
    session, largest = open_session(whole), 0.0
    generator = np.random.default_rng(0)
    for rows in BATCHES:
        given = {own.silo: own.draw(generator, rows) for own in inputs}
        embeddings = embed(model, inputs, given)
        shown = _tensors(run(session, given))
        for silo, embedding in embeddings.items():
            name = f"{silo}.embedding"
            alone = _tensors(run(sessions[silo], {silo: given[silo]}))
            largest = max(largest, distance(f"silo '{silo}'", shown[name], embedding))
            largest = max(largest, distance(f"silo '{silo}', in a file of its own", alone[name], embedding))
        largest = max(largest, distance("the scores", shown["scores"], sum_embeddings(embeddings)))
        largest = max(largest, compare_head(model.result.objective, shown))
    return largest


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Return those that are numbers."""
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array.dtype != object}


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Open a file of ONNX.

    Raises:
        ModelError: onnxruntime does not take it.
    """
    options: Any = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{path.name}: onnxruntime does not take it: {error}") from error


def run(session: onnxruntime.InferenceSession, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs by their names."""
    try:
        values = session.run(None, dict(given))
    except Exception as error:
        raise ModelError(f"onnxruntime fails on the exported model: {error}") from error
    return {output.name: value for output, value in zip(session.get_outputs(), values, strict=True)}
