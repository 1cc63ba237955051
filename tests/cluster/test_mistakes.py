"""What a user of a Ray cluster sees: when something is wrong, while it trains, and when it is stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support import run_command
from tdcd.cluster.survey import NodeFacts, check_versions, describe_shortage, look, memory_kills
from tdcd.core.usage import ClusterUsage, NodeUsage
from tdcd.errors import ClusterError

pytest.importorskip("ray", reason="Ray is not installed")

JOB = """
name = "small"
[data]
source = "digits"
clients = 2
[model]
kind = "linear"
[training]
loss = "cross-entropy"
rounds = 4
batch_size = 64
rate = 0.1
evaluate_every = 2
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """Start a cluster of this machine; return where its logs are."""
    from tdcd.cluster.ray_fleet import connect

    session = connect(None).session
    yield session.logs
    session.end()
    assert not session.logs.parent.exists()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that fails by a user's mistake; return what it says."""
    assert run_command(*words) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_without_ray(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("tdcd.cluster.ray_fleet", "tdcd.cluster.ray_session"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'tdcd[ray]'" in refused(capsys, "train", job, "--engine", "ray")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1", "address 127.0.0.1: HOST:PORT is wanted, as in 127.0.0.1:6379"),
        ("6379", "address 6379: HOST:PORT is wanted, as in HOST:6379"),
        ("ray://127.0.0.1:10001", "Ray Client is not used"),
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: Connection refused; start one with: ray start --head"),
    ],
)
def test_addresses_of_no_cluster(job: Path, address: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(capsys, "train", job, "--engine", "ray", "--address", address)


@pytest.mark.parametrize(
    ("error", "address", "says"),
    [
        ("Could not find any running Ray instance.", "auto", "no Ray cluster on this machine; start one with"),
        (
            (
                "Version mismatch: The cluster was started with:\n    Ray: 2.50.0\n    Python: 3.12.1\n"
                "This process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
            ),
            "10.0.0.1:6379",
            "has Ray 2.50.0 and Python 3.12.1, this machine Ray 2.60.0 and Python 3.11.7; install the same",
        ),
        ("Failed to connect\nUnauthenticated: RPC error: InvalidAuthToken", "10.0.0.1:6379", "RAY_AUTH_MODE=token"),
        ("This node has no raylet\nmore", "10.0.0.1:6379", "This node has no raylet; run tdcd on one of its nodes"),
        ("no room", None, "Ray cannot be started on this machine: no room"),
    ],
)
def test_what_ray_says_is_put_in_a_sentence(error: str, address: str | None, says: str) -> None:
    from tdcd.cluster.ray_session import _explain

    assert says in _explain(error, address)


def test_an_address_without_ray_is_refused_before_data_is_read(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 'address: a cluster is joined by engine = "ray" only' in refused(capsys, "train", job, "--address", "auto")


def test_nodes_with_other_versions_are_named() -> None:
    own = look()
    check_versions([own])
    other = NodeFacts("green", ("0.0.1", "(none)"), 0)
    with pytest.raises(ClusterError, match=r"node green has tdcd 0\.0\.1, torch \(none\); this machine has tdcd "):
        check_versions([own, other])


def test_little_shared_memory_is_told() -> None:
    node = NodeFacts("green", (), 64_000_000)
    assert " has 64 MB, so Ray shares arrays through files" in describe_shortage(node, 2_000_000_000)
    assert "--shm-size=2.0g" in describe_shortage(node, 2_000_000_000)
    assert describe_shortage(node, 64_000_000) == ""


def test_an_actor_that_was_ended_for_want_of_memory_is_found_in_the_log() -> None:
    kill = (
        "Killing 1 worker(s), kill details: Memory on the node (IP: 10.0.0.1, ID: 32) was 15.37GB used / 16.00GB limit "
        "(0.96)\nRay killed 1 worker(s)\nSelected to kill: (Actor(abc): job ID=01, pid=15106, actual memory "
        "used=9.35GB, worker ID=84)\n"
    )
    assert memory_kills(kill * 3, "abc") == (3, "it took 9.35 GB, and all programs of its node 15.37 of 16.00 GB")
    assert memory_kills(kill, "abd") == (0, "")


def test_where_the_time_goes_in_words() -> None:
    nodes = (NodeUsage("10.0.0.1", 4, 2, 1, 8.0), NodeUsage("10.0.0.2", 4, 1, 1, 2.0))
    usage = ClusterUsage(nodes, rounds=5, seconds=10.0, computing=4.0, waiting=1.0, repeated=1)
    assert usage.size == "2 nodes, 8 cores, 5 actors"
    assert str(usage) == "compute 40%, transfer 50%, waiting 10%; nodes busy 20% to 40%; 1 round repeated"


def test_no_node_has_a_card(cluster: Path, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import ray

    resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
    if resources.get("GPU"):
        pytest.skip("this machine has a graphics card")
    words = ("train", job, "--engine", "ray", "--device", "cuda", "--out", tmp_path / "run")
    assert 'no node of the Ray cluster has a graphics card for "cuda"' in refused(capsys, *words)


def test_no_node_has_a_core(cluster: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from tdcd.cluster.ray_fleet import RayFleet

    every = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node | {"Resources": {"memory": 1e9}} for node in every]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with pytest.raises(ClusterError, match="no node with a core; give it some: ray start --num-cpus"):
        RayFleet()


def test_a_head_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tdcd.cluster import ray_session

    monkeypatch.setattr(ray_session, "GLANCE", 0.0)
    monkeypatch.setattr("ray.shutdown", lambda: None)  # other tests are in a cluster
    session = ray_session.Session("auto", "127.0.0.1:1", tmp_path)
    session.check_head()  # it may come back
    monkeypatch.setattr(ray_session, "HEAD_PATIENCE", -1.0)
    with pytest.raises(ClusterError, match=rf"127\.0\.0\.1:1 is gone; .*; Ray's logs are in {tmp_path}") as caught:
        session.check_head()
    assert caught.value.exit_code == 75


def test_what_is_printed_and_kept(cluster: Path, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert run_command("train", job, "--engine", "ray", "--out", run) == 0
    said = capsys.readouterr()
    assert "starting a Ray cluster on this machine …" in said.out
    assert re.search(r"a Ray cluster, started on this machine: 1 node, \d+ cores?; 4 actors", said.out)
    assert re.search(r"round 4/4 .* left  compute \d+%, transfer \d+%, waiting \d+%\n", said.out)
    assert re.search(r"  1 node, \d+ cores?, 4 actors: compute ", said.out)
    assert said.err == ""
    kept = json.loads((run / "result.json").read_text())["cluster"]
    assert kept["rounds"] == 4
    assert [(node["bundles"], node["hubs"]) for node in kept["nodes"]] == [(2, 2)]
    assert "Where it was computed" in (run / "report.html").read_text()


def test_the_cluster_as_json(cluster: Path, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("train", job, "--engine", "ray", "--out", tmp_path / "run", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["round"] for event in events if event["event"] == "cluster"] == [2, 4]
    assert {"nodes", "rounds", "seconds", "computing", "waiting", "repeated"} < events[-2].keys()


def test_stopping_leaves_a_run_to_go_on_with_and_nothing_of_ray(job: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", str(job), "--engine", "ray", "--rounds", "100000", "--out", str(run)]
    with (
        TemporaryDirectory() as folder,  # Ray's sockets need a short path
        subprocess.Popen(
            [sys.executable, "-m", "tdcd", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"RAY_TMPDIR": folder},
        ) as process,
    ):
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            if "round      2/100000" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest, errors = process.stdout.read(), process.stderr.read()
        assert process.wait() == 130
        assert not list(Path(folder).glob("**/session_*"))
    assert f"go on with:\n  tdcd train --resume {run}" in rest
    assert errors == ""
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"
