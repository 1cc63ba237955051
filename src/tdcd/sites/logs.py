"""What an operator reads: a line for everything that happens, for people or as JSON."""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from math import inf
from typing import Literal

from tdcd.sites.security.tls import refusal

Style = Literal["human", "json"]
Log = Callable[[str], None]
"""Takes a line for the log."""

QUIET = 600.0
"""Seconds in which the same refusal is logged once."""


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        mark = "" if record.levelno < logging.WARNING else f"{record.levelname}: "
        return f"{clock} {record.name} · {mark}{_plain(record.getMessage())}"


def _plain(text: str) -> str:
    """Return a text without characters that a terminal obeys: some of it may come from elsewhere."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "site": record.name,
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        return json.dumps(text, ensure_ascii=False)


@contextmanager
def logs(site: str, style: Style = "human") -> Iterator[logging.Logger]:
    """Write a site's log to standard error, and catch what native code prints there.

    gRPC tells of connections that it refused in the handshake nowhere else: such a line becomes one of the log,
    others pass as they are.
    """
    logger = logging.getLogger(site)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    sys.stderr.flush()
    kept = os.dup(2)
    read, write = os.pipe()
    os.dup2(write, 2)
    os.close(write)
    stream = os.fdopen(os.dup(kept), "w", buffering=1, encoding="utf-8", errors="replace")
    before, sys.stderr = sys.stderr, stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if style == "json" else _Human())
    logger.addHandler(handler)
    thread = threading.Thread(target=_listen, args=(read, kept, logger), name="stderr", daemon=True)
    thread.start()
    try:
        yield logger
    finally:
        sys.stderr = before
        os.dup2(kept, 2)  # closes the pipe's last end to write to: the thread reads to the end
        thread.join(2)
        logger.removeHandler(handler)
        stream.close()
        os.close(kept)


def _listen(read: int, kept: int, logger: logging.Logger) -> None:
    logged: dict[str, tuple[float, int]] = {}
    """When each refusal was last logged, and how often it happened since."""
    with os.fdopen(read, "rb") as lines:
        for line in lines:
            text = refusal(line.decode(errors="replace"))
            if text:
                when, since = logged.get(text, (-inf, 0))
                logged[text] = when, since + 1
                if time.monotonic() - when > QUIET:
                    logger.warning(f"{text} ({since:,} times more since the last such line)" if since else text)
                    logged[text] = time.monotonic(), 0
            elif not line.startswith((b"I0", b"I1")):  # what gRPC says to its developers
                os.write(kept, line)
