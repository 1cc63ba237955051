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
TIMEOUT = 10.0
"""Seconds to wait for git or the compiler."""


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
        packages=installed_packages(),
        compiler=_compiler() if compiled else "",
        system=platform.platform(),
        processor=processor(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        thread_variables={name: value for name, value in sorted(os.environ.items()) if THREADS.fullmatch(name)},
        inputs=dict(inputs or {}),
    )


@cache
def installed_packages() -> dict[str, str]:
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
    """Return the commit that is checked out, and whether tracked files were changed since; nothing where git fails."""
    commit = _first_line(*_git(root), "rev-parse", "HEAD")
    changed = _changed(root) if commit else False
    return commit + {None: ", unknown whether changed", True: ", changed since", False: ""}[changed]


def _changed(root: Path) -> bool | None:
    """Tell whether tracked files differ from the commit; None where git cannot say without running a filter."""
    settings = _output(*_git(root), "config", "--list", "--name-only", "-z")
    if settings is None:
        return None
    filters = sorted({key.rpartition(".")[0] for key in settings.split("\0") if key.startswith("filter.")})
    if any("=" in name for name in filters):  # -c would take the rest of the name for a value, and the filter would run
        return None
    unfiltered = [f"{name}.{key}" for name in filters for key in ("clean=", "process=", "required=false")]
    overrides = [word for setting in unfiltered for word in ("-c", setting)]
    # git runs by the settings of a submodule of its own where it looks for changes inside one
    what = ("--porcelain", "--untracked-files=no", "--ignore-submodules=dirty", "--no-renames")
    changes = _output(*_git(root), *overrides, "status", *what)
    return None if changes is None else bool(changes)


def _git(root: Path) -> Sequence[str]:
    """Return a command that changes nothing and runs no program that the repository names: no monitor, no transport."""
    return "git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", str(root)


def _compiler() -> str:
    """Return how the compiler calls itself, or CXX as it is where that is no command."""
    named = os.environ.get("CXX") or "c++"
    try:
        words = shlex.split(named)
    except ValueError:  # a quote that is not closed
        return named
    return _first_line(*words, "--version")


@cache
def _first_line(*command: str) -> str:
    return (_output(*command) or "").partition("\n")[0]


def _output(*command: str) -> str | None:
    """Return what a command prints, or None where it fails."""
    # git would fetch what a partial clone lacks, by a program that the clone names
    environment = os.environ | {"GIT_ALLOW_PROTOCOL": "none"}
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def processor() -> str:
    """Return the processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
