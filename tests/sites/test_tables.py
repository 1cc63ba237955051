"""Tables at their clients' sites: aligned in private, prepared without moving a row."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sites.memory import Federation, run_virtually
from sites.tables import SILOS, write_tables
from sites.test_rounds import same
from tdcd.core.network import Blocks
from tdcd.data.holdout import Part
from tdcd.data.tables.alignment import Alignment
from tdcd.errors import DataError, DeploymentError, TdcdError
from tdcd.jobs.load import load_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.jobs.tables import OpenTables
from tdcd.sites.security.identity import Identity


def with_settings(folder: Path, **settings: Any) -> Job:
    return load_job(folder / "job.toml", {key.replace("__", "."): value for key, value in settings.items()})


def run(federation: Federation, rounds: int = 0) -> Blocks:
    async def go() -> Blocks:
        try:
            await federation.start()
            return await federation.rounds(rounds)
        finally:
            await federation.stop()

    return run_virtually(go())


@pytest.mark.parametrize("way", ["private", "plain"])
def test_hubs_find_what_one_place_finds(way: str, tmp_path: Path) -> None:
    write_tables(tmp_path)
    job = with_settings(tmp_path, deployment__alignment=way, training__rounds=3, training__precision="float64")
    federation = Federation(job, tmp_path / "runs")
    result = run(federation, rounds=3)
    expected, _ = OpenTables.open(job, lambda what: None).align()
    for silo, hub in federation.hubs.items():
        stored = Alignment.load(tmp_path / "runs" / silo / "alignment.parquet")
        assert np.array_equal(stored.ids, expected.ids)
        assert stored.fingerprint == expected.fingerprint
        assert stored.shares == {silo: expected.shares[silo]}
        assert hub.setup.preparation == run_preparation(job, silo)
    same(result, run_job(job).federation.blocks, 1e-12)


@pytest.mark.parametrize("held", [{"data__folds": 4, "data__fold": 2}, {"data__refit": True}])
def test_sites_hold_out_what_one_place_holds_out(held: dict[str, Any], tmp_path: Path) -> None:
    write_tables(tmp_path)
    job = with_settings(tmp_path, training__rounds=2, training__precision="float64", **held)
    federation = Federation(job, tmp_path / "runs")
    result = run(federation, rounds=2)
    expected = run_job(job).federation
    same(result, expected.blocks, 1e-12)
    for hub in federation.hubs.values():
        assert hub.setup.plan
        counts = hub.setup.plan.counts
        assert counts[Part.TRAIN] == expected.description.samples
        assert counts[Part.TEST] == expected.description.test_samples
        assert counts.get(Part.VALIDATION, 0) == expected.description.validation_samples


def run_preparation(job: Job, silo: str) -> object:
    from tdcd.jobs.data import load_data

    return load_data(job).federation.preparations[silo]


def test_hubs_see_no_features_and_tell_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watch every message between hubs: of IDs, only masked points go."""
    from tdcd.sites.hub.peers import Peers

    write_tables(tmp_path)
    job = with_settings(tmp_path, training__rounds=1)
    kinds: dict[str, set[str]] = {}
    push = Peers._push

    async def watched(peers: Peers, peer: Any, message: Any, *arguments: Any, **named: Any) -> Any:
        kinds.setdefault(message.kind, set()).update(message.tensors)
        for tensor in message.tensors.values():
            text = tensor.numpy().tobytes()
            assert b"p0" not in text or "points" in message.tensors
        return await push(peers, peer, message, *arguments, **named)

    monkeypatch.setattr(Peers, "_push", watched)
    federation = Federation(job, tmp_path / "runs")
    run(federation, rounds=1)
    assert kinds["points"] == {"points"}
    assert kinds["places"] == {"places"}
    assert kinds["handed over"] == {"values letters", "values ends"}
    assert set(kinds) == {"call", "points", "places", "handed over", "digests", "silo embeddings", "end"}
    for hub in federation.hubs.values():
        assert hub.prepared
        assert not any("features" in name for name in vars(hub.prepared.plan))


