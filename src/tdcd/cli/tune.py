"""``tdcd tune``: find a learning rate, local steps, a hub step and a schedule."""

import json as json_
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdcd.cli.imports import importable_for
from tdcd.cli.pricing import Cost, costs_of
from tdcd.errors import JobError

if TYPE_CHECKING:
    from tdcd.experiments.sweep_run import SweepEngine
    from tdcd.runs.tuning import TuningRecord

EXAMPLES = """Examples:

tdcd tune job.toml --t-comm 100  [dim]# a round trip takes as long as 100 local steps[/dim]

tdcd tune job.toml --budget 30m --jobs 8  [dim]# about half an hour, on eight processes[/dim]

tdcd tune job.toml --local-steps 1,10,50 --hub-steps 1,0.5 --batch-sizes 128,512

tdcd tune job.toml --metric auroc --target 0.77  [dim]# what reaches it first is best[/dim]

tdcd train tunings/job/tuned.toml  [dim]# then train with what was chosen[/dim]
"""


def command(
    job: Annotated[Path, typer.Argument(help="The job file, or the name of an embedded job.")],
    t_comm: Annotated[
        float | None, typer.Option("--t-comm", min=0, help="The time of a round trip; default: the job's, or 10.")
    ] = None,
    t_comp: Annotated[
        float | None, typer.Option("--t-comp", min=0, help="The time of a local step; default: the job's, or 1.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", help="What it may take: a part of a full grid's cost, or minutes (30m); default: 10%."
        ),
    ] = None,
    local_steps: Annotated[
        str | None, typer.Option("--local-steps", "-Q", help="Q to try; default: 1,2,5,10,20.")
    ] = None,
    hub_steps: Annotated[str | None, typer.Option("--hub-steps", help="β to try; default: 1, 1/2 and 1/N.")] = None,
    batch_sizes: Annotated[str | None, typer.Option("--batch-sizes", "-B", help="To try; default: the job's.")] = None,
    proximals: Annotated[str | None, typer.Option("--proximals", help="μ to try; default: the job's.")] = None,
    horizon: Annotated[
        float | None,
        typer.Option("--time", help="Simulated time of a whole training; default: that of the job's rounds."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="What decides, on the validation samples; default: loss.")
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", help="A value of it: what reaches it first is best.")
    ] = None,
    cost: Cost = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Trials at once; default: one a core.")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="local, or ray: at the nodes of a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option("--address", help="The Ray cluster to join, HOST:PORT or auto.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Its directory; default: tunings/NAME.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the job, for every trial.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Find the settings with the lowest validation loss in a simulated time; write the job with them, and a report.

    Started again, it goes on.
    """
    from tdcd.costs import Costs
    from tdcd.jobs.load import load_job
    from tdcd.strict import parse_setting

    if quiet and json:
        raise JobError("--quiet and --json exclude each other")
    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    overrides |= {"data.directory": str(data)} if data else {}
    read = load_job(job, overrides)
    importable_for(job)
    given: dict[str, Any] = {
        "local_steps": _numbers("--local-steps", local_steps, int),
        "hub_steps": _numbers("--hub-steps", hub_steps, float),
        "batch_sizes": _numbers("--batch-sizes", batch_sizes, int),
        "proximals": _numbers("--proximals", proximals, float),
        "horizon": horizon,
    }
    own = read.tuning
    trip, step = own.t_comm if t_comm is None else t_comm, own.t_comp if t_comp is None else t_comp
    costs = Costs(t_comm=trip, step=step).under(costs_of(cost))
    budget, metric = budget or own.budget, metric or own.metric
    directory = out or Path("tunings") / read.name
    record = run(
        read, str(job), directory, costs, given, budget, metric, target, jobs, engine, address, quiet=quiet or json
    )
    if json:
        chosen = {"directory": str(directory), "job": str(directory / "tuned.toml")}
        print(json_.dumps(chosen | {key: value for key, value in asdict(record).items() if key != "trials"}))


def run(
    job: Any,
    where: str,
    directory: Path,
    costs: Any,
    given: dict[str, Any],
    budget: str,
    metric: str,
    target: float | None,
    jobs: int | None,
    engine: str,
    address: str | None,
    *,
    quiet: bool,
) -> "TuningRecord":
    """Tune a job, and show how that goes."""
    from tdcd.cli.tunedisplay import display, show
    from tdcd.experiments.tuning import tune
    from tdcd.jobs.tuning import read_budget
    from tdcd.reports.tuning import write_tuning

    try:
        part, minutes = read_budget(budget)
    except ValueError as error:
        raise JobError(f"--budget {error}") from error
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shown = display(quiet=quiet)
    try:
        with shown:
            record = tune(
                job,
                directory,
                costs=costs,
                given=given,
                budget=part,
                minutes=minutes,
                measure=metric,
                target=target,
                jobs=jobs,
                engine=cast("SweepEngine", engine),
                address=address,
                observer=shown,
                where=where,
            )
    except KeyboardInterrupt:
        shown.say("\nStopped. What has ended is kept, the rest goes on from its checkpoints: run the command again.")
        sys.exit(130)
    report = write_tuning(record, directory)
    show(shown, record, directory, report)
    return record


def _numbers(option: str, text: str | None, kind: type[int] | type[float]) -> list[Any] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    try:
        numbers: list[Any] = [word if word == "full" and option == "--batch-sizes" else kind(word) for word in words]
    except ValueError as error:
        raise JobError(f"{option} {text}: numbers with commas between them are wanted, such as 1,5,20") from error
    least = 0 if option == "--proximals" else 1e-9
    if any(isinstance(number, int | float) and not least <= number < float("inf") for number in numbers):
        raise JobError(f"{option} {text}: these have to be above 0")
    if option == "--hub-steps" and max(numbers) > 1:
        raise JobError(f"{option} {text}: a hub step is a part of the way to the clients' mean, at most 1")
    return list(dict.fromkeys(numbers))
