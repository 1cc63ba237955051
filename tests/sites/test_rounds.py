"""What hubs and clients compute together is what a simulation computes, whoever is lost on the way."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sites.memory import Federation, run_virtually
from support import examples, one_round
from tdcd.core.network import Blocks
from tdcd.core.rows import Rows
from tdcd.core.script import Lost
from tdcd.core.state import SiloState
from tdcd.data.holdout import Part
from tdcd.engines import OracleEngine
from tdcd.engines.base import Measurement, Training
from tdcd.jobs.data import load_data
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import Job
from tdcd.sites.hub.rounds import Rounds, exchange_holders
from tdcd.sites.messages.frames import Message, RefusedError
from tdcd.sites.messages.types import SiloHolders
from tdcd.sites.security.identity import Identity
from tdcd.training.setup import Setup, prepare, starting_blocks

ROUNDS = 4


def job(silos: int = 2, clients: int = 3, own: dict[str, Any] | None = None, **training: Any) -> Job:
    table = {
        "silos": own or {},
        "data": {
            "source": "breast-cancer",
            "features": {"kind": "contiguous", "silos": silos},
            "clients": clients,
            "validation_fraction": 0.1,
        },
        "model": {"kind": "mlp", "hidden": [6]},
        "training": {
            "loss": "binary-cross-entropy",
            "rounds": ROUNDS,
            "local_steps": 3,
            "batch_size": 24,
            "rate": 0.1,
            "precision": "float64",
            **training,
        },
        "deployment": {"client_deadline": 1.0, "hub_deadline": 60},
    }
    return parse_job(table, "job")


def patient(job: Job) -> Job:
    """Let clients take their time, on a machine that is busy with other things."""
    return job.model_copy(update={"deployment": job.deployment.model_copy(update={"client_deadline": 60.0})})


def set_up(job: Job) -> Setup:
    data = load_data(job)
    models = {silo: job.model_of(silo) for silo in data.federation.with_features}
    held = data.held_out
    parts = (held.get(Part.VALIDATION), held.get(Part.TEST))
    return prepare(data.federation, models, job.training, *parts, torch.device("cpu"), job.labels, job.silos)


def training_of(job: Job) -> Training:
    return set_up(job).training(job.training, load_data(job).federation.rosters)


def simulated(job: Job, batches: dict[int, Tensor]) -> Blocks:
    """Run the oracle on the mini-batches that were left."""
    setup, oracle = set_up(job), OracleEngine(training_of(job))
    blocks = starting_blocks(setup.networks, None, setup.label_only)
    for number, batch in sorted(batches.items()):
        blocks = one_round(oracle, blocks, replace(oracle.training.round(number), batch=batch))
    return blocks


class Watched:
    """Notes the mini-batch of every hub's last attempt at every round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: dict[str, dict[int, Tensor]] = {}
        attempt = Rounds.attempt

        def watched(rounds: Rounds, number: int, version: int, lost: Lost, count: int) -> Any:
            batch = rounds.left(number, lost)
            if len(batch):
                self.batches.setdefault(rounds.context.silo, {})[number] = batch
            return attempt(rounds, number, version, lost, count)

        monkeypatch.setattr(Rounds, "attempt", watched)

    def agreed(self) -> dict[int, Tensor]:
        first, *others = self.batches.values()
        for other in others:
            assert {number: batch.tolist() for number, batch in other.items()} == {
                number: batch.tolist() for number, batch in first.items()
            }
        return first


def same(one: Blocks, two: Blocks, tolerance: float = 1e-9) -> None:
    assert set(one) == set(two)
    for silo, block in one.items():
        for name, tensor in block.items():
            assert torch.allclose(tensor, two[silo][name], rtol=0, atol=tolerance), (silo, name)


def deployed(federation: Federation) -> Blocks:
    async def run() -> Blocks:
        await federation.start()
        try:
            return await federation.rounds(ROUNDS)
        finally:
            await federation.stop()

    return run_virtually(run())


