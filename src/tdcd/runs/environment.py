"""The machine, the software and the data behind a result."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import torch

from tdcd.runs.records import Session

THREADS = re.compile(r"[A-Z]+_NUM_THREADS|OMP_\w+|KMP_\w+|CUBLAS_WORKSPACE_CONFIG")
"""Variables that decide in what order numbers are added up."""


def describe_session(inputs: Mapping[str, str] | None = None, *, compiled: bool = False) -> Session:
    """Describe this process: versions, machine, time and command.

    Args:
        inputs: Fingerprints of the data, the networks and the first weights.
        compiled: Whether compiled kernels take part, so that the compiler matters.
    """
    return Session(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        directory=str(Path.cwd()),
        import_path=tuple(place for place in sys.path if place),
        code={str(root): commit for root in _repositories() if (commit := _commit(root))},
        python=platform.python_version(),
        packages=_packages(),
        compiler=_first_line(*shlex.split(os.environ.get("CXX") or "c++"), "--version") if compiled else "",
        system=platform.platform(),
        processor=processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        thread_variables={name: value for name, value in sorted(os.environ.items()) if THREADS.fullmatch(name)},
        inputs=dict(inputs or {}),
    )


@cache
def _packages() -> dict[str, str]:
    """Return the versions of tdcd and of the packages that it uses, as far as they are installed."""
    wanted = [re.split(r"[^\w.-]", line)[0] for line in requires("tdcd") or () if "extra == 'dev'" not in line]
    result = {}
    for name in ["tdcd", *sorted(wanted)]:
        try:
            result[name] = version(name)
        except PackageNotFoundError:  # of an extra
            continue
    return result


def _repositories() -> Iterator[Path]:
    """Yield the git repositories that code may come from: where the job, the script and the user are."""
    seen = set()
    for place in (Path.cwd(), *map(Path, filter(None, sys.path))):
        installed = any(place.is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix))
        root = next((folder for folder in (place, *place.parents) if (folder / ".git").exists()), None)
        if root and root not in seen and not installed:
            seen.add(root)
            yield root


@cache
def _commit(root: Path) -> str:
    """Return the commit that is checked out, and whether files were changed since; nothing where git fails."""
    commit = _first_line(*_git(root), "rev-parse", "HEAD")
    return f"{commit}, changed since" if commit and _first_line(*_git(root), "status", "--porcelain") else commit


def _git(root: Path) -> Sequence[str]:
    """Return a command that changes nothing and runs no program that the repository names."""
    return "git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root)


@cache
def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0] if done.returncode == 0 else ""


def processor() -> str:
    """Return the processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
