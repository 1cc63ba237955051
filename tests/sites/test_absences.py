"""Clients that are away, in every label mode: the rounds are those of a simulation on just the mini-batch that is left.

What is left is worked out here, from who was lost and when; it is not taken from what the hubs say.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sites.memory import Federation, run_virtually
from sites.test_labels import keeping, registry
from sites.test_rounds import ROUNDS, Watched, job, same, set_up, simulated, training_of
from support import examples, one_round
from tdcd.core.network import Blocks
from tdcd.core.state import SiloState
from tdcd.core.task import Round
from tdcd.engines import LocalEngine
from tdcd.errors import DeploymentError, JobError
from tdcd.jobs.data import load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import Job
from tdcd.sites.hub.context import HubContext
from tdcd.sites.messages.frames import Message
from tdcd.sites.security.identity import Identity
from tdcd.training.setup import starting_blocks

pytestmark = pytest.mark.slow
MODES = ("shared", "exact", "stale", "registry shared", "registry exact", "registry stale")


def mode(name: str, **training: Any) -> Job:
    """Return a job in which labels are everywhere, kept by a silo with features, or by one without."""
    if name.startswith("registry "):
        return registry(name.removeprefix("registry "), **training)
    return job(2, 3, **training) if name == "shared" else keeping(job(2, 3, **training), name)


def with_deadlines(wanted: Job, client: float, hub: float = 60.0) -> Job:
    update = {"client_deadline": client, "hub_deadline": hub}
    return wanted.model_copy(update={"deployment": wanted.deployment.model_copy(update=update)})


def left(wanted: Job, lost: dict[Identity, int]) -> dict[int, torch.Tensor]:
    """Return what must be left of every mini-batch, given the rounds that clients were lost in, for good.

    Clients of a silo with labels only, which were handed over, take no part in a round.
    """
    rosters, training = load_data(wanted).federation.rosters, training_of(wanted)
    result = {}
    for number in range(1, ROUNDS + 1):
        batch = training.batch(number).numpy()
        for who, since in lost.items():
            roster, needed = rosters[who.silo], who.silo != "registry" or wanted.labels.private
            if number >= since and needed:
                batch = batch[roster.owner.numpy()[batch] != roster.clients.index(who.client or "")]
        result[number] = torch.from_numpy(batch)
    return result


def check(federation: Federation, lost: dict[Identity, int], watched: Watched, found: Blocks) -> None:
    expected = left(federation.job, lost)
    assert {number: batch.tolist() for number, batch in watched.agreed().items()} == {
        number: batch.tolist() for number, batch in expected.items()
    }
    assert all(len(batch) for batch in expected.values())
    same(found, simulated(federation.job, expected))


def trained(federation: Federation, away: list[Identity]) -> Blocks:
    async def run() -> Blocks:
        await federation.start()
        try:
            for who in away:
                await federation.lose(who)
            return await federation.rounds(ROUNDS)
        finally:
            await federation.stop()

    return run_virtually(run())


@pytest.mark.parametrize("silo", ["silo-1", "silo-2", "registry"])
@pytest.mark.parametrize("name", MODES)
def test_one_client_is_away_from_the_beginning(
    name: str, silo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = with_deadlines(mode(name, local_steps=3), 60)
    federation = Federation(wanted, tmp_path)
    if silo not in federation.names():
        pytest.skip("no such silo in this mode")
    watched, who = Watched(monkeypatch), Identity(silo, f"{silo}-1")
    result = trained(federation, [who])
    check(federation, {who: 1}, watched, result)
    assert not any("is left out" in line for line in federation.log), "others must not be lost with it"


@settings(max_examples=examples(12), deadline=None)
@given(st.data())
def test_whoever_dies_whenever_the_rest_is_trained_on(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MODES))
    steps, averaging = data.draw(st.integers(1, 3)), data.draw(st.sampled_from(["uniform", "samples"]))
    wanted = with_deadlines(mode(name, local_steps=steps, averaging=averaging), 60)
    federation = Federation(wanted, Path("unused"))
    everyone = [Identity(silo, client) for silo, clients in federation.names().items() for client in clients[1:]]
    away = data.draw(st.lists(st.sampled_from(everyone), max_size=2, unique=True))
    stages = st.tuples(
        st.sampled_from(["embed", "first gradients", "later gradients", "step", "descend"]), st.integers(1, ROUNDS)
    )
    deaths = data.draw(st.dictionaries(st.sampled_from(everyone), stages, max_size=3))
    lost = dict.fromkeys(away, 1)

    def fault(who: Identity, message: Message) -> str:
        if deaths.get(who) != (message.kind, message.stamp.round):
            return ""
        lost.setdefault(who, message.stamp.round)
        return "die"

    federation.fault = fault
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched = Watched(monkeypatch)
        result = trained(federation, away)
        check(federation, lost, watched, result)


@pytest.mark.parametrize("stage", ["embed", "descend"])
@pytest.mark.parametrize("sharing", ["shared", "exact", "stale"])
def test_a_client_dies_where_clients_take_turns(
    sharing: str, stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of five clients in each silo four take part in a round; one of them is lost, for good."""
    wanted = job(2, 5, {"silo-2": {"local_steps": 1}}, participation=0.8, batch_size=60)
    wanted = with_deadlines(wanted if sharing == "shared" else keeping(wanted, sharing), 60)
    lost: dict[Identity, int] = {}

    def fault(who: Identity, message: Message) -> str:
        if lost or (message.kind, who.silo) != (stage, "silo-1") or message.stamp.round < 2:
            return ""
        lost[who] = message.stamp.round
        return "die"

    federation = Federation(wanted, tmp_path)
    federation.fault = fault
    watched = Watched(monkeypatch)
    result = trained(federation, [])
    assert lost
    check(federation, lost, watched, result)


