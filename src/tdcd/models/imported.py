"""A user's own network, named by import path."""

from typing import Annotated, Any

from torch import nn

from tdcd.errors import ModelError
from tdcd.models.base import ModelSpec, Shape
from tdcd.registry import IMPORT_PATH, call_factory
from tdcd.strict import matching


class Imported(ModelSpec):
    """``kind = "package.module:factory"``: tdcd calls ``factory(shape, outputs, **options)``.

    ``shape`` is the shape of one row in the silo, ``outputs`` the embedding width. The factory returns an
    ``nn.Module`` that takes rows (n, *shape) and returns embeddings (n, outputs).
    """

    kind: Annotated[str, matching(IMPORT_PATH, "is written as 'package.module:factory'")]
    options: dict[str, Any] = {}

    @property
    def place(self) -> str:
        """The module that the factory is in."""
        return self.kind.split(":")[0]

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        given = f"rows of shape {shape} and {outputs} outputs"
        module = call_factory(self.kind, "model", given, shape, outputs, **self.options)
        if not isinstance(module, nn.Module):
            raise ModelError(f"model '{self.kind}': the factory returned {type(module).__name__}, not an nn.Module")
        return module
