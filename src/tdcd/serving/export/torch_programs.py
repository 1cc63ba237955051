"""A model as programs of torch.export: one of all silos, and one of each silo's embedding.

``torch.export.load`` unpickles what a file asks it to, so that a file from somebody else may run any code. What is
written here has nothing pickled in it: that is checked in the file's bytes, before they are loaded back.
"""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from tdcd.core.task import sum_embeddings
from tdcd.errors import ModelError, join_names
from tdcd.files import write_atomically
from tdcd.serving.export.check import compare_head, distance
from tdcd.serving.export.inputs import BATCH, BATCHES, SiloInput, embed
from tdcd.serving.export.modules import TRIED, Whole, exporting, quiet, silo_module
from tdcd.serving.model import Model

METADATA = "tdcd.json"
"""The extra file of a program that says what it is."""


def write_programs(
    model: Model, inputs: Sequence[SiloInput], whole: Path, files: Mapping[str, Path], metadata: Mapping[str, str]
) -> float:
    """Write the programs; return the largest difference from what tdcd computes.

    Args:
        model: The model.
        inputs: What the silos take.
        whole: The file of the whole model.
        files: The file of each silo.
        metadata: What the files say of themselves.

    Raises:
        ModelError: a network cannot be exported, or the programs compute something else.
    """
    networks = {own.silo: silo_module(model, own) for own in inputs}
    examples = {own.silo: torch.zeros(TRIED, *own.row_shape, dtype=own.fed) for own in inputs}
    batch = {0: Dim(BATCH)}
    alone = {
        silo: _write(
            _export(network, examples[silo], batch, f"silo '{silo}': its network"),
            files[silo],
            {**metadata, "silo": silo},
        )
        for silo, network in networks.items()
    }
    module = Whole(networks, model.result.objective)
    program = _export(module, examples, dict.fromkeys(examples, batch), "the model")
    return _compare(model, inputs, _write(program, whole, metadata), alone)


def _export(module: nn.Module, example: Any, shapes: Any, what: str) -> ExportedProgram:
    with quiet(), exporting(what, "torch.export"):
        program = torch.export.export(module, (example,), dynamic_shapes=(shapes,))
    program.example_inputs = None  # they would be pickled
    return program


def _write(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> nn.Module:
    """Write a program, and return what is read back from the same bytes."""
    buffer = BytesIO()
    with quiet():
        torch.export.save(program, buffer, extra_files={METADATA: json.dumps(dict(metadata), ensure_ascii=False)})
    content = buffer.getvalue()
    if pickled := _pickled(content):
        raise ModelError(f"{path.name}: torch.export pickles {join_names(pickled)}, which tdcd does not write")
    write_atomically(path, content)
    with quiet():
        return torch.export.load(BytesIO(content)).module()


def _pickled(content: bytes) -> list[str]:
    """Return what of a program's file would be unpickled when it is loaded."""
    result = []
    with ZipFile(BytesIO(content)) as archive:
        for name in archive.namelist():
            if name.endswith(("weights_config.json", "constants_config.json")):
                entries = json.loads(archive.read(name))["config"]
                result += [entry for entry, described in entries.items() if described["use_pickle"]]
            elif "/sample_inputs/" in name and archive.getinfo(name).file_size:
                result.append("example inputs")
            elif name.endswith((".pt", ".pkl")) and "/sample_inputs/" not in name:
                result.append(name)
    return result


def _compare(model: Model, inputs: Sequence[SiloInput], whole: nn.Module, alone: Mapping[str, nn.Module]) -> float:
    """Compute random batches by the programs; return the largest difference from what tdcd computes."""
    objective, generator, largest = model.result.objective, np.random.default_rng(0), 0.0
    for rows in BATCHES:
        given = {own.silo: own.draw(generator, rows) for own in inputs}
        embeddings = embed(model, inputs, given)
        with torch.no_grad():
            tensors = {silo: torch.from_numpy(array) for silo, array in given.items()}
            shown = whole(tensors)
            own = {silo: network(tensors[silo]) for silo, network in alone.items()}
        for silo, embedding in embeddings.items():
            largest = max(largest, distance(f"silo '{silo}'", shown[f"{silo}.embedding"], embedding))
            largest = max(largest, distance(f"silo '{silo}', in a file of its own", own[silo], embedding))
        largest = max(largest, distance("the scores", shown["scores"], sum_embeddings(embeddings)))
        largest = max(largest, compare_head(objective, shown))
    return largest
