"""``tdcd refit``: train again on training and validation samples."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from tdcd.cli.imports import import_path, importable
from tdcd.errors import JobError
from tdcd.runs.layout import check_no_run, check_run

EXAMPLES = """Examples:

tdcd refit runs/loans-20260101-120000

tdcd refit runs/loans-20260101-120000 --out runs/loans-final

tdcd refit runs/loans-20260101-120000 --job refit.toml  [dim]# only write its job file, to deploy it[/dim]
"""


def command(
    run: Annotated[Path, typer.Argument(help="A finished run that had validation samples.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run directory; default: runs/NAME-refit-DATE-TIME.")
    ] = None,
    job: Annotated[
        Path | None, typer.Option("--job", metavar="FILE", help="Only write the job file of the refit; train nothing.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that --job names.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Train a run again on its training and validation samples, at its settings.

    It takes as many rounds as the weights that the run kept, with the rates that these rounds had, and is measured on
    the same test samples. It is an ordinary run: tdcd train --resume goes on with it.
    """
    if quiet and json:
        raise JobError("--quiet and --json exclude each other")
    if job and out:
        raise JobError("--job only writes a job file, so that --out has no use")
    if force and not job:
        raise JobError("--force goes with --job, whose file it replaces")
    check_run(run)
    from tdcd.cli.train import default_directory, train
    from tdcd.jobs.refit import plan_refit

    importable(*import_path(run), Path())
    planned = plan_refit(run)
    if job:
        _write(job, planned.job.as_table(), force)
        for sentence in planned.describe() if not quiet else ():
            typer.echo(sentence)
        typer.echo(f"{job}: train it with: tdcd train {quote(str(job))}")
        return
    if out:
        check_no_run(out)
    directory = out or default_directory(planned.job.name)
    train(planned.job, f"refit of {run}", directory, False, quiet, json, planned.describe(), [planned.check])


def _write(file: Path, table: dict[str, object], force: bool) -> None:
    import tomli_w

    from tdcd.files import write_atomically

    if file.suffix != ".toml":
        raise JobError(f"--job {file}: name a .toml file")
    if file.exists() and not force:
        raise JobError(f"{file} exists already and is left as it is; replace it with --force, or choose another")
    try:
        write_atomically(file, tomli_w.dumps(table))
    except OSError as error:
        raise JobError(f"{file}: cannot be written: {error.strerror}") from error
