"""A model as ONNX: one graph of all silos, and one of each silo's embedding."""

import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx.utils
import torch
from onnx import TensorProto, inliner
from torch import Tensor, nn

from tdcd.errors import ModelError
from tdcd.files import write_atomically
from tdcd.serving.export.graph import OPSET, TEXT, Graph, kind_of
from tdcd.serving.export.inputs import BATCH, SiloInput
from tdcd.serving.export.modules import TRIED, Head, exporting, quiet, said_of, silo_module
from tdcd.serving.export.onnx_check import compare
from tdcd.serving.export.preparation_graph import PreparationGraph
from tdcd.serving.model import Model

LARGEST = 2**31 - 1
"""Bytes of a file of this format."""


def write_graphs(
    model: Model, inputs: Sequence[SiloInput], whole: Path, files: Mapping[str, Path], metadata: Mapping[str, str]
) -> float:
    """Write the graphs; return the largest difference of what onnxruntime computes from what tdcd computes.

    Args:
        model: The model.
        inputs: What the silos take.
        whole: The file of the whole model.
        files: The file of each silo.
        metadata: What the files say of themselves.

    Raises:
        ModelError: a network cannot be translated, or the graphs compute something else.
    """
    networks, head = _translate(model, inputs)
    for own in inputs:
        _write(_silo_graph(model, own, networks[own.silo], {**metadata, **_columns([own])}), files[own.silo])
    _write(_whole_graph(model, inputs, networks, head, {**metadata, **_columns(inputs)}), whole)
    return compare(model, inputs, whole, files)


def _columns(inputs: Sequence[SiloInput]) -> dict[str, str]:
    """Return what a file says of its silos, and of their columns in order."""
    silos = {own.silo: {"kind": own.kind, "columns": own.names} for own in inputs}
    return {"silos": json.dumps(silos, ensure_ascii=False)}


