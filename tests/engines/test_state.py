"""What a silo carries from round to round: any named tensor reaches the next round, a checkpoint and the end."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from sites.memory import Federation as Sites
from sites.memory import run_virtually
from sites.test_rounds import job, patient, set_up
from support import same
from tdcd.core.network import Block, Network
from tdcd.core.state import HubUpdate, SiloState
from tdcd.training.settings import Settings

RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 6))
Y = (X.sum(1) > 0).astype(int)
SILOS = [
    tdcd.Silo("a", X[:, :3], [range(25), range(25, 40)]),
    tdcd.Silo("b", X[:, 3:], [range(0, 40, 2), range(1, 40, 2)]),
]
SETTINGS = {"loss": "binary-cross-entropy", "rounds": 9, "local_steps": 2, "batch_size": 11, "rate": 0.2,
            "evaluate_every": 3, "checkpoint_every": 2}  # fmt: skip


def slow(state: SiloState, averaged: Block, number: int) -> SiloState:
    """Follow a running mean of the clients' averages, kept in the state, and count rounds there."""
    weights, memory = {}, {"rounds": state.memory.get("rounds", torch.zeros(1, dtype=torch.int64)) + 1}
    for name, tensor in averaged.items():
        before = state.memory.get(f"mean/{name}", state.weights[name])
        weights[name] = memory[f"mean/{name}"] = 0.7 * before + 0.3 * tensor
    assert int(memory["rounds"]) == number, "the state of another round"
    return SiloState(weights, memory)


def slow_updates(_: Settings, networks: Mapping[str, Network]) -> dict[str, HubUpdate]:
    return dict.fromkeys(networks, slow)


class Stop(tdcd.Observer):
    def __init__(self, at: int) -> None:
        self.at = at

    def advanced(self, done: int) -> None:
        if done == self.at:
            raise KeyboardInterrupt


def train(**more: Any) -> tdcd.Result:
    federation = tdcd.Federation.from_silos(SILOS, Y)
    return tdcd.train(federation, tdcd.models.MLP(hidden=[4]), Settings.model_validate(SETTINGS), **more)


def test_a_named_tensor_goes_from_round_to_round(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plain = train()
    monkeypatch.setattr("tdcd.training.setup.hub_updates", slow_updates)
    whole = train()
    assert not same(whole.blocks, plain.blocks)
    oracle = train(engine="oracle")
    for silo, block in whole.blocks.items():
        for name, tensor in block.items():
            assert torch.allclose(tensor, oracle.blocks[silo][name], atol=1e-6)
    for at in (1, 2, 3, 5, 8):
        path = tmp_path / str(at)
        with pytest.raises(KeyboardInterrupt):
            train(directory=path, observer=Stop(at))
        assert same(train(directory=path, resume=True).blocks, whole.blocks), f"stopped after round {at}"


def test_a_named_tensor_is_carried_at_sites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tdcd.training.setup.hub_updates", slow_updates)
    monkeypatch.setattr("tdcd.sites.hub.setup.hub_updates", slow_updates)
    wanted = patient(job(2, 2))
    federation = Sites(wanted, tmp_path)

    async def run() -> dict[str, SiloState]:
        await federation.start()
        states = {silo: hub.setup.first_state() for silo, hub in federation.hubs.items()}
        for number in range(1, 4):
            result = await asyncio.gather(*(hub.run_round(states[s], number) for s, hub in federation.hubs.items()))
            states = {silo: state for silo, (state, _) in zip(federation.hubs, result, strict=True)}
        await federation.stop()
        return states

    found = run_virtually(run())
    setup = set_up(wanted)
    rosters = {silo: task.roster for silo, task in setup.tasks.items()}
    engine = tdcd.engines.OracleEngine(setup.training(wanted.training, rosters))
    states: Mapping[str, SiloState] = engine.training.initial()
    for number in range(1, 4):
        states, _ = engine.round(states, number)
    for silo, state in states.items():
        assert set(found[silo].memory) == set(state.memory)
        for name, tensor in {**state.weights, **state.memory}.items():
            there = {**found[silo].weights, **found[silo].memory}[name]
            assert torch.allclose(tensor, there, rtol=0, atol=1e-9), (silo, name)
