"""``tdcd train``: run a job."""

import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.imports import import_path, importable, importable_for
from tdcd.errors import LEARNED_NOTHING, ClusterError, DivergedError, JobError, RunError, TdcdError
from tdcd.runs.layout import FEDERATION, JOB, check_no_run, check_run

if TYPE_CHECKING:
    from tdcd.cli.display import Display
    from tdcd.jobs.schema import Job
    from tdcd.training.callbacks import Callback

EXAMPLES = """Examples:

tdcd train  [dim]# the demo: digits, halves of each image in two silos[/dim]

tdcd train job.toml --rounds 100 -Q 10 --rate 0.05

tdcd train job.toml --set training.optimizer=adam --set model.hidden=[128,64]

tdcd train physionet2012 --data physionet2012  [dim]# a published data set; see tdcd data list[/dim]

tdcd train job.toml --engine ray --address auto  [dim]# on a cluster of Ray[/dim]

tdcd train --resume runs/digits-20260101-120000
"""


def command(
    job: Annotated[
        Path | None, typer.Argument(help="The job file, or the name of an embedded job; default: digits.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Go on with this run from its last checkpoint.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run directory; default: runs/NAME-DATE-TIME.")
    ] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", "-R", help="Communication rounds.")] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", "-Q", help="Local gradient steps a round.")
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", "-B", help='Samples in a mini-batch, or "full".')
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Learning rate.")] = None,
    clients: Annotated[int | None, typer.Option("--clients", "-K", help="Clients in every silo.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and mini-batches.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="local, ray or oracle.")] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="The Ray cluster to join, HOST:PORT or auto; default: one is started here."),
    ] = None,
    compute: Annotated[
        str | None, typer.Option("--compute", help="auto, one-step, kernel, layers, stacked or loop.")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="Threads that share the work.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:1 …")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting of the job file."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Train a federation as a job file says, and write a run directory with a report."""
    from tdcd.strict import parse_setting

    if quiet and json:
        raise JobError("--quiet and --json exclude each other")
    named = {
        "data.directory": str(data) if data else None,
        "training.rounds": rounds,
        "training.local_steps": local_steps,
        "training.batch_size": int(batch_size) if batch_size and batch_size.isdecimal() else batch_size,
        "training.rate": rate,
        "training.seed": seed,
        "engine": engine,
        "address": address,
        "compute": compute,
        "workers": workers,
        "device": device,
    }
    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    overrides |= {key: value for key, value in named.items() if value is not None}
    chosen, where, directory = _resolve(job, resume, out, overrides, clients)
    if chosen.auto:
        chosen = _find(chosen, where, directory, quiet=quiet or json)
    train(chosen, where, directory, resume is not None, quiet, json)


def _resolve(
    file: Path | None, resume: Path | None, out: Path | None, overrides: dict[str, Any], clients: int | None
) -> tuple["Job", str, Path]:
    """Find the job and the directory it runs in."""
    from tdcd.jobs.load import load_job
    from tdcd.jobs.schema import EMBEDDED

    if resume is None:
        where = str(file or "digits")
        job = load_job(where, overrides, clients)
        where += " (embedded)" if where in EMBEDDED else ""
        importable_for(file)
        if out:
            check_no_run(out)  # before its data is read
        return job, where, out or default_directory(job.name)
    if out is not None:
        raise RunError("--resume goes on in the run's own directory; leave out --out")
    check_run(resume)
    where = str(file or resume / JOB)
    job = load_job(where, overrides, clients)
    importable(*([file.parent] if file else []), *import_path(resume), Path())
    return job, where, resume


def _find(job: "Job", where: str, directory: Path, *, quiet: bool) -> "Job":
    """Find the settings that the job leaves open, beside the run's directory."""
    from tdcd.cli.tunedisplay import display, show
    from tdcd.experiments.tuning.tune import found
    from tdcd.reports.tuning import write_tuning

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    path = directory.with_name(f"{directory.name}-tuning")
    shown = display(quiet=quiet)
    try:
        with shown:
            shown.say(f"{where}: finding training.{' and training.'.join(job.auto)} in {path}")
            job, record = found(job, path, observer=shown, where=where)
    except KeyboardInterrupt:
        shown.say("\nStopped. What has ended is kept: run the command again with --out to go on.")
        sys.exit(130)
    show(shown, record, path, write_tuning(record, path))
    return job


def train(
    job: "Job",
    where: str,
    directory: Path,
    resume: bool,
    quiet: bool,
    json: bool,
    notes: Sequence[str] = (),
    callbacks: "Sequence[Callback]" = (),
) -> None:
    """Run a job and show it; first come the notes."""
    from tdcd.cli.display import display
    from tdcd.jobs.run import run_job
    from tdcd.reports.page import write_report

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shown: Display = display(job, where, quiet=quiet, json=json)
    try:
        with shown:
            for note in notes:
                shown.noted(note)
            result = run_job(job, directory, resume=resume, callbacks=[*callbacks, shown], where=where)
    except KeyboardInterrupt:
        begun = (directory / FEDERATION).exists()
        if begun:
            write_report(directory)
        shown.stopped(directory if begun else None)
        sys.exit(130)
    except TdcdError as error:
        lost = isinstance(error, ClusterError) and (directory / FEDERATION).exists()
        if lost or isinstance(error, DivergedError):
            write_report(directory)
        shown.failed(error, directory if lost else None)
        raise
    shown.finished(result, directory, write_report(directory))
    if result.federation.failures:
        sys.exit(LEARNED_NOTHING)


def default_directory(name: str) -> Path:
    """Return a run directory that does not exist: two runs may start in the same second."""
    path = Path("runs") / f"{name}-{datetime.now().strftime('%Y%m%d-%H%M%S')}"
    candidate, number = path, 1
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
