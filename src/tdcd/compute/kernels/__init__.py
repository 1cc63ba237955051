"""Compiled kernels: built on first use where there is a C++ compiler, kept for later runs, absent otherwise."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")


@cache
def load(name: str) -> tuple[ctypes.CDLL | None, str]:
    """Return a kernel's library, or nothing and why there is none. Set TDCD_KERNELS=0 to do without."""
    if os.environ.get("TDCD_KERNELS") == "0":
        return None, "TDCD_KERNELS=0"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        return None, "no C++ compiler"
    home = files("tdcd.compute.kernels")
    source = "".join(
        home.joinpath(part).read_text(encoding="utf-8") for part in ("tiles.h", f"{name}.cpp", "entries.h")
    )
    try:
        return ctypes.CDLL(str(_built(name, source, compiler))), ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"it could not be compiled ({type(error).__name__})"


def _built(name: str, source: str, compiler: str) -> Path:
    """Return the library built from a source on this machine, building it if it is not there yet."""
    key = "\n".join((source, compiler, *FLAGS, platform.machine(), platform.node(), _processor()))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tdcd"
    path = root / f"{name}-{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.so"
    if not path.exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            text, made = Path(scratch, f"{name}.cpp"), Path(scratch, "made.so")
            text.write_text(source, encoding="utf-8")
            subprocess.run(  # noqa: S603
                [compiler, *FLAGS, str(text), "-o", str(made)], check=True, capture_output=True, timeout=120
            )
            made.replace(path)
    return path


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    return "".join(line for line in cpuinfo.read_text(errors="replace").splitlines() if line.startswith("flags"))