def _silo_graph(model: Model, own: SiloInput, network: onnx.ModelProto, metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Return the graph of one silo's embedding."""
    graph = Graph()
    embedding, unreadable = _add_silo(graph, own, network)
    _give_silo(graph, model, own, embedding, unreadable)
    return graph.model(own.silo, metadata)


def _whole_graph(
    model: Model,
    inputs: Sequence[SiloInput],
    networks: Mapping[str, onnx.ModelProto],
    head: onnx.ModelProto,
    metadata: Mapping[str, str],
) -> onnx.ModelProto:
    """Return the graph of the whole model."""
    graph, objective, width = Graph(), model.result.objective, model.result.description.embedding
    made = [(own, *_add_silo(graph, own, networks[own.silo])) for own in inputs]
    scores = made[0][1]
    for _, embedding, _ in made[1:]:
        scores = graph.add("Add", scores, embedding)
    readable = [graph.add("Equal", texts, graph.texts("")) for *_, texts in made if texts]
    valid = graph.all_of(readable) if readable else None
    said = graph.insert(head, "head/", scores)
    kind = kind_of(_dtype(model))
    graph.give_output("scores", _only(graph, valid, scores, np.nan, _dtype(model)), kind, [BATCH, width])
    if objective.meaning == "numbers":
        (prediction,) = said
        graph.give_output("prediction", _only(graph, valid, prediction, np.nan, _dtype(model)), kind, [BATCH, width])
    else:
        probabilities, number = said
        shape: list[int | str] = [BATCH] if objective.meaning == "binary" else [BATCH, width]
        chances = _only(graph, valid, probabilities, np.nan, _dtype(model), flat=len(shape) == 1)
        graph.give_output("probabilities", chances, kind, shape)
        graph.give_output("class", _only(graph, valid, number, -1, np.int64, flat=True), TensorProto.INT64, [BATCH])
        if model.classes:
            names = graph.add("Gather", graph.texts(list(model.classes)), number, axis=0)
            chosen = graph.add("Where", valid, names, graph.texts("")) if valid else names
            graph.give_output("class_name", chosen, TEXT, [BATCH])
    for own, embedding, unreadable in made:
        _give_silo(graph, model, own, embedding, unreadable)
    return graph.model("tdcd", metadata)


def _add_silo(graph: Graph, own: SiloInput, network: onnx.ModelProto) -> tuple[str, str | None]:
    """Add a silo's input, preparation and network; return the embedding, and which column was not readable."""
    graph.scope = f"{own.silo}/"
    kind = TEXT if own.kind == "cells" else kind_of(own.dtype)
    rows, unreadable = graph.take_input(own.silo, kind, [BATCH, *own.shape]), None
    if own.kind == "cells" and own.preparation and own.settings:
        prepared = PreparationGraph(graph, rows, own.preparation, own.settings).build()
        rows, unreadable = prepared.rows, prepared.unreadable
    (embedding,) = graph.insert(network, f"{own.silo}/network/", rows)
    graph.scope = ""
    return embedding, unreadable


def _give_silo(graph: Graph, model: Model, own: SiloInput, embedding: str, unreadable: str | None) -> None:
    """Give out what is known of one silo."""
    valid = graph.add("Equal", unreadable, graph.texts("")) if unreadable else None
    shown = _only(graph, valid, embedding, np.nan, _dtype(model))
    kind, width = kind_of(_dtype(model)), model.result.description.embedding
    graph.give_output(f"{own.silo}.embedding", shown, kind, [BATCH, width])
    if unreadable:
        graph.give_output(f"{own.silo}.unreadable", unreadable, TEXT, [BATCH])


def _only(graph: Graph, valid: str | None, value: str, otherwise: float, dtype: Any, *, flat: bool = False) -> str:
    """Keep the values (batch, …) of valid rows, if some may be invalid."""
    if valid is None:
        return value
    if not flat:
        valid = graph.add("Unsqueeze", valid, graph.numbers([1], np.int64))
    return graph.add("Where", valid, value, graph.numbers(otherwise, dtype))


def _dtype(model: Model) -> np.dtype[Any]:
    return np.dtype(str(model.result.settings.dtype).removeprefix("torch."))


class _Parts(nn.Module):
    """All networks and the head beside each other: rows of each silo and scores in, embeddings and the rest out."""

    def __init__(self, networks: Sequence[nn.Module], head: Head) -> None:
        super().__init__()
        self.networks, self.head = nn.ModuleList(networks), head

    def forward(self, rows: Sequence[Tensor], scores: Tensor) -> tuple[Tensor, ...]:
        return *(network(x) for network, x in zip(self.networks, rows, strict=True)), *self.head(scores)


def _translate(model: Model, inputs: Sequence[SiloInput]) -> tuple[dict[str, onnx.ModelProto], onnx.ModelProto]:
    """Translate the network of each silo, and what the objective makes of scores.

    Raises:
        ModelError: torch's exporter does not take one of them; says which.
    """
    result = model.result
    networks = {own.silo: silo_module(model, own) for own in inputs}
    rows = {own.silo: torch.zeros(TRIED, *own.row_shape, dtype=own.fed) for own in inputs}
    head = Head(result.objective)
    scores = torch.zeros(TRIED, result.description.embedding, dtype=result.settings.dtype)
    said = [f"head/{name}" for name in said_of(result.objective)]
    names = [f"rows/{silo}" for silo in rows], [*(f"embedding/{silo}" for silo in rows), *said]
    try:  # all at once, which takes a fraction of the time
        whole = _translate_module(_Parts([*networks.values()], head), ([*rows.values()], scores), *names)
    except Exception as error:
        for silo, network in networks.items():
            with exporting(f"silo '{silo}': its network", "ONNX"):
                _translate_module(network, (rows[silo],))
        with exporting(f"its loss, {result.settings.loss_kind},", "ONNX"):
            _translate_module(head, (scores,))
        with exporting("the model", "ONNX"):
            raise error
    extractor = onnx.utils.Extractor(whole)
    parts = {silo: extractor.extract_model([f"rows/{silo}"], [f"embedding/{silo}"]) for silo in rows}
    return parts, extractor.extract_model(["scores"], said)


def _translate_module(
    module: nn.Module, examples: tuple[Any, ...], inputs: Sequence[str] = (), outputs: Sequence[str] | None = None
) -> onnx.ModelProto:
    batches = (
        {0: torch.export.Dim(f"{BATCH}_{number}")} for number in count()
    )  # or a network would ask another's rows
    shapes = tuple([next(batches) for _ in one] if isinstance(one, list) else next(batches) for one in examples)
    with quiet():
        program = torch.onnx.export(
            module,
            examples,
            input_names=[*inputs, "scores"] if inputs else None,
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=shapes,
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    translated: onnx.ModelProto = inliner.inline_local_functions(program.model_proto)
    used = {opset.version for opset in translated.opset_import if not opset.domain}
    if used != {OPSET}:
        raise RuntimeError(f"it was translated to version {used} of ONNX's operators, not {OPSET}")
    return translated


def _write(graph: onnx.ModelProto, path: Path) -> None:
    """Write a graph as one file.

    Raises:
        ModelError: it is too large for one.
    """
    size = graph.ByteSize()
    if size > LARGEST:
        raise ModelError(f"{path.name}: {size:,} bytes are too many for one file of ONNX; use --format torch")
    write_atomically(path, graph.SerializeToString(deterministic=True))
