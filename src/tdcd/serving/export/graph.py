"""An ONNX graph, built node by node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, numpy_helper

from tdcd.data.arrays import Array
from tdcd.errors import ModelError

OPSET = 20
"""The version of ONNX's operators: the first that matches texts with patterns."""
ML_OPSET = 3
ML = "ai.onnx.ml"
IR_VERSION = 10
"""Of the file format: of the time of these operators, so that runtimes since then read it."""

Shape = Sequence[int | str]


@dataclass
class Graph:
    """Nodes and constants, each under a name of its own; operators are added by calling their method ``add``."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    outputs: list[onnx.ValueInfoProto] = field(default_factory=list)
    scope: str = ""
    """Begins the names of what is added."""

    def add(self, operator: str, *inputs: str, domain: str = "", name: str = "", **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        output = name or f"{self.scope}{operator}_{len(self.nodes)}"
        node = helper.make_node(operator, list(inputs), [output], name=f"node {output}", domain=domain, **attributes)
        self.nodes.append(node)
        return output

    def constant(self, values: Array) -> str:
        """Add a constant: numbers, truths, or texts as an array of objects; return its name."""
        name = f"{self.scope}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def texts(self, values: Sequence[str] | str) -> str:
        """Add texts, a vector or a single one; return their name."""
        return self.constant(np.array(values, dtype=object))

    def look_up(self, texts: str, places: Mapping[str, int], default: int) -> str:
        """Replace each text by its place, or by a default; return int64."""
        keys, values = list(places), list(places.values())
        return self.add(
            "LabelEncoder", texts, domain=ML, keys_strings=keys, values_int64s=values, default_int64=default
        )

    def numbers(self, values: float | Sequence[float], dtype: type[Any] = np.float64) -> str:
        """Add numbers, a vector or a single one; return their name."""
        return self.constant(np.array(values, dtype=dtype))

    def is_one_of(self, texts: str, words: Iterable[str]) -> str:
        """Tell where texts are one of some words."""
        return self.add("Cast", self.look_up(texts, dict.fromkeys(sorted(words), 1), 0), to=TensorProto.BOOL)

    def any_along(self, truths: str) -> str:
        """Tell which rows have a truth: (batch, columns) to (batch, 1)."""
        numbers = self.add("Cast", truths, to=TensorProto.INT32)
        most = self.add("ReduceMax", numbers, self.numbers([1], np.int64), keepdims=1)
        return self.add("Cast", most, to=TensorProto.BOOL)

    def any_of(self, truths: Iterable[str]) -> str:
        """Join truths by "or"."""
        first, *others = truths
        for other in others:
            first = self.add("Or", first, other)
        return first

    def all_of(self, truths: Iterable[str]) -> str:
        """Join truths by "and"."""
        first, *others = truths
        for other in others:
            first = self.add("And", first, other)
        return first

    def is_not(self, truths: str) -> str:
        """Turn truths around."""
        return self.add("Not", truths)

    def columns(self, values: str, numbers: Sequence[int]) -> str:
        """Take some columns (batch, columns)."""
        return self.add("Gather", values, self.constant(np.array(numbers, dtype=np.int64)), axis=1)

    def take_input(self, name: str, kind: int, shape: Shape) -> str:
        """Add an input of the graph."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def give_output(self, name: str, value: str, kind: int, shape: Shape) -> None:
        """Add an output of the graph."""
        self.add("Identity", value, name=name)
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def insert(self, model: onnx.ModelProto, scope: str, *inputs: str) -> list[str]:
        """Add all of a model, whose own names get a scope; connect its inputs and return its outputs."""
        prefixed = compose.add_prefix_graph(model.graph, scope)
        for own, given in zip(prefixed.input, inputs, strict=True):
            self.add("Identity", given, name=own.name)
        self.nodes.extend(prefixed.node)
        self.constants.extend(prefixed.initializer)
        return [own.name for own in prefixed.output]

    def model(self, name: str, metadata: Mapping[str, str]) -> onnx.ModelProto:
        """Return it as a model, checked.

        Raises:
            ModelError: it is no graph that ONNX takes.
        """
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tdcd")
        helper.set_model_props(model, dict(metadata))
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise ModelError(f"the graph of '{name}' is none that ONNX takes: {error}") from error
        return model


def kind_of(dtype: np.dtype[Any]) -> int:
    """Return ONNX's name for a type of numbers."""
    return int(helper.np_dtype_to_tensor_dtype(dtype))


TEXT = int(TensorProto.STRING)
