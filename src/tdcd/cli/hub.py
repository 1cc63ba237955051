"""``tdcd hub``: run a silo's hub at its site."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcd.cli.imports import importable
from tdcd.cli.site import Insecure, Log, Serve, log_style, running
from tdcd.errors import LEARNED_NOTHING

if TYPE_CHECKING:
    from tdcd.runs.records import Evaluation
    from tdcd.training.callbacks import Callback

EXAMPLES = """Examples:

tdcd hub loans.toml --silo bank  [dim]# with the site file hub.toml; started again, it goes on[/dim]

tdcd hub loans.toml --silo bank --site /etc/tdcd/hub.toml --log json

tdcd hub loans.toml --silo bank --serve  [dim]# trains, if that is not done, then serves predictions[/dim]

tdcd status hub.toml  [dim]# how it goes[/dim]
"""


def command(
    job: Annotated[Path, typer.Argument(help="The job file, the same at all sites.")],
    silo: Annotated[str, typer.Option("--silo", help="Whose hub this is.")],
    site: Annotated[Path, typer.Option("--site", help="The site's own file.")] = Path("hub.toml"),
    log: Log = "human",
    serve: Serve = False,
    insecure: Insecure = False,
) -> None:
    """Run a silo's hub to the end of the training; with --serve, keep its model ready for predictions then.

    Started again after a stop, it resumes from the latest checkpoint that all hubs share.
    """
    from tdcd.jobs.load import load_job
    from tdcd.sites.hub.main import run_hub
    from tdcd.sites.prometheus import serve as serve_figures
    from tdcd.sites.site_file import HubSite, read_site

    style = log_style(log)
    importable(job.parent)
    read, own = load_job(job), read_site(site, HubSite)
    with running(silo, style, "stopped; start it again to go on") as logger:
        findings = run_hub(
            read,
            silo,
            own,
            insecure=insecure,
            serve=serve,
            callbacks=[_callback(logger)],
            log=logger.info,
            watch=lambda snapshot: serve_figures(snapshot, own.metrics),
        )
        for finding in findings:
            level = logger.info if finding.level == "note" else logger.warning
            level(f"{finding.level}: {finding}", extra={"facts": {"finding": asdict(finding)}})
    if any(finding.level == "failure" for finding in findings):
        sys.exit(LEARNED_NOTHING)


def _callback(logger: Any) -> "Callback":
    from tdcd.training.callbacks import Callback, Start

    class LogLines(Callback):
        def started(self, start: Start) -> None:
            done, rounds = start.done, start.settings.rounds
            logger.info(f"training goes on after round {done} of {rounds}" if done else f"training: {rounds} rounds")

        def noted(self, note: str) -> None:
            logger.warning(note)

        def after_evaluation(self, evaluation: "Evaluation") -> None:
            parts = {"train": evaluation.train, "validation": evaluation.validation, "test": evaluation.test}
            text = [
                f"{part} {name} {value:.4f}"
                for part, measures in parts.items()
                for name, value in measures.items()
                if part != "train" or name == "loss"
            ]
            facts = {"round": evaluation.round, **{part: dict(result) for part, result in parts.items() if result}}
            facts |= {"rows": {part: asdict(rows) for part, rows in evaluation.rows.items()}}
            words = ", ".join(text) or "measured where the labels are, which does not tell this hub"
            partial = f" (partial: {', '.join(evaluation.partial)})" if evaluation.partial else ""
            logger.info(f"round {evaluation.round}: {words}{partial}", extra={"facts": facts})

    return LogLines()
