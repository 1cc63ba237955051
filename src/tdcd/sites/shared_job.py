"""The job as all sites share it: without what is a site's own business, such as paths and threads."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

from tdcd.errors import DeploymentError, JobError
from tdcd.jobs.schema import Job, data_settings
from tdcd.runs.stored_job import differences
from tdcd.sites.messages.frames import PROTOCOL

VERSION = version("tdcd")

_OWN = ("engine", "address", "compute", "workers", "device", "baselines", "name")
"""What every site decides by itself."""


@dataclass(frozen=True)
class SharedJob:
    """What all sites must agree on."""

    text: str
    """As JSON."""

    @classmethod
    def of(cls, job: Job) -> "SharedJob":
        """Leave out what is a site's own business."""
        table = job.as_table()
        for key in _OWN:
            table.pop(key, None)
        for key in ("directory", "alignment"):
            table["data"].pop(key, None)
        for name, silo in table.get("silos", {}).items():
            if "file" in silo:
                raise JobError(
                    f"silos.{name}.file: its rows are dealt to simulated clients; at real sites every client has its "
                    'own file: clients = ["north", "south"]'
                )
            if isinstance(silo.get("clients"), Mapping | list):
                silo["clients"] = sorted(silo["clients"])
        return cls(json.dumps(table, sort_keys=True))

    @cached_property
    def fingerprint(self) -> str:
        """A digest."""
        return hashlib.blake2b(self.text.encode(), digest_size=16).hexdigest()

    @property
    def table(self) -> dict[str, Any]:
        """The settings."""
        result: dict[str, Any] = json.loads(self.text)
        return result

    def check(self, protocol: int, version: str, job: str, who: str) -> None:
        """Check that somebody else speaks the same protocol and has the same job.

        Raises:
            DeploymentError: they differ; the message lists how.
        """
        if protocol != PROTOCOL:
            raise DeploymentError(
                f"{who} runs tdcd {version[:20]} (protocol {protocol}), "
                f"this site tdcd {VERSION} (protocol {PROTOCOL}); install the same version"
            )
        if job == self.text:
            return
        try:
            text = differences(json.loads(job), self.table)
        except (ValueError, AttributeError, RecursionError) as error:
            raise DeploymentError(f"{who} sent an unreadable job") from error
        raise DeploymentError(f"{who} ('there') has another job than this hub ('here'):\n  " + "\n  ".join(text))


def data_fingerprint(job: Job) -> str:
    """Return a digest of what decides who holds what, and how tables become numbers."""
    text = json.dumps(data_settings(SharedJob.of(job).table), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
