"""A sweep on a cluster of Ray, started on this machine: the same files as by processes here, whatever is lost."""

import _thread
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments.test_sweep import Notes, contents, parsed
from tdcd.cluster.fleet import Node
from tdcd.errors import ClusterError, JobError
from tdcd.experiments.sweep_run import FailedRunsError, run_sweep

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tdcd[ray]'")

from tdcd.experiments import host, nodes  # noqa: E402 - they need Ray

NETWORKS = """
import os
import signal
import time
from functools import cache
from itertools import count
from pathlib import Path

from torch import nn

ACTOR = os.getppid()
CALLS = count()


@cache
def lost():
    # How many processes were lost before this one computed. When it imported this says nothing: it may have computed
    # another run since, as the first of these did.
    return len(list(Path(__file__).parent.glob("lost-*")))


class Fragile(nn.Module):
    # A linear layer whose actor is killed in the first process that computes it, which then goes no further; the
    # second process is killed itself, however little is left to train.

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, rows):
        number = lost()
        if number < 2 and next(CALLS) > (500, 0)[number]:
            Path(__file__).with_name(f"lost-{number}").touch()
            os.kill(os.getpid() if number else ACTOR, signal.SIGKILL)
            while True:  # until it is interrupted, as its input has ended, which does not end a sleep
                time.sleep(0.1)
        return self.linear(rows.flatten(1))


def fragile(shape, outputs):
    return Fragile(shape[0] * shape[1] * shape[2], outputs)


def broken(shape, outputs):
    raise ValueError("it cannot be built")
"""
CASES = [{"name": name, "model": {"kind": f"networks_of_mine:{name}"}} for name in ("fragile", "broken")]
SWEEP: dict[str, Any] = {
    "iterations": 600, "evaluate_every": 60, "seeds": [1], "baselines": [], "grid": {}, "select": None,
    "settings": {"compute": "loop", "training": {"local_steps": 3, "checkpoint_every": 7}},
    "cases": [{"name": "linear", "model": {"kind": "linear"}}, *CASES],
}  # fmt: skip
FAILED = r"^runs/broken,seed=1: (node \S+: )?silo 'left': model .* it cannot be built$"


class Following(Notes):
    """Writes down what a cluster does, and interrupts the sweep once a run is so far."""

    def __init__(self, interrupt_at: float = float("inf")) -> None:
        super().__init__()
        self.interrupt_at = interrupt_at
        self.texts: list[str] = []
        self.losses: list[str] = []

    def noted(self, text: str) -> None:
        self.texts.append(text)

    def lost(self, name: str, why: str) -> None:
        self.losses.append(f"{name}: {why}")

    def advanced(self, name: str, iteration: int, loss: float | None) -> None:
        if iteration >= self.interrupt_at:
            self.interrupt_at = float("inf")
            _thread.interrupt_main()


@pytest.fixture(autouse=True, scope="module")
def _cluster() -> Iterator[None]:
    yield
    ray.shutdown()


def statuses(path: Path) -> Mapping[str, str]:
    return {run.parent.name: json.loads(run.read_text())["status"] for run in path.glob("runs/*/result.json")}


def test_stopped_and_bereft_it_ends_with_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, flags = tmp_path / "modules", [tmp_path / "modules" / f"lost-{number}" for number in (0, 1)]
    folder.mkdir()
    (folder / "networks_of_mine.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(nodes, "PATIENCE", float("inf"))  # on a busy machine a process takes long to start
    sweep = parsed(**SWEEP)
    for flag in flags:
        flag.touch()
    with pytest.raises(FailedRunsError, match=FAILED):
        run_sweep(sweep, tmp_path / "here", jobs=2)
    for flag in flags:
        flag.unlink()

    first = Following(interrupt_at=30)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(parsed(**SWEEP | {"cases": SWEEP["cases"][:1]}), tmp_path / "nodes", engine="ray", observer=first)
    assert statuses(tmp_path / "nodes") == {"linear,seed=1": "interrupted"}
    again = Following()
    with pytest.raises(FailedRunsError, match=FAILED.replace(")?", ")")):
        run_sweep(sweep, tmp_path / "nodes", jobs=2, engine="ray", observer=again)
    (cluster,) = again.texts
    assert "1 node with " in cluster
    assert "up to 2 runs at once on " in cluster
    lost = [line.split(": ", 2)[0::2] for line in again.losses]
    assert lost == [["runs/fragile,seed=1", "its process was lost"],
                    ["runs/fragile,seed=1", "its process was killed by signal 9"]]  # fmt: skip
    assert sorted(again.ran) == ["runs/fragile,seed=1", "runs/linear,seed=1"]
    assert contents(tmp_path / "nodes") == contents(tmp_path / "here")
    assert capsys.readouterr().out == "", "what Ray says of lost workers is for its logs"


def test_nodes_must_share_the_directory_and_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SETTLING", 0.1)
    with nodes.mark(tmp_path) as marker:
        host.check_shared(marker)
        with pytest.raises(ClusterError, match=r"node \S+ does not see the sweep's directory .*; choose another"):
            host.check_shared(host.Marker(marker.path, "of another machine"))
        spec = host.HostSpec("0.0.1 with torch 2.0", 1, [], [], tmp_path, marker)
        with pytest.raises(ClusterError, match=r"node \S+ has tdcd .*, this machine 0.0.1 with torch 2.0; install"):
            host.ProcessHost().open(spec)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ClusterError, match="does not see"):
        host.check_shared(marker)


def test_a_node_that_does_not_fit_stops_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "VERSION", "0.0.1 with torch 2.0")
    with pytest.raises(ClusterError, match="this machine 0.0.1 with torch 2.0"):
        run_sweep(parsed(**SWEEP), tmp_path / "sweep", jobs=1, engine="ray")
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [".lock", "sweep.json"]


@pytest.mark.parametrize(
    ("cores", "runs", "each"),
    [([2], 2, 1), ([2], 1, 2), ([1, 1], 1, 1), ([8, 4], 3, 4), ([8, 4], 4, 2), ([8, 4], 6, 2), ([8, 4], 50, 1)],
)
def test_runs_share_the_cores_of_nodes(cores: list[int], runs: int, each: int) -> None:
    assert nodes.cores_each([Node("pc", own) for own in cores], runs) == each


def test_who_waits_for_room_learns_of_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "PATIENCE", 0.0)
    notes: list[str] = []
    room = nodes.Room(notes.append)
    room.take(1)
    room.lack()
    assert notes == []
    room.leave(1)
    room.lack()
    room.lack()
    assert len(notes) == 1
    assert "no process has started on the cluster for 0 s: if it has no free cores, ray status shows who" in notes[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"engine": "spark"}, "engine: 'spark' is not known for a sweep; there is local, ray"),
        ({"address": "auto"}, 'address: a cluster is joined by engine = "ray" only, not by "local"'),
        ({"engine": "ray", "overrides": {"engine": "ray"}}, 'each run is computed at one node; leave engine = "ray"'),
    ],
)
def test_mistakes_are_named_before_anything_is_made(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        run_sweep(parsed(**SWEEP), tmp_path / "sweep", **more)
    assert not (tmp_path / "sweep").exists()


def test_no_cluster_at_an_address(tmp_path: Path) -> None:
    ray.shutdown()
    with pytest.raises(ClusterError, match="no Ray cluster at 127.0.0.1:9"):
        run_sweep(parsed(**SWEEP), tmp_path / "sweep", engine="ray", address="127.0.0.1:9")
    assert not (tmp_path / "sweep").exists()
