"""``tdcd reproduce``: the paper's experiments, a command each."""

from pathlib import Path
from typing import Annotated

import typer

from tdcd.cli.sweep import Address, Engine, Jobs, Listing, Out, Quiet, Seeds, run
from tdcd.errors import JobError

EXAMPLES = """Examples:

tdcd reproduce  [dim]# which experiments there are[/dim]

tdcd reproduce cifar10 --data cifar-10-batches-bin

tdcd reproduce physionet2012 --data physionet2012 --scale paper --jobs 8 --seed 2021
"""


def command(
    name: Annotated[str | None, typer.Argument(help="The experiment; without one, they are listed.")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="Where the files of its data set are.")] = None,
    scale: Annotated[
        str, typer.Option("--scale", help="paper: as published. small: same shape, for two cores.")
    ] = "small",
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    out: Out = None,
    seeds: Seeds = None,
    listing: Listing = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper and draw its figures; started again, it goes on."""
    from tdcd.experiments.paper import EXPERIMENTS, experiment

    if name is None:
        from rich.table import Table

        from tdcd.cli.terminal import terminal

        table = Table(title="Experiments of the paper", title_justify="left")
        for column in ("name", "what it shows", "data"):
            table.add_column(column)
        for known, (shows, source) in EXPERIMENTS.items():
            table.add_row(known, shows, source)
        terminal().print(table)
        return
    sweep = experiment(name, scale)
    if data is None and not listing:
        source = EXPERIMENTS[name][1]
        raise JobError(f"--data: say where the files of {source} are; tdcd data list tells how to get them")
    run(sweep, f"{name} ({scale} scale)", data, jobs, engine, address, out, {}, seeds, listing=listing, quiet=quiet)
