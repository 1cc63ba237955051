"""A user's own network, named by import path."""

from typing import Annotated, Any

from torch import nn

from tdcd.errors import ModelError
from tdcd.models.base import ModelSpec, Shape
from tdcd.registry import IMPORT_PATH, import_object
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
        factory = import_object(self.kind, "model")
        try:
            module = factory(shape, outputs, **self.options)
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"model '{self.kind}': the factory failed for rows of shape {shape} and {outputs} outputs: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(module, nn.Module):
            raise ModelError(f"model '{self.kind}': the factory returned {type(module).__name__}, not an nn.Module")
        return module
