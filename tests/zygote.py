"""Python processes without the wait for torch: forked by a process that has imported it, and all of tdcd, before.

``FastPopen`` is ``subprocess.Popen``, but ``python -m tdcd …`` and scripts of these tests begin as copies of such a
process. They are real processes, with a PID, pipes, a memory and a death of their own; whoever started them waits for
them as for any other child, because orphans fall to it. Other scripts and ``-c`` get an interpreter of their own; so
does every command where the system is not Linux.
"""

import atexit
import ctypes
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

PRELOADED = (
    "tdcd.cli.main",
    "tdcd.cli.client",
    "tdcd.cli.hub",
    "tdcd.cli.sweep",
    "tdcd.cli.train",
    "tdcd.experiments.worker",
    "tdcd.experiments.sweep_run",
    "tdcd.jobs.run",
    "tdcd.reports.comparison",
    "tdcd.serving.http.server",
    "tdcd.sites.client.main",
    "tdcd.sites.hub.main",
    "tdcd.sites.prometheus",
    "sklearn.datasets",
)
TESTS = Path(__file__).parent
SUBREAPER = 36
"""prctl: orphaned descendants become children of this process."""
REAL = subprocess.Popen


class Zygote:
    """The process that forks; there is one for each process of tests."""

    def __init__(self, optimize: str) -> None:
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        self._near, far = socket.socketpair()
        with far:
            path = os.pathsep.join(place for place in sys.path if place)
            environment = os.environ | {"PYTHONPATH": path, "PYTHONOPTIMIZE": optimize}
            command = [sys.executable, str(Path(__file__)), str(far.fileno())]
            self.process = REAL(command, pass_fds=[far.fileno()], env=environment, stdin=subprocess.DEVNULL)
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(self, wanted: dict[str, Any], streams: Sequence[int]) -> int:
        """Start a process with these standard streams; return its PID."""
        data = json.dumps(wanted).encode()
        with self._lock:
            socket.send_fds(self._near, [len(data).to_bytes(8, "big")], list(streams))
            self._near.sendall(data)
            return int.from_bytes(_exactly(self._near, 8), "big")

    def close(self) -> None:
        """End it; what it started goes on."""
        self._near.close()
        self.process.wait()


class FastPopen(REAL):  # type: ignore[type-arg]
    """Popen, which forks where that makes no difference but for the time."""

    zygotes: ClassVar[dict[str, Zygote]] = {}
    """By the value of PYTHONOPTIMIZE."""

    def _execute_child(self, args: Any, *more: Any) -> None:
        names = ("executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags",
                 "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite", "restore_signals",
                 "gid", "gids", "uid", "umask", "start_new_session")  # fmt: skip
        given = dict(zip(names, more, strict=False))
        if not _forkable(args, given):
            super()._execute_child(args, *more)  # type: ignore[misc]
            return
        environment = dict(os.environ if given["env"] is None else given["env"])
        optimize = environment.get("PYTHONOPTIMIZE", "")
        if optimize not in FastPopen.zygotes:
            FastPopen.zygotes[optimize] = Zygote(optimize)
        near = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        streams = [own if own != -1 else number for number, own in enumerate(near)]
        cwd = os.fspath(given["cwd"] or Path.cwd())
        wanted = {"command": [str(word) for word in args], "environment": environment, "cwd": cwd}
        self.pid = FastPopen.zygotes[optimize].fork(wanted | {"session": given["start_new_session"]}, streams)
        self._child_created = True
        if isinstance(devnull := getattr(self, "_devnull", None), int):
            os.close(devnull)
        for own, other in (("p2cread", "p2cwrite"), ("c2pwrite", "c2pread"), ("errwrite", "errread")):
            if given[own] != -1 and given[other] != -1:
                os.close(given[own])


def _forkable(args: Any, given: dict[str, Any]) -> bool:
    plain = sys.platform == "linux" and not given["pass_fds"] and not given["shell"] and given["preexec_fn"] is None
    if not plain or isinstance(args, str | bytes | os.PathLike) or len(args) < 3 or str(args[0]) != sys.executable:
        return False
    args = _without_flags(args)
    if str(args[1]) == "-m":
        return str(args[2]).split(".")[0] == "tdcd"
    return Path(str(args[1])).parent.is_relative_to(TESTS)


def _without_flags(command: Sequence[Any]) -> list[Any]:
    """Leave out what says where Python finds modules: a copy finds them where its original did."""
    return [word for place, word in enumerate(command) if place != 1 or word != "-P"]


def _exactly(near: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = near.recv(count - len(data))
        if not part:
            raise EOFError("the other end is gone")
        data += part
    return data


def _serve(far: socket.socket) -> None:
    """Fork until there is nobody to ask for it."""
    while True:
        head, streams, _, _ = socket.recv_fds(far, 8, 3)
        if not head:
            return
        wanted = json.loads(_exactly(far, int.from_bytes(head, "big")))
        read, write = os.pipe()
        between = os.fork()
        if not between:  # it dies at once, so that its child falls to the process that asks
            pid = os.fork()
            if pid:
                os.write(write, pid.to_bytes(8, "big"))
                os._exit(0)
            for number in (far.fileno(), read, write):
                os.close(number)
            _become(wanted, streams)
        os.waitpid(between, 0)
        far.sendall(os.read(read, 8))
        for number in (read, write, *streams):
            os.close(number)


def _become(wanted: dict[str, Any], streams: Sequence[int]) -> None:
    """Run a command as a new interpreter would."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            if stream > 2:
                os.close(stream)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if wanted["session"]:
            os.setsid()
        os.chdir(wanted["cwd"])
        os.environ.clear()
        os.environ.update(wanted["environment"])
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(
                io.open(number, "rb" if number == 0 else "wb", closefd=False),  # noqa: SIM115, UP020
                encoding="utf-8",
                line_buffering=number == 2 or os.isatty(number),
            )
            for number in range(3)
        )
        places = [place for place in wanted["environment"].get("PYTHONPATH", "").split(os.pathsep) if place]
        sys.path[:0] = [place for place in places if place not in sys.path]
        code = _run(wanted["command"])
    finally:
        os._exit(code)


def _run(command: list[str]) -> int:
    code: Any = 0
    command = _without_flags(command)
    try:
        if command[1] == "-m":
            sys.argv = command[2:]
            name = f"{command[2]}.__main__" if command[2] == "tdcd" else command[2]
            sys.modules.pop(name, None)
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv = command[1:]
            sys.path.insert(0, str(Path(command[1]).parent))
            runpy.run_path(command[1], run_name="__main__")
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 130 if isinstance(sys.exc_info()[1], KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    for module in PRELOADED:
        __import__(module)
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        _serve(asked)
