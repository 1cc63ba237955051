import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from zygote import FastPopen

torch.set_num_threads(1)
setattr(subprocess, "Popen", FastPopen)  # noqa: B010 - processes need not wait for torch
settings.register_profile(
    "tdcd", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("tdcd"), max_examples=3)
settings.load_profile("quick" if "TDCD_QUICK" in os.environ else "tdcd")

COMPILERS = ("c++", "g++", "clang++")


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip tests that start a process, but for a compiler, where a quick look is wanted (``make quick``)."""
    if "TDCD_QUICK" not in os.environ:
        return
    start = subprocess.Popen.__init__

    def started(process: Any, command: Any, *arguments: Any, **named: Any) -> None:
        if Path(command if isinstance(command, str) else command[0]).name not in COMPILERS:
            pytest.skip("it starts a process")
        start(process, command, *arguments, **named)

    monkeypatch.setattr(subprocess.Popen, "__init__", started)
