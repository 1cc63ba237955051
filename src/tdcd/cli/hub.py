"""``tdcd hub``: run a silo's hub at its site."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.imports import importable

if TYPE_CHECKING:
    from tdcd.training.result import Evaluation

EXAMPLES = """Examples:

tdcd hub loans.toml --silo bank  [dim]# with the site file hub.toml; started again, it goes on[/dim]

tdcd hub loans.toml --silo bank --site /etc/tdcd/hub.toml --log json

tdcd status hub.toml  [dim]# how it goes[/dim]
"""

Log = Annotated[str, typer.Option("--log", help="Log lines for people (human), or as JSON (json).")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Do without TLS; for addresses on this machine only, to try things.")
]


def command(
    job: Annotated[Path, typer.Argument(help="The job file, the same at all sites.")],
    silo: Annotated[str, typer.Option("--silo", help="Whose hub this is.")],
    site: Annotated[Path, typer.Option("--site", help="The site's own file.")] = Path("hub.toml"),
    log: Log = "human",
    insecure: Insecure = False,
) -> None:
    """Run a silo's hub until the training is over; started again after a stop, it goes on where all hubs can."""
    from tdcd.deployment.logs import logs
    from tdcd.deployment.metrics import serve
    from tdcd.deployment.run import run_hub
    from tdcd.deployment.site import HubSite, read_site
    from tdcd.errors import TdcdError
    from tdcd.experiments.job import load_job

    style = log_style(log)
    importable(job.parent)
    read, own = load_job(job), read_site(site, HubSite)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with logs(silo, style) as logger:
        try:
            run_hub(
                read,
                silo,
                own,
                insecure=insecure,
                observer=_observer(logger),
                told=logger.info,
                watch=lambda hub: serve(hub, own.metrics),
            )
        except KeyboardInterrupt:
            logger.warning("stopped; start it again to go on")
            sys.exit(130)
        except TdcdError as error:
            logger.error(str(error))
            sys.exit(2)
        logger.info("the training is finished")


def log_style(log: str) -> Any:
    """Check how to write the log."""
    from tdcd.errors import JobError, nearest

    if log not in ("human", "json"):
        raise JobError(f"--log: '{log}' is not known{nearest(log, ('human', 'json'))}")
    return log


def _observer(logger: Any) -> Any:
    from tdcd.training.loop import Observer

    class Telling(Observer):
        def started(self, done: int, rounds: int, paths: Any) -> None:  # noqa: ARG002
            logger.info(f"training goes on after round {done} of {rounds}" if done else f"training: {rounds} rounds")

        def evaluated(self, evaluation: "Evaluation") -> None:
            parts = {"train": evaluation.train, "validation": evaluation.validation, "test": evaluation.test}
            told = [
                f"{part} {name} {value:.4f}"
                for part, measures in parts.items()
                for name, value in measures.items()
                if part != "train" or name == "loss"
            ]
            facts = {"round": evaluation.round, **{part: dict(found) for part, found in parts.items() if found}}
            logger.info(f"round {evaluation.round}: {', '.join(told)}", extra={"facts": facts})

    return Telling()
