"""``tdcd assemble``: one model from a run, or from the runs of all hubs."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

EXAMPLES = """Examples:

tdcd assemble runs/loans-20260101-120000 --out models/loans  [dim]# of a simulation's run[/dim]

tdcd assemble bank/run insurer/run --out models/loans  [dim]# of the runs of all hubs[/dim]

tdcd predict models/loans --table bank=new-bank.csv --table insurer=new-insurer.csv
"""


def command(
    runs: Annotated[list[Path], typer.Argument(help="A run of a simulation, or the runs of all hubs of a training.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The directory of the model.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
) -> None:
    """Make one model: weights, preparations, names of columns and classes, measures, and a model card.

    The runs may be under way: then the newest checkpoint that all of them have is taken. Weights and preparations tell
    of the rows behind them; bring the runs of several organisations together only where all of them allow it.
    """
    from tdcd.serving.assemble import assemble
    from tdcd.serving.record import read_model

    path = assemble(runs, out, force=force)
    record = read_model(path)
    silos = [silo.name for silo in record.federation.silos]
    typer.echo(f"{path}: weights of round {record.round:,} of {record.rounds:,}, silos {', '.join(silos)}")
    typer.echo(f"the model card: {path / 'README.md'}")
    files = " ".join(f"--table {quote(silo.name)}=FILE" for silo in record.federation.silos if silo.features)
    if record.job.get("data", {}).get("source") == "tables":
        typer.echo(f"predict with: tdcd predict {quote(str(path))} {files}")
