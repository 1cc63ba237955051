"""``tdcd init``: a job file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.errors import JobError

EXAMPLES = "Examples: tdcd init · tdcd init tables · tdcd init physionet2012 · tdcd init digits --out my-job.toml"


def command(
    name: Annotated[str, typer.Argument(help="tables, for your own; or a data set of 'tdcd data list'.")] = "digits",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write it; default: NAME.toml.")] = None,
) -> None:
    """Write a commented job file to edit and train."""
    from tdcd.errors import nearest
    from tdcd.jobs.load import embedded_job_text
    from tdcd.jobs.schema import EMBEDDED, TEMPLATES

    if name not in (*EMBEDDED, *TEMPLATES):
        raise JobError(f"no job to start from is called '{name}'{nearest(name, (*EMBEDDED, *TEMPLATES))}")
    path = out or Path(f"{name}.toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(embedded_job_text(name))
    except FileExistsError as error:
        raise JobError(f"{path} exists already and is left as it is; choose another with --out") from error
    except OSError as error:
        raise JobError(f"{path}: cannot be written: {error.strerror}") from error
    if name in TEMPLATES:
        typer.echo(f"{path} written. Name your silos and their files in it, then look at them with: tdcd check {path}")
        return
    where = "" if name in ("digits", "breast-cancer") else " --data DIRECTORY"
    typer.echo(f"{path} written. Train it with: tdcd train {path}{where}")
