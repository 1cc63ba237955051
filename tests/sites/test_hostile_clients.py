"""Clients whose numbers are of no use: they are left out of a round and named, and spoil nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcd.core.script import Diverged
from tdcd.core.state import SiloState
from tdcd.engines.base import Judge, Measurement, Measures, Verdict
from tdcd.jobs.data import load_data
from tdcd.sites.hub.clients import OFFENCES
from tdcd.sites.messages.frames import Message
from tdcd.sites.messages.types import Embeddings, LogitGradients, Scores, Tallies, Weights
from tdcd.sites.security.identity import Identity

from .memory import Federation, run_virtually
from .test_labels import keeping
from .test_rounds import ROUNDS, Watched, deployed, job, same, simulated

BAD = Identity("silo-2", "silo-2-1")
FIELDS: dict[type, str] = {Embeddings: "rows", LogitGradients: "rows", Weights: "weights", Scores: "rows"}
Alter = Callable[[Identity, Message, Any], Any]


def spoilt(reply: Any, number: float) -> Any:
    """Put a number into the first tensor of a reply."""
    field = FIELDS[type(reply)]
    value = getattr(reply, field)
    first, *others = value if isinstance(value, tuple) else (value,)
    changed = first.clone()
    changed.view(-1)[0] = number
    return replace(reply, **{field: (changed, *others) if isinstance(value, tuple) else changed})


def lying(kinds: set[str], number: float, rounds: set[int], who: Identity | None = BAD) -> Alter:
    """Return what spoils the replies to some requests, of one client or of all of its silo."""

    def alter(identity: Identity, request: Message, reply: Any) -> Any:
        guilty = identity == who if who else identity.silo == BAD.silo
        if guilty and request.kind in kinds and request.stamp.round in rounds:
            return spoilt(reply, number)
        return reply

    return alter


async def evaluate(federation: Federation, judge: Judge) -> list[Measures]:
    """Evaluate the first weights; return what each hub measures."""
    await federation.start()
    hubs = federation.hubs.values()
    result = await asyncio.gather(*(hub.evaluate(SiloState(hub.setup.first_block()), judge) for hub in hubs))
    await federation.stop()
    return [measurement.measures for measurement, _ in result]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30, -1e30])
@pytest.mark.parametrize("stage", ["embed", "descend"])
def test_a_client_whose_numbers_are_of_no_use_costs_its_rows_in_one_round(
    stage: str, number: float, large: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if large:
        monkeypatch.setattr("tdcd.sites.hub.clients.LARGE", 0)
    watched = Watched(monkeypatch)
    wanted = job()
    federation = Federation(wanted, tmp_path, alter=lying({stage}, number, {2}))
    result = deployed(federation)
    batches = watched.agreed()
    roster = load_data(wanted).federation.rosters["silo-2"]
    held = np.flatnonzero(roster.owner.numpy() == roster.clients.index(BAD.client or ""))
    assert not np.isin(batches[2], held).any()
    assert np.isin(batches[3], held).any(), "it takes part again"
    same(result, simulated(wanted, batches))
    (named,) = (line for line in federation.log if "is left out" in line)
    assert named.startswith("silo-2: client 'silo-2-1' is left out: ")
    assert ("its numbers are not finite" in named) == (abs(number) != 1e30)


def test_one_that_does_it_again_and_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    wanted = job()
    federation = Federation(wanted, tmp_path, alter=lying({"embed"}, float("nan"), set(range(1, ROUNDS + 1))))
    result = deployed(federation)
    same(result, simulated(wanted, watched.agreed()))
    assert sum("'silo-2-1' is left out" in line for line in federation.log) == OFFENCES
    assert sum("client 'silo-2-1' is refused: 3 times" in line for line in federation.log) == 1


STAGES = {
    "shared": ("embed", "descend"),
    "exact": ("embed", "step", "first gradients", "later gradients", "descend"),
    "stale": ("embed", "first gradients", "descend"),
}


@pytest.mark.parametrize(("sharing", "stage"), [(sharing, stage) for sharing in STAGES for stage in STAGES[sharing]])
def test_where_all_clients_of_a_silo_do_it_has_diverged(sharing: str, stage: str, tmp_path: Path) -> None:
    holder = "silo-2" if "gradients" in stage else "silo-1"
    wanted = job() if sharing == "shared" else keeping(job(), sharing, holder)
    federation = Federation(wanted, tmp_path, alter=lying({stage}, float("nan"), {2}, None))

    async def run() -> list[Any]:
        await federation.start()
        blocks = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}
        result: list[Any] = []
        for number in (1, 2):
            result = await asyncio.gather(
                *(hub.run_round(SiloState(blocks[silo]), number) for silo, hub in federation.hubs.items()),
                return_exceptions=True,
            )
            if number == 1:
                blocks = {silo: one[0].weights for silo, one in zip(blocks, result, strict=True)}
        await federation.stop()
        return result

    result = run_virtually(run())
    assert len(result) == 2
    for error in result:
        assert isinstance(error, Diverged)
        assert error.silos == ("silo-2",)


@pytest.mark.parametrize("large", [False, True])
def test_a_bound_on_what_a_client_changes(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("tdcd.sites.hub.clients.LARGE", 0)
    wanted = job()
    bounded = wanted.deployment.model_copy(update={"largest_update": 5.0})
    wanted = wanted.model_copy(update={"deployment": bounded})

    def alter(who: Identity, request: Message, reply: Any) -> Any:
        if (who, request.kind, request.stamp.round) != (BAD, "descend", 2):
            return reply
        return replace(reply, weights=tuple(weight + 1.0 for weight in reply.weights))

    federation, watched = Federation(wanted, tmp_path, alter=alter), Watched(monkeypatch)
    result = deployed(federation)
    same(result, simulated(wanted, watched.agreed()))
    (named,) = (line for line in federation.log if "is left out" in line)
    assert "client 'silo-2-1' is left out: its weights have moved by" in named
    assert "more than deployment.largest_update = 5" in named


def test_a_client_within_the_bound_takes_part(tmp_path: Path) -> None:
    """Its weights move by 4 where 5 are allowed, and are looked at once."""
    wanted = job(rounds=1)
    wanted = wanted.model_copy(update={"deployment": wanted.deployment.model_copy(update={"largest_update": 5.0})})

    def alter(who: Identity, request: Message, reply: Any) -> Any:
        if not isinstance(reply, Weights):
            return reply
        first = list(federation.hubs[who.silo].setup.first_block().values())
        apart = 4.0 / sum(weight.numel() for weight in first) ** 0.5
        return Weights(tuple(weight + apart for weight in first))

    federation = Federation(wanted, tmp_path, alter=alter)

    async def run() -> None:
        await federation.start()
        await federation.rounds(1)
        await federation.stop()

    run_virtually(run())
    assert not any("left out" in line for line in federation.log)


@pytest.mark.parametrize("everybody", [False, True])
def test_scores_that_are_of_no_use(everybody: bool, tmp_path: Path) -> None:
    federation = Federation(job(), tmp_path, alter=lying({"score"}, float("nan"), {0}, None if everybody else BAD))
    judged: list[Measures] = []

    def judge(measurement: Measurement) -> Verdict:
        judged.append(measurement.measures)
        return "worse"

    run_virtually(evaluate(federation, judge))
    losses = [values["loss"] for values in judged[0].values() if values]
    assert losses
    assert all(np.isnan(loss) == everybody for loss in losses)
    assert any("client 'silo-2-1' is left out" in line for line in federation.log)


LIES: dict[str, Callable[[dict[str, list[float]]], object]] = {
    "it is of 1e+06 rows": lambda sums: sums.update(rows=[1e6]),
    "its loss is negative": lambda sums: sums.update(loss=[-1.0]),
    "it holds numbers that are not finite": lambda sums: sums.update(loss=[float("nan")]),
    "more rows are right than there are": lambda sums: sums.update(both=[x + 1e3 for x in sums["both"]]),
    "its classes do not add up": lambda sums: sums.update(truth=[x + 1 for x in sums["truth"]]),
    "its counts are not whole numbers": lambda sums: sums.update(both=[0.5, 0.5]),
    "its counts in bins do not add up": lambda sums: sums.update(
        bin_positives=[count + 1 for count in sums.get("bin_positives", [])]
    ),
    "its ranks are negative": lambda sums: sums.update(ranks=[-x for x in sums["ranks"]]),
    "it does not fit the loss": lambda sums: sums.update(both=[1.0]),
}


@pytest.mark.parametrize("why", LIES)
def test_made_up_tallies_are_refused(why: str, tmp_path: Path) -> None:
    def alter(who: Identity, request: Message, reply: Any) -> Any:
        if who != BAD or not isinstance(reply, Tallies):
            return reply
        copy = {part: {name: list(values) for name, values in sums.items()} for part, sums in reply.tallies.items()}
        for sums in copy.values():
            LIES[why](sums)
        return Tallies(copy)

    federation = Federation(keeping(job(), "stale", "silo-2"), tmp_path, alter=alter)
    measures = run_virtually(evaluate(federation, lambda _: "worse"))
    accuracies = [values["accuracy"] for one in measures for values in one.values() if values]
    assert accuracies
    assert all(0 <= accuracy <= 1 for accuracy in accuracies)
    assert any("client 'silo-2-1' is left out: a tally of" in line and why in line for line in federation.log)
