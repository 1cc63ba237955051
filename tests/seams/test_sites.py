"""What users can replace does at sites what it does in a simulation, to the bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from seams.sites import at_sites, check_equal, simulated, tensors, wanted
from sites.test_departures import reached, until
from support import RULES, run_command, same
from tdcd.core.aggregators import Aggregator
from tdcd.core.optimizers import SGD, Adam, Optimizer
from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.runs.store import load_blocks
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.security.identity import Identity
from tdcd.training.settings import AGGREGATOR, OPTIMIZER


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_aggregators(rule: Aggregator, tmp_path: Path) -> None:
    job = wanted(aggregator=AGGREGATOR.write(rule))
    check_equal(at_sites(job, tmp_path), simulated(job))


@pytest.mark.parametrize("what", ["all", "weights", "embeddings"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "seams.test_codecs:Bytes"])
@pytest.mark.parametrize("sharing", [None, "exact", "stale"])
def test_codecs(kind: str, what: str, sharing: str | None, tmp_path: Path) -> None:
    labels = {"silo": "silo-1", "sharing": sharing} if sharing else None
    job = wanted(labels, codec=kind, codec_for=what)
    there = at_sites(job, tmp_path)
    check_equal(there, simulated(job), 1e-9 if sharing and what == "weights" else 0.0)
    exact = simulated(wanted(labels))
    assert any(
        not torch.equal(tensors(there[silo])[name], t) for silo in exact for name, t in tensors(exact[silo]).items()
    )


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize("rule", [SGD(0.5), Adam()], ids=repr)
@pytest.mark.parametrize("sharing", [None, "exact", "stale"])
def test_optimizers(rule: Optimizer, carry: bool, sharing: str | None, tmp_path: Path) -> None:
    labels = {"silo": "silo-1", "sharing": sharing} if sharing else None
    job = wanted(labels, optimizer=OPTIMIZER.write(rule), carry_optimizer=carry, proximal=0.1)
    there = at_sites(job, tmp_path)
    check_equal(there, simulated(job), 1e-9 if sharing else 0.0)
    for state in there.values():
        assert carry == any("optimizer/" in name for name in tensors(state))


OWN = {"silo-1": {"local_steps": 1, "rate": 0.05}, "silo-2": {"local_steps": 4}}


@pytest.mark.parametrize("labels", [None, ("silo-1", "exact"), ("silo-2", "exact"), ("silo-1", "stale")])
@pytest.mark.parametrize("own", [{}, OWN], ids=["together", "each by itself"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_who_takes_part_and_how_often(
    participation: float, own: dict[str, Any], labels: tuple[str, str] | None, tmp_path: Path
) -> None:
    table = {"silo": labels[0], "sharing": labels[1]} if labels else None
    job = wanted(table, own, participation=participation, local_steps=2)
    check_equal(at_sites(job, tmp_path), simulated(job), 1e-9 if labels else 0.0)


@pytest.mark.parametrize("more", [{}, {"codec": "float16"}, {"participation": 0.5}], ids=repr)
def test_missing_silos(more: dict[str, Any], tmp_path: Path) -> None:
    job = wanted(silos=3, silo_dropout=0.4, **more)
    check_equal(at_sites(job, tmp_path), simulated(job))


TOGETHER: dict[str, Any] = {
    "aggregator": {"kind": "momentum", "momentum": 0.5, "size": "1/N"},
    "optimizer": {"kind": "adam"},
    "carry_optimizer": True,
    "codec": "bfloat16",
    "proximal": 0.1,
    "rate": 0.01,
    "silo_dropout": 0.3,
}
"""All that remembers or rounds, at once."""


@pytest.mark.parametrize("codec", ["float16", "bfloat16"])
def test_a_simulation_goes_on_to_the_bit(codec: str, tmp_path: Path) -> None:
    job = wanted(**TOGETHER | {"codec": codec, "rounds": 12, "checkpoint_every": 4})
    run_job(job.model_copy(update={"training": job.training.model_copy(update={"rounds": 4})}), tmp_path / "run")
    gone_on, whole = run_job(job, tmp_path / "run", resume=True).federation, run_job(job).federation
    assert gone_on.selected == 12
    assert same(gone_on.blocks, whole.blocks)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_hubs_that_were_killed_go_on_to_the_bits_of_the_simulation(participation: float, tmp_path: Path) -> None:
    settings = {f"training.{key}": value for key, value in TOGETHER.items()} | {
        "data.clients": 2, "data.features": {"kind": "contiguous", "silos": 2}, "model": {"kind": "mlp", "hidden": [6]},
        "baselines": [], "compute": "loop", "training.rounds": 60, "training.batch_size": 64,
        "training.evaluate_every": 10, "training.checkpoint_every": 5, "deployment.hub_deadline": 120,
        "training.participation": participation,
    }  # fmt: skip
    job = load_job("breast-cancer", settings)
    federation = LocalFederation.laid_out(job, tmp_path)
    federation.start(quiet=True)
    try:
        until(lambda: all(reached(run, 20) for run in federation.runs.values()), "all hubs have trained for a while")
        for silo in federation.runs:
            who = Identity(silo)
            federation.processes[who].kill()
            federation.processes[who].wait()
            federation.processes[who] = federation.sites[who].start(quiet=True)
        assert federation.wait(lambda line: None, seconds=120) == 0
    finally:
        federation.kill()
    simulated = run_job(job).federation.blocks
    for silo, run in federation.runs.items():
        log = federation.sites[Identity(silo)].log.read_text()
        assert "goes on after round" in log
        assert "left out" not in log
        assert same({silo: load_blocks(run)[silo]}, {silo: simulated[silo]})
        assert run_command("report", run) == 0
        assert (run / "report" / "traffic.csv").exists()
