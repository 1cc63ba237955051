import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from zygote import FastPopen

torch.set_num_threads(1)
os.environ["RAY_AUTH_MODE"] = "disabled"  # one mode for all clusters: a process of Ray cannot change it
settings.register_profile(
    "tdcd", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("tdcd"), max_examples=3)
QUICK = "TDCD_QUICK" in os.environ
settings.load_profile("quick" if QUICK else "tdcd")

PROGRAMS = ("c++", "g++", "clang++", "git", "uname")
"""What describes or builds for this machine in no time."""


class QuickPopen(FastPopen):
    """Skips tests that start a process, but for a few quick ones, where a quick look is wanted (``make quick``)."""

    def __init__(self, command: Any, *more: Any, **named: Any) -> None:
        name = Path(command if isinstance(command, str) else command[0]).name
        if "PYTEST_CURRENT_TEST" in os.environ and name not in PROGRAMS:
            pytest.skip("it starts a process")
        super().__init__(command, *more, **named)


setattr(subprocess, "Popen", QuickPopen if QUICK else FastPopen)  # noqa: B010 - processes need not wait for torch


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command adds folders to where modules are found, for its process: here for its test."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what takes long, where a quick look is wanted."""
    for item in items:
        if QUICK and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="it takes long"))
