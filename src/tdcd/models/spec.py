"""Any of the model specifications, read from a table, and the networks built from them."""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Discriminator, Tag, TypeAdapter
from torch import nn

from tdcd.core.seeds import derive
from tdcd.core.streams import borrow_stream
from tdcd.errors import ModelError, nearest
from tdcd.models.base import ModelSpec, Shape
from tdcd.models.cnn import CNN
from tdcd.models.imported import Imported
from tdcd.models.linear import Linear
from tdcd.models.lstm import LSTM
from tdcd.models.mlp import MLP
from tdcd.models.resnet18 import ResNet18

KINDS = ("linear", "mlp", "lstm", "cnn", "resnet18")
MODEL_TAGS = frozenset({*(f"<{kind}>" for kind in KINDS), "<imported>"})


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


def _known(value: Any) -> Any:
    kind = _kind(value)
    if not isinstance(kind, str):
        raise ValueError(f"a model needs a kind: {', '.join(KINDS)}, or your own as 'package.module:factory'")
    if ":" not in kind and kind not in KINDS:
        raise ValueError(
            f"unknown kind of model '{kind}'{nearest(kind, KINDS)} (your own is named 'package.module:factory')"
        )
    return value


def _tag(value: Any) -> str:
    kind = _kind(value)
    return "<imported>" if ":" in kind else f"<{kind}>"


Model = Annotated[
    Annotated[Linear, Tag("<linear>")]
    | Annotated[MLP, Tag("<mlp>")]
    | Annotated[LSTM, Tag("<lstm>")]
    | Annotated[CNN, Tag("<cnn>")]
    | Annotated[ResNet18, Tag("<resnet18>")]
    | Annotated[Imported, Tag("<imported>")],
    Discriminator(_tag),
    BeforeValidator(_known),
]
"""The type of a ``[model]`` table."""


def read_model(table: Mapping[str, Any]) -> ModelSpec:
    """Return the specification that ``model_dump`` wrote as a table."""
    result: ModelSpec = TypeAdapter(Model).validate_python(table)
    return result


def build(spec: ModelSpec, silo: str, shape: Shape, outputs: int, seed: int) -> nn.Module:
    """Build a silo's network; its first weights depend on the seed and on the silo's name only."""
    with borrow_stream(torch.device("cpu"), derive(seed, "weights", silo)):
        try:
            return spec.module(shape, outputs)
        except ModelError as error:
            raise ModelError(f"silo '{silo}': {error}") from error
