"""The machine and the software behind a result."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from tdcd.runs.records import Session

PACKAGES = ("tdcd", "torch", "numpy", "scikit-learn")


def describe_session() -> Session:
    """Describe this process: versions, machine, time and command."""
    return Session(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        directory=str(Path.cwd()),
        import_path=tuple(place for place in sys.path if place),
        python=platform.python_version(),
        packages={name: version(name) for name in PACKAGES},
        system=platform.platform(),
        processor=processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
    )


def processor() -> str:
    """Return the processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