def test_an_alignment_is_kept_and_verified(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    run(Federation(job, tmp_path / "runs"))
    again = Federation(job, tmp_path / "runs")
    run(again)
    assert not any("IDs are in all silos" in line for line in again.log), "they were aligned anew"
    file = tmp_path / "hospital-1.csv"
    table = pl.read_csv(file)
    table.head(len(table) - 20).write_csv(file)
    changed = Federation(job, tmp_path / "runs")
    changed.job.deployment.__dict__["client_deadline"] = 2.0
    run(changed, rounds=1)
    hub = changed.hubs["hospital"]
    assert "part-1" not in hub.context.clients.links  # it was refused, and the others go on
    assert hub.context.clients.left_out == {"part-1": 1}


def test_one_hub_without_its_alignment_is_helped(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    run(Federation(job, tmp_path / "runs"))
    file = tmp_path / "runs" / "insurer" / "alignment.parquet"
    before = file.read_bytes()
    file.unlink()
    federation = Federation(job, tmp_path / "runs")
    run(federation)
    assert Alignment.load(file).fingerprint == federation.hubs["bank"].prepared.plan.fingerprint
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda t: t.with_columns(person=pl.col("person") + "x"), "no ID is in all silos"),
        (lambda t: t.with_columns(person=pl.int_range(len(t))), "different types|stand for several rows"),
    ],
)
def test_ids_that_do_not_meet(spoil: Any, says: str, tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    for client in range(SILOS["bank"]):
        file = tmp_path / f"bank-{client}.csv"
        spoil(pl.read_csv(file)).write_csv(file)
    with pytest.raises(DataError, match=says):
        run(Federation(job, tmp_path / "runs", hub_deadline=5.0))


def test_labels_that_contradict_each_other(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    truth = pl.concat([pl.read_csv(tmp_path / f"bank-{c}.csv").select("person", "ill") for c in range(2)])
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace("[silos.insurer]", '[silos.insurer]\nlabel = "sick"'))
    for client in range(SILOS["insurer"]):
        file = tmp_path / f"insurer-{client}.csv"
        joined = pl.read_csv(file).join(truth, on="person", how="left").rename({"ill": "sick"})
        joined.with_columns(pl.col("sick").fill_null(0)).write_csv(file)
    job = load_job(tmp_path / "job.toml")
    run(Federation(job, tmp_path / "agree"))
    wrong = pl.read_csv(tmp_path / "insurer-0.csv").with_columns(sick=1 - pl.col("sick"))
    wrong.write_csv(tmp_path / "insurer-0.csv")
    with pytest.raises(DataError, match="contradict each other: a label differs"):
        run(Federation(job, tmp_path / "differ", hub_deadline=5.0))


def test_a_table_that_cannot_be_used_is_told_at_both_sites(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    file = tmp_path / "hospital-2.csv"
    pl.read_csv(file).rename({"hospital_a": "other"}).write_csv(file)
    with pytest.raises(TdcdError, match="client 'part-2' .*its columns are not those of client 'part-0'"):
        run(Federation(job, tmp_path / "runs", hub_deadline=5.0))


def test_a_client_that_fails_is_left_out_and_told_of(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    federation = Federation(job, tmp_path / "runs")
    ill = Identity("insurer", "part-3")

    async def go() -> None:
        await federation.start()

        def fail(request: Any) -> Any:
            raise DataError("its disk is on fire")

        federation.sessions[ill].reply = fail  # type: ignore[method-assign]
        await federation.rounds(2)
        await federation.stop()

    run_virtually(go())
    assert "insurer: client 'part-3' is left out: its disk is on fire" in federation.log
    assert federation.hubs["insurer"].context.clients.left_out["part-3"] >= 1


def test_when_no_client_can_do_its_part_it_stops(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    federation = Federation(job, tmp_path / "runs", hub_deadline=3.0)

    async def go() -> None:
        await federation.start()

        def fail(request: Any) -> Any:
            raise DataError("out of memory")

        for who, party in federation.sessions.items():
            if who.silo == "bank":
                party.reply = fail  # type: ignore[method-assign]
        try:
            await federation.rounds(3)
        finally:
            await federation.stop()

    with pytest.raises(DeploymentError, match="silo 'bank': no client can do its part; client 'part-.': out of memory"):
        run_virtually(go())


def test_a_plan_of_another_job_is_not_taken_up(tmp_path: Path) -> None:
    """What is held out, and what is a feature, may have changed in the job since the hub was last started."""
    write_tables(tmp_path)
    run(Federation(with_settings(tmp_path, data__test_fraction=0.3), tmp_path / "runs"))
    changed = with_settings(tmp_path, data__test_fraction=0.5, data__seed=7)
    federation = Federation(changed, tmp_path / "runs")
    run(federation)
    expected = training_samples(changed)
    assert {hub.prepared.plan.counts[Part.TRAIN] for hub in federation.hubs.values()} == {expected}


def training_samples(job: Job) -> int:
    from tdcd.jobs.data import load_data

    return len(load_data(job).federation)


def test_hubs_that_hold_out_other_samples_do_not_train_together(tmp_path: Path) -> None:
    write_tables(tmp_path)
    federation = Federation(with_settings(tmp_path), tmp_path / "runs", hub_deadline=5.0)

    async def go() -> None:
        federation.add_everybody()
        hubs = federation.hubs
        try:
            await asyncio.gather(*(hub.setup.prepare(None) for hub in hubs.values()))
            plan = hubs["bank"].prepared.plan
            object.__setattr__(plan, "parts", np.roll(plan.parts, 1))
            await asyncio.gather(*(hub.agree({}) for hub in hubs.values()))
        finally:
            await federation.stop()

    with pytest.raises(DeploymentError, match="or what is held out are not the same here and at the hub of silo"):
        run_virtually(go())


def test_clients_that_are_still_ready_help_to_align_again(tmp_path: Path) -> None:
    """A restarted hub does not know the IDs of clients that need not begin again."""
    job = write_tables(tmp_path)
    federation = Federation(job, tmp_path / "runs", hub_deadline=20.0)

    async def go() -> None:
        await federation.start()
        names = federation.names()
        for silo in names:
            for client in names[silo]:
                federation._tasks[Identity(silo, client)].cancel()
        (tmp_path / "runs" / "insurer" / "alignment.parquet").unlink()
        for silo in names:
            federation.add_hub(silo)
        for silo, clients in names.items():
            for client in clients:
                federation.add_client(Identity(silo, client), again=True)

        async def bring(silo: str) -> None:
            await federation.hubs[silo].setup.prepare(None)
            await federation.hubs[silo].agree({})

        await asyncio.gather(*map(bring, names))
        await federation.rounds(1)
        await federation.stop()

    run_virtually(go())


def test_a_client_without_a_common_id_takes_no_part(tmp_path: Path) -> None:
    job = write_tables(tmp_path)
    file = tmp_path / "hospital-1.csv"
    table = pl.read_csv(file)
    table.with_columns(person=pl.col("person") + "x").write_csv(file)
    federation = Federation(job, tmp_path / "runs")
    result = run(federation, rounds=2)
    assert federation.hubs["hospital"].prepared.plan.idle == ("part-1",)
    same(result, run_two_rounds(job), 1e-6)


def run_two_rounds(job: Job) -> Blocks:
    settings = job.training.model_copy(update={"rounds": 2})
    return run_job(job.model_copy(update={"training": settings})).federation.blocks