def test_others_are_drawn_where_only_a_lost_client_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One client of three takes part in each silo, and one is dead: rounds that it alone would fill draw others."""
    wanted = with_deadlines(job(2, 3, participation=0.34, batch_size=60), 60, 90)
    federation, dead = Federation(wanted, tmp_path), Identity("silo-1", "silo-1-2")
    watched, training = Watched(monkeypatch), training_of(wanted)
    result = trained(federation, [dead])
    batches, owner = watched.agreed(), load_data(wanted).federation.rosters["silo-1"]
    held = {n: sorted(set(owner.owner[training.batch(n)].tolist())) for n in range(1, ROUNDS + 1)}
    assert any(clients == [owner.clients.index("silo-1-2")] for clients in held.values())
    assert len(batches) == ROUNDS
    blocks = starting_blocks(set_up(wanted).networks, None)
    for number, batch in batches.items():
        assert owner.clients.index("silo-1-2") not in owner.owner[batch].tolist()
        round_ = replace(training.round(number), batch=batch)
        blocks = one_round(LocalEngine(training, "loop"), blocks, round_)
    same(result, blocks)


@pytest.mark.parametrize("name", ["others", "without", "all", "phi", "answers", "lost", "labels", "w", "of"])
def test_a_silo_may_have_any_name(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also that of a field of the messages."""
    table = registry("exact", local_steps=3).model_dump()
    table["data"]["features"] = {
        "kind": "columns",
        "silos": {name: ["mean radius", "mean texture"], "b": ["mean area"]},
    }
    wanted = with_deadlines(parse_job(table, "job"), 60)
    watched, federation = Watched(monkeypatch), Federation(wanted, tmp_path)
    who = Identity("b", "b-1")
    result = trained(federation, [who])
    check(federation, {who: 1}, watched, result)


def test_a_round_waits_for_somebody_to_train_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All clients of a silo are away; when one is back, the round is that of its rows."""
    wanted = with_deadlines(mode("registry exact", local_steps=2), 60)
    watched, federation = Watched(monkeypatch), Federation(wanted, tmp_path)
    everyone = [Identity("silo-2", client) for client in federation.names()["silo-2"]]
    back, others = everyone[0], everyone[1:]

    async def run() -> Blocks:
        await federation.start()
        monkeypatch.setattr(HubContext, "wait_for_clients", _nothing)
        try:
            for who in everyone:
                await federation.lose(who)
            training = asyncio.ensure_future(federation.rounds(ROUNDS))
            await federation.until(lambda: sum("hold no sample of the mini-batch" in t for t in federation.log) == 3)
            assert not training.done()
            federation.add_client(back)
            return await training
        finally:
            await federation.stop()

    result = run_virtually(run())
    check(federation, dict.fromkeys(others, 1), watched, result)


async def _nothing(context: HubContext, holders: int) -> None:
    return None


def test_a_round_on_nothing_stops_in_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = with_deadlines(mode("exact", local_steps=2), 60, hub=1.0)
    federation = Federation(wanted, tmp_path)

    async def run() -> list[Any]:
        await federation.start()
        blocks = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}
        monkeypatch.setattr(HubContext, "wait_for_clients", _nothing)
        for client in federation.names()["silo-2"]:
            await federation.lose(Identity("silo-2", client))
        hubs = federation.hubs.items()
        try:
            rounds = (hub.run_round(SiloState(blocks[silo]), 1) for silo, hub in hubs)
            return await asyncio.gather(*rounds, return_exceptions=True)
        finally:
            await federation.stop()

    for result in run_virtually(run()):
        assert isinstance(result, DeploymentError)
        assert "hold no sample of the mini-batch of round 1 in common" in str(result)
    assert all(hub.context.progress.round == 0 for hub in federation.hubs.values())


def test_no_engine_takes_a_round_on_nothing() -> None:
    with pytest.raises(ValueError, match="round 3: there is nothing in its mini-batch"):
        Round(3, torch.from_numpy(np.empty(0, dtype=np.int64)), 0.1)


def test_a_silo_without_features_takes_no_steps(tmp_path: Path) -> None:
    wanted = registry("exact")
    table = wanted.as_table()
    table["silos"]["registry"] |= {"local_steps": 2}
    federation = Federation(parse_job(table, "job"), tmp_path)
    with pytest.raises(JobError, match="silo 'registry' has no features, so it takes no local steps"):
        trained(federation, [])
