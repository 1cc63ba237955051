"""Compiled kernels: built on first use where there is a C++ compiler, kept for later runs, absent otherwise."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor


class Span(ctypes.Structure):
    """An array and its length."""

    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_int64))


def span(tensor: Tensor | None, dtype: torch.dtype) -> Span:
    """Return a tensor as a kernel takes it: numbers of one type, one after the other, in the main memory."""
    if tensor is None:
        return Span(None, 0)
    if tensor.dtype != dtype or not tensor.is_cpu or not tensor.is_contiguous():
        raise TypeError(f"a kernel takes contiguous {dtype} on the CPU, not {tensor.dtype} on {tensor.device}")
    return Span(tensor.data_ptr(), tensor.numel())


_INT, _LONG, _DOUBLE = ctypes.c_int, ctypes.c_int64, ctypes.c_double
_NETWORK = (Span, Span, Span, Span, _INT)
"""The network's numbers and weights, features, samples and E."""
_DESCEND = (
    *_NETWORK,
    _INT,
    _DOUBLE,
    Span,
    Span,
    Span,
    Span,
    _INT,
    _DOUBLE,
    _LONG,
    Span,
    Span,
    _INT,
    _INT,
    Span,
    _INT,
    _INT,
)
_EMBED = (*_NETWORK, Span, _INT)
_CODES = {
    1: "the network's numbers or weights do not fit each other",
    2: "a sample is outside of the features, or these are no whole rows",
    3: "the loss, its labels or the rows held still do not fit the batch",
    4: "the clients' rows do not make up the batch",
    5: "the result has another size, or clients are to return what is not known",
    6: "out of memory",
}


def check(code: int) -> None:
    """Raise what a kernel's return code means.

    Raises:
        MemoryError, ValueError: the kernel has refused the call.
    """
    if code:
        raise (MemoryError if code == 6 else ValueError)(_CODES.get(code, "the kernel failed"))


LONGEST = 200
"""Letters of a compiler's message that are shown."""
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread")
"""The environment's CXXFLAGS are added to these."""


@cache
def load(name: str) -> tuple[ctypes.CDLL | None, str]:
    """Return a kernel's library, or nothing and why there is none. Set TDCD_KERNELS=0 to do without."""
    if os.environ.get("TDCD_KERNELS") == "0":
        return None, "TDCD_KERNELS=0 switches kernels off"
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        return None, "there is no C++ compiler; install g++ or clang++, or name one in CXX"
    home = files("tdcd.compute.kernels")
    source = "".join(
        home.joinpath(part).read_text(encoding="utf-8") for part in ("tiles.h", f"{name}.cpp", "entries.h")
    )
    try:
        return _typed(ctypes.CDLL(str(_built(name, source, compiler)))), ""
    except PermissionError as error:
        return None, f"{error}; set XDG_CACHE_HOME to a folder of your own"
    except subprocess.CalledProcessError as error:
        return None, f"{compiler} could not compile it: {_shorten(error.stderr)}"
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return None, f"{compiler} could not compile it: {_shorten(str(error).encode())}"


def _shorten(message: bytes) -> str:
    """Return the line of a compiler's message that says what is wrong, or the last one."""
    lines = [line.strip() for line in message.decode(errors="replace").splitlines() if line.strip()]
    line = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare what the entries take and return."""
    for kind in ("float", "double"):
        for entry, types in (("descend", _DESCEND), ("embed", _EMBED)):
            function = getattr(library, f"tdcd_{entry}_{kind}")
            function.argtypes, function.restype = types, _INT
    return library


def _built(name: str, source: str, compiler: str) -> Path:
    """Return the library built from a source on this machine, building it if it is not there yet."""
    flags = (*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))
    key = "\n".join((source, compiler, *flags, platform.machine(), platform.node(), _processor()))
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tdcd"
    path = root / f"{name}-{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.so"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(root):
        if root.stat().st_uid != os.geteuid():
            raise PermissionError(f"{root} belongs to another user")
        root.chmod(0o700)
    if not path.exists() or not _is_ours(path):
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            text, made = Path(scratch, f"{name}.cpp"), Path(scratch, "made.so")
            text.write_text(source, encoding="utf-8")
            subprocess.run(  # noqa: S603
                [compiler, *flags, str(text), "-o", str(made)], check=True, capture_output=True, timeout=120
            )
            made.chmod(0o700)
            made.replace(path)
    return path


def _is_ours(path: Path) -> bool:
    """Tell whether nobody but this user could have put code there."""
    if not hasattr(os, "geteuid"):
        return True
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    return "".join(line for line in cpuinfo.read_text(errors="replace").splitlines() if line.startswith("flags"))
