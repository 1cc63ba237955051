"""The ``tdcd`` command.

Exit codes: 0 done · 1 a defect of tdcd itself · 2 something the user can mend (job, data, model, run directory,
a training that diverged) · 3 trained, but the model learned nothing · 75 others are away, try again later ·
130 stopped by Ctrl-C or a termination signal, with a checkpoint to go on from.
"""

import sys
from typing import Annotated

import typer

from tdcd import __version__
from tdcd.cli import (
    align,
    assemble,
    audit,
    certs,
    check,
    client,
    compare,
    cv,
    data,
    deploy,
    evaluate,
    explain,
    export,
    hub,
    init,
    predict,
    refit,
    report,
    reproduce,
    serve,
    status,
    sweep,
    theory,
    train,
    tune,
)
from tdcd.errors import TdcdError

app = typer.Typer(
    name="tdcd",
    help="Federated learning over data split both ways: vertically across organisations, horizontally inside each.",
    epilog="Start with: tdcd train · then: tdcd init digits, edit digits.toml, tdcd train digits.toml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tdcd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("train", epilog=train.EXAMPLES)(train.command)
app.command("refit", epilog=refit.EXAMPLES)(refit.command)
app.command("init", epilog=init.EXAMPLES)(init.command)
app.command("check", epilog=check.EXAMPLES)(check.command)
app.command("align", epilog=align.EXAMPLES)(align.command)
app.command("assemble", epilog=assemble.EXAMPLES)(assemble.command)
app.command("predict", epilog=predict.EXAMPLES)(predict.command)
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.command)
app.command("explain", epilog=explain.EXAMPLES)(explain.command)
app.command("theory", epilog=theory.EXAMPLES)(theory.command)
app.command("export", epilog=export.EXAMPLES)(export.command)
app.command("serve", epilog=serve.EXAMPLES)(serve.command)
app.command("tune", epilog=tune.EXAMPLES)(tune.command)
app.command("sweep", epilog=sweep.EXAMPLES)(sweep.command)
app.command("cv", epilog=cv.EXAMPLES)(cv.command)
app.command("reproduce", epilog=reproduce.EXAMPLES)(reproduce.command)
app.command("compare", epilog=compare.EXAMPLES)(compare.command)
app.command("report", epilog=report.EXAMPLES)(report.command)
app.command("certs", epilog=certs.EXAMPLES)(certs.command)
app.command("hub", epilog=hub.EXAMPLES)(hub.command)
app.command("client", epilog=client.EXAMPLES)(client.command)
app.command("deploy", epilog=deploy.EXAMPLES)(deploy.command)
app.command("status", epilog=status.EXAMPLES)(status.command)
app.add_typer(data.app, name="data")
app.add_typer(audit.app, name="audit")


def main() -> None:
    """Run the command line; tell a user's mistakes without a traceback."""
    try:
        app()
    except TdcdError as error:
        for line in str(error).splitlines():
            print(f"tdcd: {line}" if not line.startswith(" ") else line, file=sys.stderr)
        sys.exit(error.exit_code)
