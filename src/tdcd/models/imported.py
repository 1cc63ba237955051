"""A user's own network, named by import path."""

import importlib
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from tdcd.errors import ModelError
from tdcd.models.base import ModelSpec, Shape


class Imported(ModelSpec):
    """``kind = "package.module:factory"``: tdcd calls ``factory(shape, outputs, **options)``.

    ``shape`` is the shape of one row in the silo, ``outputs`` the embedding width. The factory returns an
    ``nn.Module`` that takes rows (n, *shape) and returns embeddings (n, outputs).
    """

    kind: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    options: dict[str, Any] = {}

    @property
    def place(self) -> str:
        """The module that the factory is in."""
        return self.kind.split(":")[0]

    def module(self, shape: Shape, outputs: int) -> nn.Module:
        """See ModelSpec."""
        place, name = self.kind.split(":")
        try:
            home = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ModelError(
                f"model '{self.kind}': there is no module '{error.name}'; install it, or put its file beside the "
                "job file; for tdcd predict, name its folder with --import-from, at a site with import_from in its file"
            ) from error
        except (Exception, SystemExit) as error:
            raise ModelError(
                f"model '{self.kind}': importing '{place}' failed: {type(error).__name__}: {error}"
            ) from error
        factory = getattr(home, name, None)
        if factory is None:
            raise ModelError(
                f"model '{self.kind}': the module '{place}' has no '{name}'; "
                f"it was found in {getattr(home, '__file__', 'Python itself')}"
            )
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
