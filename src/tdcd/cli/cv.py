"""``tdcd cv``: cross-validation and repeated splits."""

import json as json_
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdcd.cli.imports import importable_for
from tdcd.cli.sweep import Address, Engine, Jobs
from tdcd.errors import DivergedError, JobError, TdcdError, join_names

if TYPE_CHECKING:
    from tdcd.experiments.sweep_run import SweepEngine
    from tdcd.runs.cross_validation import CrossValidationRecord

WIDE = 110
"""Columns of a terminal that shows everything."""
FOR_WIDE = ("95% t-interval", "min", "max")
"""Columns of the table that a narrow terminal leaves to the report."""
EXAMPLES = """Examples:

tdcd cv loans.toml  [dim]# 5 folds; the same command goes on with what was stopped[/dim]

tdcd cv loans.toml --folds 10 --repeats 3 --jobs 8

tdcd cv loans.toml --splits 20 --out cv/loans-splits  [dim]# random splits, by the job's test fraction[/dim]

tdcd cv loans.toml --set training.rounds=100 --json
"""


def command(
    job: Annotated[Path, typer.Argument(help="The job file, or the name of an embedded job.")],
    folds: Annotated[int | None, typer.Option("--folds", help="Folds; default: 5.")] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", help="Fall into folds so many times, each by another data.seed.")
    ] = 1,
    splits: Annotated[
        int | None,
        typer.Option("--splits", help="Instead of folds: so many random splits, each by another data.seed."),
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Its directory; default: cv/NAME.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the job file.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object, cv.json.")] = False,
) -> None:
    """Train a job once for each fold, and tell how its test measures vary; started again, it goes on.

    The samples of one fold test what was trained on the others. Every run has a directory and a report of its own.
    """
    from tdcd.cli.sweepdisplay import display
    from tdcd.experiments.cross_validation import cross_validate
    from tdcd.experiments.sweep_run import FailedRunsError
    from tdcd.jobs.load import load_job
    from tdcd.runs.cross_validation import read_cross_validation
    from tdcd.strict import parse_setting

    if quiet and json:
        raise JobError("--quiet and --json exclude each other")
    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    overrides |= {"data.directory": str(data.resolve())} if data else {}
    chosen = load_job(job, overrides)
    importable_for(job)
    directory = out or Path("cv") / chosen.name
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shown = display(quiet=quiet or json)
    try:
        with shown:
            shown.say(f"Cross-validation: {job} in {directory}")
            record = cross_validate(
                chosen,
                directory,
                folds=folds,
                repeats=repeats,
                splits=splits,
                jobs=jobs,
                engine=cast("SweepEngine", engine),  # it is checked there
                address=address,
                observer=shown,
                where=str(job),
            ).record
    except KeyboardInterrupt:
        shown.say("\nStopped. What has ended is kept, the rest goes on from its checkpoints: run the command again.")
        sys.exit(130)
    except FailedRunsError:
        with suppress(TdcdError):
            if some := read_cross_validation(directory):
                _show(some, directory, quiet, json)
        raise
    _show(record, directory, quiet, json)
    if record.failures:
        from tdcd.reports.splits import describe_failure

        verb = "is" if len(record.failures) == 1 else "are"
        raise DivergedError(
            f"{len(record.failures)} of {len(record.runs)} runs diverged and {verb} in no mean: "
            f"{join_names(map(describe_failure, record.failures))}; a smaller training.rate helps"
        )


def _show(record: "CrossValidationRecord", directory: Path, quiet: bool, json: bool) -> None:
    """Write the report, and print the table or the record."""
    from tdcd.reports.comparison import write_study
    from tdcd.reports.study import read_study

    page = write_study(read_study([directory]), directory)
    if json:
        typer.echo(json_.dumps({**asdict(record), "directory": str(directory), "report": str(page)}))
    if quiet or json:
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tdcd.cli.terminal import terminal
    from tdcd.reports.splits import INTERVALS, measure_table

    console = terminal()
    header, rows = measure_table(record)
    shown = [place for place, name in enumerate(header) if console.width >= WIDE or name not in FOR_WIDE]
    title = f"{record.job}, {record.way}: on the test samples"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", *(header[place] for place in shown)):
        table.add_column(name, justify="left" if name in ("", "trained by") else "right")
    for name, cells in rows:
        table.add_row(name, *(cells[place] for place in shown))
    console.print()
    if rows:
        console.print(table)
        console.print(f"{INTERVALS}.", soft_wrap=True)
    console.print(f"Report: {page}", soft_wrap=True)
