"""``tdcd data``: the published data sets that jobs can name."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The data sets that tdcd reads.", no_args_is_help=True)


@app.command("list", epilog="Example: tdcd data list")
def list_() -> None:
    """Say which data sets there are, where to get each, and how its files must lie."""
    from rich.text import Text

    from tdcd.cli.terminal import terminal
    from tdcd.data.sets import SETS

    console = terminal(soft_wrap=True)
    for entry in SETS.values():
        console.print(Text.assemble((entry.name, "bold"), f"  {entry.what}"))
        console.print(f"    task   {entry.task}", markup=False)
        console.print(f"    silos  {_describe_features(entry.features.model_dump())}", markup=False)
        if not entry.origin:
            console.print("    files  comes with tdcd", markup=False)
            continue
        console.print(f"    from   {entry.origin}", markup=False)
        for number, line in enumerate(entry.layout.splitlines()):
            console.print(f"    {'files' if number == 0 else '     '}  {line}", markup=False)
    console.print("\nCheck files with: tdcd data check NAME DIRECTORY · start from a job with: tdcd init NAME")


@app.command("check", epilog="Example: tdcd data check physionet2012 ~/data/physionet2012")
def check(
    name: Annotated[str, typer.Argument(help="A data set of 'tdcd data list'.")],
    directory: Annotated[Path | None, typer.Argument(help="Where its files are.")] = None,
) -> None:
    """Read a data set's files to the end and say what was found; names the first file that is wrong."""
    from rich.text import Text

    from tdcd.cli.terminal import terminal
    from tdcd.data.sets import SETS, read
    from tdcd.data.sets.inspect import inspect
    from tdcd.errors import DataError

    console = terminal(soft_wrap=True)
    try:
        with terminal(stderr=True).status(Text(f"reading {name}")):
            result = inspect(read(name, directory))
    except DataError as error:
        if name not in SETS or not SETS[name].origin:
            raise
        layout = "\n".join(f"    {line}" for line in SETS[name].layout.splitlines())
        raise DataError(f"{error}\n  {name} should lie so:\n{layout}\n  from {SETS[name].origin}") from error
    console.print(f"{'data set':<12} {name}: {SETS[name].what}", markup=False)
    for key, value in result.items():
        console.print(f"{key:<12} {value}", markup=False)
    console.print(f"{name} is complete.", style="bold")


def _describe_features(features: dict[str, object]) -> str:
    silos = features.get("silos")
    count = len(silos) if isinstance(silos, dict) else silos
    return f"{features['kind']}, {count}" if count else f"{features['kind']}, one a silo"