@settings(max_examples=examples(8), deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 4), st.sampled_from(["uniform", "samples"]), st.integers(1, 40),
    st.sampled_from([0.0, 0.4]),
)  # fmt: skip
def test_it_is_what_the_oracle_computes(
    silos: int, clients: int, averaging: str, batch: int, silo_dropout: float
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched = Watched(monkeypatch)
        wanted = patient(job(silos, clients, averaging=averaging, batch_size=batch, silo_dropout=silo_dropout))
        result = deployed(Federation(wanted, Path("unused")))
        batches = watched.agreed()
        assert all(len(zeta) == batch for zeta in batches.values())
        same(result, simulated(wanted, batches))


@pytest.mark.parametrize("way", ["die", "hang"])
@pytest.mark.parametrize("stage", ["embed", "descend"])
def test_a_client_lost_in_any_stage(stage: str, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its rows leave the mini-batch in all silos; everything else is as if they had never been in it."""
    watched = Watched(monkeypatch)
    lost = Identity("silo-2", "silo-2-1")

    def fault(who: Identity, message: Message) -> str:
        return way if (who, message.kind, message.stamp.round) == (lost, stage, 2) else ""

    wanted = job()
    federation = Federation(wanted, tmp_path, fault)
    names = federation.names()
    assert lost.client in names["silo-2"], names
    result = deployed(federation)
    batches = watched.agreed()
    roster = load_data(wanted).federation.rosters["silo-2"]
    held = np.flatnonzero(roster.owner.numpy() == roster.clients.index(lost.client or ""))
    assert len(batches[1]) == 24
    assert len(batches[2]) < 24
    assert not np.isin(batches[2], held).any()
    assert not np.isin(batches[3], held).any()
    same(result, simulated(wanted, batches))
    assert any("'silo-2-1' is left out" in line for line in federation.log)


@pytest.mark.parametrize("way", ["", "die", "hang"])
def test_large_weights_are_taken_one_by_one(way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever comes counts as large here; one client is lost while others wait for room."""
    monkeypatch.setattr("tdcd.sites.hub.clients.LARGE", 0)
    watched = Watched(monkeypatch)

    def fault(who: Identity, message: Message) -> str:
        return way if who.client == "silo-1-2" and (message.kind, message.stamp.round) == ("descend", 2) else ""

    wanted = job()
    result = deployed(Federation(wanted, tmp_path, fault))
    batches = watched.agreed()
    assert (len(batches[2]) == 24) == (not way)
    same(result, simulated(wanted, batches))


def test_a_client_that_comes_back_takes_part_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch)
    lost = Identity("silo-1", "silo-1-2")
    gone = False

    def fault(who: Identity, message: Message) -> str:
        nonlocal gone
        if who == lost and message.kind == "descend" and message.stamp.round == 1 and not gone:
            gone = True
            return "die"
        return ""

    wanted = job()
    federation = Federation(wanted, tmp_path, fault)

    async def run() -> Blocks:
        await federation.start()
        hubs = federation.hubs
        blocks: Blocks = {silo: hub.setup.first_block() for silo, hub in hubs.items()}
        for number in range(1, ROUNDS + 1):
            if number == 3:
                federation.add_client(lost)
                await federation.until(lambda: "silo-1-2" in hubs["silo-1"].context.clients.present())
            result = await asyncio.gather(
                *(hub.run_round(SiloState(blocks[silo]), number) for silo, hub in hubs.items())
            )
            blocks = {silo: state.weights for silo, (state, _) in zip(hubs, result, strict=True)}
        await federation.stop()
        return blocks

    result = run_virtually(run())
    batches = watched.agreed()
    assert [len(batches[number]) < 24 for number in (1, 2, 3, 4)] == [True, True, True, False]
    same(result, simulated(wanted, batches))


@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_whatever_is_lost_what_is_left_is_computed(data: st.DataObject) -> None:
    """Random clients die or hang in random stages of random rounds."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched = Watched(monkeypatch)
        wanted = job(
            data.draw(st.integers(1, 3)),
            3,
            averaging=data.draw(st.sampled_from(["uniform", "samples"])),
            silo_dropout=data.draw(st.sampled_from([0.0, 0.4])),
        )
        federation = Federation(wanted, Path("unused"))
        everyone = [Identity(silo, name) for silo, names in federation.names().items() for name in names[1:]]
        moments = st.tuples(st.sampled_from(everyone), st.sampled_from(["embed", "descend"]), st.integers(1, ROUNDS))
        faults = data.draw(st.dictionaries(moments, st.sampled_from(["die", "hang"]), max_size=3))
        federation.fault = lambda who, message: faults.get((who, message.kind, message.stamp.round), "")
        result = deployed(federation)
        same(result, simulated(wanted, watched.agreed()))


def test_metrics_are_those_of_the_whole_model(tmp_path: Path) -> None:
    from tdcd.training.metrics import measure

    wanted = patient(job(3, 2))
    federation = Federation(wanted, tmp_path)

    async def run() -> dict[str, Measurement]:
        await federation.start()
        blocks = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}
        hubs = federation.hubs.items()
        result = await asyncio.gather(
            *(hub.evaluate(SiloState(blocks[silo]), lambda _: "better") for silo, hub in hubs)
        )
        await federation.stop()
        assert {verdict for _, verdict in result} == {"better"}
        return dict(zip(federation.hubs, (measures for measures, _ in result), strict=True))

    result = run_virtually(run())
    setup = set_up(wanted)
    for part, samples in zip(Part, (setup.train, setup.validation, setup.test), strict=True):
        assert samples is not None
        scores = sum(
            network(network.initial(), samples.features[silo], training=False)
            for silo, network in setup.networks.items()
        )
        assert isinstance(scores, Tensor)
        expected = measure(wanted.training.objective, scores.detach(), samples.labels)
        for measurement in result.values():
            assert measurement.measures[part] == pytest.approx(expected, rel=1e-9)
            assert measurement.rows[part] == Rows(len(samples), len(samples))


class Other:
    """Another hub, which says who holds what in its silo."""

    def __init__(self, owner: list[int], clients: int, dtype: torch.dtype = torch.int32) -> None:
        self.message = SiloHolders(torch.tensor(owner, dtype=dtype), clients)

    async def exchange(self, mine: SiloHolders) -> dict[str, SiloHolders]:
        assert mine.owner.dtype == torch.int32
        return {"silo-2": self.message}


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (lambda n: Other([0] * (n - 1), 1), "owner: torch.int32 of shape"),
        (lambda n: Other([0] * n, 1, torch.int64), "owner: torch.int64 of shape"),
        (lambda n: Other([1] * n, 1), "not numbered from 0 to 0"),
        (lambda n: Other([0] * n, 2), "not numbered from 0 to 1"),
        (lambda n: Other([0, 2] * (n // 2) + [0] * (n % 2), 2), "not numbered from 0 to 1"),
        (lambda n: Other([-1, 0] * (n // 2) + [0] * (n % 2), 2), "not numbered from 0 to 1"),
    ],
)
def test_holders_that_cannot_be_are_refused(told: Any, message: str, tmp_path: Path) -> None:
    federation = Federation(job(participation=0.5), tmp_path)

    async def run() -> None:
        await federation.start()
        hub = federation.hubs["silo-1"]
        assert hub.rounds
        context: Any = replace(hub.context, peers=told(hub.prepared.plan.counts[Part.TRAIN]))
        try:
            await exchange_holders(context, hub.prepared, hub.rounds.plan)
        finally:
            await federation.stop()

    with pytest.raises(RefusedError, match=rf"the hub of silo 'silo-2' sends 'holders'.*{message}"):
        run_virtually(run())


@pytest.mark.parametrize(
    ("participation", "samples", "message"),
    [
        (1.0, [0], "unexpected samples of the mini-batch of round 1"),
        (0.5, [], "none of this client's rows is in the mini-batch of round 1"),
        (0.5, [10**6], "has samples that this client does not hold"),
        (0.5, [-1], "has samples that this client does not hold"),
    ],
)
def test_a_hub_that_makes_up_a_mini_batch_is_refused(
    participation: float, samples: list[int], message: str, tmp_path: Path
) -> None:
    federation = Federation(job(participation=participation), tmp_path)

    async def run() -> None:
        await federation.start()
        session = next(iter(federation.sessions.values()))
        try:
            session._open(1, torch.tensor(samples, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
        finally:
            await federation.stop()

    with pytest.raises(RefusedError, match=message):
        run_virtually(run())
