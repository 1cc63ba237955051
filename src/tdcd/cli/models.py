"""What commands share that take a trained model: which of its own code may run, and loading it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.imports import Allowed

if TYPE_CHECKING:
    from tdcd.serving.model import Model

ImportFrom = Annotated[
    list[Path] | None,
    typer.Option("--import-from", metavar="DIR", help="A folder of code of one's own, which may run; may be repeated."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="MODULE", help="An installed module whose code may run; may be repeated."),
]


def allowed(import_from: Sequence[Path] | None, allow: Sequence[str] | None) -> Allowed:
    """Let code be imported from some folders; return what may run."""
    folders = import_from or []
    sys.path.extend(str(folder.resolve()) for folder in folders)
    return Allowed(allow or [], folders)


def load(model: Path, import_from: Sequence[Path] | None, allow: Sequence[str] | None) -> "Model":
    """Load a model, with the code that may run.

    Raises:
        TdcdError: it cannot be loaded.
    """
    from tdcd.serving.model import load_model

    return load_model(model, imports=allowed(import_from, allow))
