"""``tdcd sweep``: run a grid of jobs in parallel, and draw it."""

import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tdcd.cli.imports import importable
from tdcd.errors import TdcdError

if TYPE_CHECKING:
    from tdcd.experiments.sweep_file import Sweep
    from tdcd.experiments.sweep_run import SweepEngine

EXAMPLES = """Examples:

tdcd sweep sweep.toml  [dim]# start it, or go on with it[/dim]

tdcd sweep sweep.toml --jobs 8 --data cifar-10-batches-bin

tdcd sweep sweep.toml --seed 2021  [dim]# one seed now; without the option the others are added[/dim]

tdcd sweep sweep.toml --engine ray --address auto  [dim]# at the nodes of a Ray cluster[/dim]

tdcd sweep sweep.toml --list  [dim]# what would be run[/dim]
"""

Jobs = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Runs at once; default: one for each core.")]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="local: on this machine. ray: at the nodes of a Ray cluster; all must see the directory (--out).",
    ),
]
Address = Annotated[
    str | None,
    typer.Option("--address", help="The Ray cluster to join, HOST:PORT or auto; default: one is started here."),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Its directory; default: sweeps/NAME.")]
Seeds = Annotated[
    list[int] | None,
    typer.Option("--seed", min=0, help="Run this seed instead of the file's; may be given several times."),
]
Listing = Annotated[bool, typer.Option("--list", help="Only list what would be run.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def command(
    sweep: Annotated[Path, typer.Argument(help="The sweep file.")],
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of a published data set are.")] = None,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    out: Out = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the job file, for every run."),
    ] = None,
    seeds: Seeds = None,
    listing: Listing = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of a grid, each with every seed, and write a report; started again, it goes on."""
    from tdcd.experiments.sweep_file import load_sweep
    from tdcd.strict import parse_setting

    result = load_sweep(sweep)
    importable(sweep.parent, Path(result.job).parent)
    overrides: dict[str, Any] = dict(parse_setting(text) for text in settings or [])
    run(result, str(sweep), data, jobs, engine, address, out, overrides, seeds, listing=listing, quiet=quiet)


def run(
    sweep: "Sweep",
    where: str,
    data: Path | None,
    jobs: int | None,
    engine: str,
    address: str | None,
    out: Path | None,
    overrides: dict[str, Any],
    seeds: list[int] | None,
    *,
    listing: bool,
    quiet: bool,
) -> None:
    """Run a sweep, or list it."""
    from tdcd.cli.sweepdisplay import display
    from tdcd.experiments.sweep_run import FailedRunsError, run_sweep
    from tdcd.reports.comparison import write_study
    from tdcd.reports.study import read_study

    if seeds:
        sweep = sweep.model_copy(update={"seeds": list(dict.fromkeys(seeds))})
    overrides |= {"data.directory": str(data.resolve())} if data else {}
    if listing:
        _list(sweep, where, overrides)
        return
    directory = out or Path("sweeps") / sweep.name
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shown = display(quiet=quiet)
    try:
        with shown:
            shown.say(f"Sweep: {where} in {directory}")
            run_sweep(
                sweep,
                directory,
                jobs=jobs,
                engine=cast("SweepEngine", engine),  # it is checked there
                address=address,
                overrides=overrides,
                observer=shown,
                where=where,
            )
    except KeyboardInterrupt:
        shown.say("\nStopped. What has ended is kept, the rest goes on from its checkpoints: run the command again.")
        sys.exit(130)
    except FailedRunsError:
        with suppress(TdcdError):
            report = write_study(read_study([directory]), directory)
            shown.say(f"Some of it failed, see below; all else is trained. What there is: {report}")
        raise
    study = read_study([directory])
    shown.finished(study, write_study(study, directory))


def _list(sweep: "Sweep", where: str, overrides: dict[str, Any]) -> None:
    from tdcd.experiments.sweep_plan import combinations, runs, trials

    result = combinations(sweep, where, overrides, None)
    tried = {trial.name for combination in result for trial in trials(sweep, combination).values()}
    planned = {run.name: None for combination in result for run in runs(sweep, combination, None).values()}
    for name in planned:
        typer.echo(name)
    alone = "; each silo alone comes on top: their names are known when the data is read"
    more = alone if "alone" in sweep.baselines else ""
    typer.echo(f"{len(planned)} run(s) of {sweep.iterations:,} local steps, {len(tried)} trials to choose rates{more}")
