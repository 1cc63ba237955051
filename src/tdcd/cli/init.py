"""``tdcd init``: a job file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.errors import JobError

EXAMPLES = "Examples: tdcd init · tdcd init breast-cancer · tdcd init digits --out my-job.toml"


def command(
    name: Annotated[str, typer.Argument(help="digits, breast-cancer, or a data set of 'tdcd data list'.")] = "digits",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it; default: NAME.toml.")] = None,
) -> None:
    """Write a commented job file to edit and train."""
    from tdcd.errors import nearest
    from tdcd.experiments.job import EMBEDDED, embedded

    if name not in EMBEDDED:
        raise JobError(f"no embedded job is called '{name}'{nearest(name, EMBEDDED)}")
    path = out or Path(f"{name}.toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(embedded(name))
    except FileExistsError as error:
        raise JobError(f"{path} exists already and is left as it is; choose another with --out") from error
    except OSError as error:
        raise JobError(f"{path}: cannot be written: {error.strerror}") from error
    typer.echo(f"{path} written. Train it with: tdcd train {path}")
