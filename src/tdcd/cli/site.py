"""What the commands of a site have in common: options, the log, how they end."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.errors import JobError, TdcdError, nearest

if TYPE_CHECKING:
    from logging import Logger

    from tdcd.sites.logs import Style

Log = Annotated[str, typer.Option("--log", help="Log lines for people (human), or as JSON (json).")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Do without TLS; for addresses on this machine only, to try things.")
]

Serve = Annotated[
    bool, typer.Option("--serve", help="When the training is finished, stay for predictions: tdcd predict --site.")
]


def log_style(log: str) -> "Style":
    """Check how to write the log."""
    styles: dict[str, Style] = {"human": "human", "json": "json"}
    if log not in styles:
        raise JobError(f"--log: '{log}' is not known{nearest(log, styles)}")
    return styles[log]


@contextmanager
def running(site: str, style: "Style", when_stopped: str) -> "Iterator[Logger]":
    """Log what a site does; exit with 130 if it is stopped, and as the error says if it fails."""
    from tdcd.sites.logs import logs

    for kind in (signal.SIGINT, signal.SIGTERM):  # a shell may have started it with SIGINT ignored
        signal.signal(kind, signal.default_int_handler)
    with logs(site, style) as logger:
        try:
            yield logger
        except KeyboardInterrupt:
            logger.warning(when_stopped)
            sys.exit(130)
        except TdcdError as error:
            logger.error(str(error))
            sys.exit(error.exit_code)
        logger.info("the training is finished")
