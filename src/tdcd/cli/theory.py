"""``tdcd theory``: the gradients of a run beside the bound of Theorem 1."""

import json as json_
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.models import Allow, ImportFrom, allowed
from tdcd.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from tdcd.runs.theory import TheoryRecord

EXAMPLES = """Examples:

tdcd theory runs/digits-20260101-120000

tdcd theory runs/digits-20260101-120000 --rounds 50 --evaluations 51  [dim]# the first rounds only, each of them[/dim]

tdcd theory runs/loans-20260101-120000 --json
"""


def command(
    run: Annotated[Path, typer.Argument(help="The run directory of a simulation that was trained by a job.")],
    rounds: Annotated[int | None, typer.Option("--rounds", "-R", help="Repeat so many rounds only.")] = None,
    evaluations: Annotated[
        int, typer.Option("--evaluations", min=2, help="At how many rounds to compute the gradient on all rows.")
    ] = 30,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows that L is estimated on, at most.")] = 20_000,
    clients: Annotated[
        int, typer.Option("--clients", min=1, help="Clients of each silo that are looked at in a mini-batch, at most.")
    ] = 5,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Mini-batches that σ² is estimated on.")] = 50,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides which rows, clients and mini-batches.")] = 0,
    import_from: ImportFrom = None,
    allow: Allow = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Repeat a run's training and measure its gradients beside the bound of Theorem 1.

    A run records no gradients, so its training is computed again, with the same numbers. Shown are both sides of the
    theorem, the share of each term, the largest admissible learning rate, and which assumptions hold. The run gets
    theory.json, and tdcd report draws it.
    """
    from rich.text import Text

    from tdcd.cli.imports import import_path, importable
    from tdcd.cli.terminal import progress, terminal
    from tdcd.jobs.repeat import repeat_run
    from tdcd.runs.layout import THEORY, check_run
    from tdcd.runs.records import write_record
    from tdcd.training.theory import measure_theory

    check_run(run)
    importable(*import_path(run))
    notes = terminal(stderr=True)
    with notes.status("") as status:
        repeat = repeat_run(run, allowed(import_from, allow), lambda what: status.update(Text(f"reading {what}")))
    chosen = repeat.rounds if rounds is None else rounds
    if not 1 <= chosen <= repeat.rounds:
        raise RunError(
            f"--rounds {chosen:,}: the run has computed {repeat.rounds:,} rounds; name 1 to {repeat.rounds:,}"
        )
    notes.print(
        f"repeating {chosen:,} of {repeat.rounds:,} rounds, which took {repeat.seconds(chosen):.3g} s in the run; "
        "gradients and constants come on top. --rounds repeats fewer"
    )
    with progress("rounds", quiet=json) as advance:
        measured = measure_theory(
            repeat.simulation, rounds=chosen, evaluations=evaluations, rows=rows, clients=clients, batches=batches,
            seed=seed, on_progress=advance,
        )  # fmt: skip
    record = repeat.check(measured)
    write_record(run / THEORY, record)
    if json:
        typer.echo(json_.dumps(asdict(record)))
        return
    _print(record, terminal())
    typer.echo(f"tdcd report {run} shows it, too")


def _print(record: "TheoryRecord", console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from tdcd.reports import theory

    for header, lines in (theory.sides(record), theory.constants(record)):
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("")
        for name in header:
            table.add_column(name, justify="right" if name in ("value", "share") else "left")
        for name, cells in lines:
            table.add_row(name, *cells)
        console.print(table)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("assumption", "met", ""):
        table.add_column(name)
    for name, met, why in theory.assumptions(record):
        table.add_row(name, met, why, style={"no": "bold red"}.get(met))
    console.print(table)
    console.print(theory.verdict(record), style="bold")
    for note in record.notes:
        console.print(f"note: {note}")
    console.print(theory.effort(record))
