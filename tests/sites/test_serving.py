"""Predictions across sites: the numbers of one place, one round trip, and refusals that name what is wrong."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tdcd.errors import AbsentError, DeploymentError, JobError, RunError
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.schema import TableJob
from tdcd.serving.frames import prediction_frame
from tdcd.serving.model import Model
from tdcd.sites.asking import Asker, ask_all, read_ids
from tdcd.sites.event_loop import now
from tdcd.sites.hub.batches import FLIGHT, Batches
from tdcd.sites.messages.frames import Message, RefusedError, Stamp, message_in, one_frame
from tdcd.sites.messages.packing import kind_of, pack
from tdcd.sites.messages.predictions import LookUp, Predict, SiloLookedUp, SiloLookUp
from tdcd.sites.messages.types import FirstGradients
from tdcd.sites.participants import check_serves
from tdcd.sites.security.identity import Identity
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.transport.base import RefusalError, UnreachableError
from tdcd.sites.transport.memory import MemoryHub

from .attacks import UNFORESEEN, alterations
from .memory import Federation, run_virtually
from .serving import RUN, Sites, central, train
from .tables import write_tables

SOUTH = Identity("hospital", "part-1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableJob, Path, Model]:
    """Three silos with nine clients, trained in a simulation."""
    folder = tmp_path_factory.mktemp("trained")
    job = check_serves(write_tables(folder))
    return job, folder, train(job, folder)


def with_deployment(job: TableJob, **settings: Any) -> TableJob:
    return job.model_copy(update={"deployment": job.deployment.model_copy(update=settings)})


def serve(job: TableJob, folder: Path, test: Callable[[Sites], Coroutine[Any, Any, None]], **more: Any) -> Sites:
    """Run a test with everybody there."""
    sites = Sites(job, folder, **more)

    async def go() -> None:
        async with sites.running():
            await test(sites)

    run_virtually(go())
    return sites


@pytest.mark.parametrize("model", ["mlp", "linear"])
def test_predictions_are_those_of_one_place(model: str, tmp_path: Path) -> None:
    text = (write_tables(tmp_path), (tmp_path / "job.toml").read_text())[1]
    if model == "linear":
        (tmp_path / "job.toml").write_text(text.replace('kind = "mlp"\nhidden = [5]', 'kind = "linear"'))
    job = check_serves(load_job(tmp_path / "job.toml"))
    run = train(job, tmp_path)
    ids, frame = central(run, job)

    async def test(sites: Sites) -> None:
        asker = await sites.asker()
        assert (asker.about.run, asker.about.round) == (RUN, run.result.selected)
        shuffled = np.random.default_rng(1).permutation(ids.astype(np.str_))
        parts: list[int] = []
        scores = await ask_all(replace(asker, about=replace(asker.about, most=50)), shuffled, parts.append)
        assert parts[-1] == len(ids)
        assert not scores.without.any()
        across = prediction_frame(job.training.objective, asker.about.classes, shuffled, scores.values).sort("id")
        assert across.columns == frame.columns
        assert across["prediction"].to_list() == frame["prediction"].to_list()
        np.testing.assert_allclose(across[:, 2].to_numpy(), frame[:, 2].to_numpy(), rtol=0, atol=1e-5)

    serve(job, tmp_path, test)


def test_a_silo_with_labels_only_asks_and_adds_nothing(tmp_path: Path) -> None:
    write_tables(tmp_path)
    for file in tmp_path.glob("bank-*.csv"):
        pl.read_csv(file).select("person", "ill").write_csv(file)
    text = (tmp_path / "job.toml").read_text()
    (tmp_path / "job.toml").write_text(text.replace('sharing = "shared"', 'sharing = "exact", classes = ["0", "1"]'))
    job = check_serves(load_job(tmp_path / "job.toml"))
    run = train(job, tmp_path)
    ids, frame = central(run, job)

    async def test(sites: Sites) -> None:
        sites.stop_client(Identity("bank", "part-0"))  # nobody needs it
        scores = await sites.ask(ids.tolist())
        assert scores.silos == ("hospital", "insurer")
        across = prediction_frame(job.training.objective, ("0", "1"), ids, scores.values)
        np.testing.assert_allclose(across[:, 2].to_numpy(), frame[:, 2].to_numpy(), rtol=0, atol=1e-5)
        assert not any(who.silo == "bank" for who, _ in sites.heard)

    serve(job, tmp_path, test)


def test_one_question_is_one_exchange_and_nobody_else_learns_scores(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)

    async def test(sites: Sites) -> None:
        for count in (1, 10, 50):
            before = {pair: len(line.asked) for pair, line in sites.lines.items()}
            await sites.ask(ids[:count].tolist())
            more = {pair: len(line.asked) - before[pair] for pair, line in sites.lines.items()}
            assert more == {pair: int(pair[0] == "bank") for pair in sites.lines}
        assert {kind for _, kind in sites.heard} == {"serve", "look up"}
        kinds = {frame.header.kind for line in sites.lines.values() for frame in line.asked if frame.header}
        assert kinds == {"silo look up"}

    serve(job, folder, test)


def test_questions_that_come_together_share_exchanges(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)

    async def test(sites: Sites) -> None:
        asker = await sites.asker()
        every = await asyncio.gather(*(asker.ask(ids[n : n + 1].astype(np.str_)) for n in range(40)))
        assert len(sites.lines["bank", "insurer"].asked) <= 2
        alone = await asker.ask(ids[:40].astype(np.str_))
        assert torch.allclose(torch.cat([one.values for one in every]), alone.values, atol=1e-6)
        wrong = asyncio.ensure_future(asker.ask(np.array(["nobody"])))
        right = asyncio.ensure_future(asker.ask(ids[:1].astype(np.str_)))
        await asyncio.wait({wrong, right})
        assert right.exception() is None, "another's mistake is not one's own"
        assert "nobody" in str(wrong.exception())

    serve(job, folder, test)


def test_exchanges_have_so_many_ids_and_so_many_are_under_way() -> None:
    sizes: list[int] = []
    under_way, most = 0, 0

    async def exchange(ids: Any) -> int:
        nonlocal under_way, most
        sizes.append(len(ids))
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(1.0)
        under_way -= 1
        return len(ids)

    async def go() -> None:
        batches = Batches(exchange, 10)
        results = await asyncio.gather(*(batches.ask(np.arange(3)) for _ in range(40)))
        assert all(place.stop - place.start == 3 and place.stop <= count for count, place in results)
        first = asyncio.ensure_future(batches.ask(np.arange(1 << 17)))
        second = asyncio.ensure_future(batches.ask(np.arange(1 << 17)))
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="IDs wait here already; ask again later"):
            await batches.ask(np.arange(1))
        assert [count for count, _ in await asyncio.gather(first, second)] == [1 << 17] * 2

    run_virtually(go())
    assert max(sizes[:-2]) == 9
    assert most == FLIGHT


def test_an_id_that_a_silo_lacks_is_named(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)
    known = {silo: read_all(job, silo) for silo in job.silos}
    lacking = sorted((known["bank"] & known["insurer"]) - known["hospital"])

    async def test(sites: Sites) -> None:
        with pytest.raises(DeploymentError) as error:
            await sites.ask([*ids[:3].tolist(), *lacking[:2]])
        text = str(error.value)
        assert f"silo 'hospital' does not have 2 of the 5 IDs: {lacking[0]}, {lacking[1]}" in text
        assert "'insurer'" not in text
        assert "deployment.partial_predictions = true" in text
        with pytest.raises(DeploymentError, match="silo 'hospital' does not have ID nobody"):
            await sites.ask(["nobody"])
        status = await sites.hubs["bank"].report(Identity("bank"))
        assert (status.stage, status.prediction_errors, status.predicted) == ("serving", 2, 0)
        assert "does not have ID nobody" in status.last_error
        to_client = await sites.hubs["bank"].report(Identity("bank", "part-0"))
        assert replace(to_client, last_error=status.last_error, clients=(), seconds=0) == replace(
            status, clients=(), seconds=0
        )
        assert "nobody" not in to_client.last_error, "which silo lacks an ID is the hub's to know"
        assert sum(client.serves for client in status.clients) == len(known["bank"])

    serve(job, folder, test)


def read_all(job: TableJob, silo: str) -> set[str]:
    return {identity for one in job.silos[silo].files.values() for identity in pl.read_csv(one.file)["person"]}


@pytest.mark.parametrize("how", ["gone", "hangs"])
def test_a_client_that_is_away_is_named_within_a_second(trained: tuple[TableJob, Path, Model], how: str) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)
    theirs = sorted(set(pl.read_csv(job.silos["hospital"].files["part-1"].file)["person"]) & set(ids.tolist()))
    others = sorted(set(ids.tolist()) - set(theirs))

    async def test(sites: Sites) -> None:
        if how == "gone":
            sites.stop_client(SOUTH)
            await sites.until_ready({SOUTH})
        else:
            link = sites.hubs["hospital"].clients.links["part-1"]

            async def send(frame: Any) -> None:
                pass

            link.stream.send = send  # type: ignore[method-assign]
        began = now()
        with pytest.raises(
            AbsentError, match=r"silo 'hospital' does not have ID .*, which may be at client part-1 \(it "
        ) as error:
            await sites.ask(theirs[:1])
        assert now() - began < 1.0
        assert ("it is not connected" if how == "gone" else "it does not answer") in str(error.value)
        await sites.ask(others[:5])  # nobody needs it for these

    serve(job, folder, test)


@pytest.mark.parametrize("how", ["gone", "vanishes"])
def test_a_hub_that_is_away_is_named_within_a_second(trained: tuple[TableJob, Path, Model], how: str) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)

    async def test(sites: Sites) -> None:
        if how == "gone":
            sites.stop_hub("insurer")
        else:
            sites.lines["bank", "insurer"].vanishes = True
        began = now()
        with pytest.raises(AbsentError, match="the hub of silo 'insurer' is away"):
            await sites.ask(ids[:3].tolist())
        assert now() - began < 1.0
        sites.lines["bank", "insurer"].vanishes = False
        if how == "gone":
            sites.add_hub("insurer")
            await sites.until_ready()
        await sites.ask(ids[:3].tolist())
        assert any("the hub of silo 'insurer' (memory:1) is away" in line for line in sites.log)

    serve(job, folder, test)


def test_partial_predictions_are_marked(trained: tuple[TableJob, Path, Model], tmp_path: Path) -> None:
    job, folder, run = trained
    job = with_deployment(job, partial_predictions=True)
    ids, _ = central(run, job)
    known = {silo: read_all(job, silo) for silo in job.silos}
    lacking = sorted((known["bank"] & known["insurer"]) - known["hospital"])[0]

    async def test(sites: Sites) -> None:
        whole = await sites.ask([ids[0], lacking])
        assert whole.silos == ("bank", "hospital", "insurer")
        assert whole.without.tolist() == [[False, False, False], [False, True, False]]
        sites.stop_hub("insurer")
        without = await sites.ask([ids[0], lacking])
        assert without.without.tolist() == [[False, False, True], [False, True, True]]
        assert not torch.equal(whole.values[0], without.values[0])
        with pytest.raises(DeploymentError, match="no silo has ID nobody; silo 'insurer': it is not there"):
            await sites.ask(["nobody"])

    serve(job, folder, test)


def test_only_who_may_ask_is_answered(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids = central(run, job)[0][:2].astype(np.str_)
    fingerprint = SharedJob.of(job).fingerprint

    async def test(sites: Sites) -> None:
        for who in (Identity("bank", "part-0"), Identity("insurer"), Identity("insurer", "part-0")):
            with pytest.raises(DeploymentError, match="with the certificate of the hub of silo 'bank'"):
                await sites.asker("bank", who)
        with pytest.raises(DeploymentError, match="predictions are asked for at silo 'bank', not at 'insurer'"):
            await sites.asker("insurer")
        asker = await sites.asker()
        stranger = Asker(MemoryHub(sites.hubs["bank"], Identity("insurer")), asker.about, job, "bank")
        with pytest.raises(DeploymentError, match="with the certificate of the hub of silo 'bank'"):
            await stranger.ask(ids)
        question = one_frame(pack(SiloLookUp(RUN, run.result.selected, ids), Stamp(fingerprint)))
        refused: tuple[tuple[Identity | None, str, str], ...] = (
            (Identity("hospital"), "hospital", "only the hub of silo 'bank' may ask"),
            (Identity("hospital"), "bank", "the certificate is of the hub of silo 'hospital'"),
            (Identity("bank", "part-0"), "bank", "only hubs may bring messages here"),
            (Identity("elsewhere"), "bank", "not a hub that the job names"),
            (Identity("insurer"), "insurer", "not a hub that the job names"),
            (None, "elsewhere", "is not in this job"),
        )
        for caller, says, why in refused:
            with pytest.raises(RefusalError, match=why):
                await MemoryHub(sites.hubs["insurer"], caller).predict(says, question, 5.0)
        other = one_frame(pack(SiloLookUp(RUN, run.result.selected, ids), Stamp("another")))
        with pytest.raises(RefusalError, match="a message of another job"):
            await MemoryHub(sites.hubs["insurer"], Identity("bank")).predict("bank", other, 5.0)

    serve(job, folder, test)


def test_hubs_that_serve_different_weights_say_so(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)

    async def test(sites: Sites) -> None:
        hub, asker = sites.hubs["insurer"], await sites.asker()
        hub.model = replace(hub.model, round=8)
        why = "the hub of silo 'insurer' .* refuses: this hub serves the weights of round 8 of run .*; those of round"
        with pytest.raises(DeploymentError, match=why):
            await sites.ask(ids[:1].tolist())
        sites.hubs["bank"].model = replace(hub.model, run="another")
        with pytest.raises(DeploymentError, match="serves the weights of round 8 of run another"):
            await asker.ask(ids[:1].astype(np.str_))

    serve(job, folder, test)


def test_a_client_is_sent_the_model_again_when_it_or_its_hub_comes_again(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)

    async def test(sites: Sites) -> None:
        before = await sites.ask(ids[:20].tolist())
        sites.stop_client(SOUTH)
        await sites.until_ready({SOUTH})
        sites.add_client(SOUTH)
        await sites.until_ready()
        assert torch.equal((await sites.ask(ids[:20].tolist())).values, before.values)
        await sites.hubs["hospital"].close()
        sites.stop_hub("hospital")
        sites.add_hub("hospital")
        await sites.until_ready()
        assert torch.equal((await sites.ask(ids[:20].tolist())).values, before.values)
        sites.add_client(Identity("bank", "part-0"), serves=False)  # it takes no part, and hears that all is over
        await asyncio.sleep(1)
        assert sites._tasks[Identity("bank", "part-0")].done()

    serve(job, folder, test)


def test_a_table_that_has_changed_is_read_again(trained: tuple[TableJob, Path, Model], tmp_path: Path) -> None:
    job, folder, run = trained
    file = tmp_path / "new.csv"
    rows = pl.read_csv(job.silos["hospital"].files["part-1"].file)
    rows.with_columns(hospital_b=pl.lit("never seen"), hospital_a=pl.lit(None)).write_csv(file)
    tables = {SOUTH: file}
    ids = sorted(set(central(run, job, tables)[0].tolist()) & set(rows["person"]))[:3]

    async def test(sites: Sites) -> None:
        first = await sites.ask(ids)
        rows.with_columns(hospital_a=pl.lit(3.0)).write_csv(file)
        second = await sites.ask(ids)
        assert not torch.allclose(first.values, second.values)
        frame = central(run, job, tables)[1].filter(pl.col("id").is_in(ids)).sort("id")
        across = prediction_frame(job.training.objective, (), np.array(ids), second.values).sort("id")
        np.testing.assert_allclose(across[:, 2].to_numpy(), frame[:, 2].to_numpy(), rtol=0, atol=1e-5)
        file.write_text("person,hospital_a,hospital_b\nx1,secret,high\n")
        for _ in range(2):
            with pytest.raises(AbsentError, match=r"client part-1 \(it cannot answer; its log says why\)") as error:
                await sites.ask(ids)
            assert "secret" not in str(error.value)
        file.write_text("person,hospital_a,hospital_b\n")  # nobody new today
        with pytest.raises(DeploymentError, match="silo 'hospital' does not have 3 of the 3 IDs"):
            await sites.ask(ids)
        file.unlink()
        with pytest.raises(AbsentError, match="it cannot answer"):
            await sites.ask(ids)
        rows.write_csv(file)
        await sites.ask(ids)

    sites = serve(job, folder, test, tables=tables)
    own = [line for line in sites.log if line.startswith("hospital/part-1: ")]
    assert any("column 'hospital_b': 70 of 70 rows hold categories that are unknown" in line for line in own)
    assert any("column 'hospital_a': no row of 70 has a value" in line for line in own)
    assert sum("secret" in line for line in own) == 1, "it is read once, and tells only its own site"
    assert not any("secret" in line for line in sites.log if line not in own)


def test_an_id_at_two_clients_of_a_silo_is_refused(trained: tuple[TableJob, Path, Model], tmp_path: Path) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)
    file = tmp_path / "twice.csv"
    pl.concat([pl.read_csv(own.file) for own in job.silos["hospital"].files.values()]).write_csv(file)

    async def test(sites: Sites) -> None:
        with pytest.raises(DeploymentError, match="silo 'hospital': ID p.* is in the tables of clients 'part-"):
            await sites.ask(ids.tolist())
        asker, own = await sites.asker(), set(pl.read_csv(job.silos["hospital"].files["part-1"].file)["person"])
        once = [name for name in ids.tolist() if name in own]
        asked = [*once[:5], next(name for name in ids.tolist() if name not in own), *once[5:9]]
        answers = await asyncio.gather(*(asker.ask(np.array([name])) for name in asked), return_exceptions=True)
        failed = [name for name, answer in zip(asked, answers, strict=True) if isinstance(answer, BaseException)]
        assert failed == [asked[5]], "another's mistake is not one's own"

    serve(job, folder, test, tables={SOUTH: file})


def test_an_id_may_be_asked_about_more_often_than_a_client_has_rows(
    trained: tuple[TableJob, Path, Model], tmp_path: Path
) -> None:
    job, folder, run = trained
    ids, _ = central(run, job)
    rows = pl.read_csv(job.silos["hospital"].files["part-1"].file)
    person = next(name for name in ids.tolist() if name in set(rows["person"]))
    rows.filter(pl.col("person") == person).write_csv(tmp_path / "one.csv")

    async def test(sites: Sites) -> None:
        alone = await sites.ask([person])
        scores = await sites.ask([person] * 3)
        torch.testing.assert_close(scores.values, alone.values.expand(3, -1), rtol=0, atol=1e-6)

    serve(job, folder, test, tables={SOUTH: tmp_path / "one.csv"})


def test_who_trains_or_has_no_whole_run_does_not_serve(trained: tuple[TableJob, Path, Model], tmp_path: Path) -> None:
    job, folder, _ = trained

    async def go() -> None:
        federation = Federation(job, tmp_path)
        federation.add_hub("bank")
        with pytest.raises(AbsentError, match="does not serve predictions, or not yet"):
            await Asker.open(MemoryHub(federation.remotes["bank"].service, Identity("bank")), "bank")

    run_virtually(go())
    with pytest.raises(JobError, match='the rows of data.source = "digits" have no IDs'):
        check_serves(load_job("digits"))
    block = folder / "insurer" / "blocks" / "insurer.safetensors"
    before = block.read_bytes()
    block.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    try:
        with pytest.raises(RunError, match="it is no longer what was written"):
            Sites(job, folder).add_hub("insurer")
    finally:
        block.write_bytes(before)


def test_the_silo_that_asks_is_one_of_the_job(trained: tuple[TableJob, Path, Model]) -> None:
    job, _, _ = trained
    table = job.as_table()
    assert job.predict_at == "bank"
    table["deployment"]["predict_at"] = "insurer"
    other = parse_job(table, "here")
    assert isinstance(other, TableJob)
    assert other.predict_at == "insurer"
    table["deployment"]["predict_at"] = "insurers"
    with pytest.raises(JobError, match="deployment.predict_at: 'insurers' is no silo; did you mean 'insurer'"):
        parse_job(table, "here")


def test_ids_are_read_from_tables_and_lists(trained: tuple[TableJob, Path, Model], tmp_path: Path) -> None:
    job, _, _ = trained
    (tmp_path / "ids.txt").write_text("7\n\n 12 \n")
    assert read_ids(tmp_path / "ids.txt", job, "bank").tolist() == [7, 12]
    (tmp_path / "ids.txt").write_text("007\n12\n")
    assert read_ids(tmp_path / "ids.txt", job, "bank").tolist() == ["007", "12"]
    (tmp_path / "ids.csv").write_text("name,person\nx,p1\ny,p2\n")
    assert read_ids(tmp_path / "ids.csv", job, "bank").tolist() == ["p1", "p2"]
    for name, text, why in (
        ("ids.TXT", "\n", "it holds no ID"),
        ("ids.txt", "x" * 300, "256 letters at most"),
        ("ids.csv", "name\nx\n", r"^--ids \S*ids.csv: it has no column 'person'"),
        ("ids.xlsx", "", "name a .csv or .parquet file"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(Exception, match=why):
            read_ids(tmp_path / name, job, "bank")


# Hostile messages


def test_a_client_refuses_what_a_hostile_hub_sends(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    ids = central(run, job)[0][:9].astype(np.str_)
    sites = Sites(job, folder)

    async def go() -> None:
        async with sites.running():
            pass

    run_virtually(go())
    server = sites.servers[SOUTH]
    model = sites.hubs["hospital"].model
    assert model.serve
    requests = [pack(model.serve), pack(LookUp(model.run, model.round, ids))]
    honest = pack(server.reply(requests[1]))
    for request in requests:
        for name, message in alterations(request):
            server.reply(requests[0])
            try:
                server.reply(message)
            except DeploymentError as error:
                if UNFORESEEN.search(str(error)):
                    raise AssertionError(name) from error
            server.reply(requests[0])
            again = pack(server.reply(requests[1]))
            assert all(torch.equal(again.tensors[key], tensor) for key, tensor in honest.tensors.items()), name
    wanted = pack(replace(model.serve, preparation=model.serve.preparation.replace(b'"hospital_b"', b'"person"')))
    with pytest.raises(RefusedError, match="which is no feature of the job"):
        server.reply(wanted)
    empty = torch.empty(0, dtype=torch.int64)
    strange = pack(FirstGradients(torch.zeros(1), empty, empty))
    with pytest.raises(RefusedError, match="where 'serve' or 'look up' is expected"):
        server.reply(strange)


def test_a_hub_refuses_what_others_answer_or_ask_amiss(trained: tuple[TableJob, Path, Model]) -> None:
    """Every variant is refused with the name of whoever sent it, or brings the honest scores."""
    job, folder, run = trained
    ids = central(run, job)[0][:6].astype(np.str_)

    async def test(sites: Sites) -> None:
        asker, bank, line = await sites.asker(), sites.hubs["bank"], sites.lines["bank", "insurer"]
        honest = (await asker.ask(ids)).values
        answers: list[Message] = []

        def keep(frame: Any) -> Any:
            answers.append(message_in(frame, 1 << 20))
            return frame

        line.alter = keep
        await asker.ask(ids)
        assert answers[0].kind == kind_of(SiloLookedUp)
        for name, message in alterations(answers[0]):
            line.alter = lambda frame, message=message: one_frame(message)  # type: ignore[misc]
            try:
                scores = await asker.ask(ids)
            except DeploymentError as error:
                if "insurer" not in str(error):
                    raise AssertionError(name) from error
            else:
                assert torch.equal(scores.values, honest) or "features" in name, name
            bank.peers._labels_only.clear()
        line.alter = lambda frame: frame
        question = pack(Predict(RUN, run.result.selected, ids), Stamp(SharedJob.of(job).fingerprint))
        look_up = pack(SiloLookUp(RUN, run.result.selected, ids), question.stamp)
        for to, who, asked in (("bank", "bank", question), ("insurer", "bank", look_up)):
            for name, message in alterations(asked):
                with suppress(RefusalError, UnreachableError):
                    await MemoryHub(sites.hubs[to], Identity(who)).predict(who, one_frame(message), 5.0)
                assert not sites.hubs[to].counters.under_way, name
        assert torch.equal((await asker.ask(ids)).values, honest)

    serve(job, folder, test)


def test_a_client_that_answers_amiss_is_left_out_and_named(trained: tuple[TableJob, Path, Model]) -> None:
    job, folder, run = trained
    own = set(pl.read_csv(job.silos["hospital"].files["part-1"].file)["person"])
    ids = np.array(sorted(own & set(central(run, job)[0].tolist()))[:4])

    async def test(sites: Sites) -> None:
        asker = await sites.asker()
        honest = (await asker.ask(ids)).values
        answers: list[Message] = []

        def keep(message: Message) -> Message:
            answers.append(message)
            return message

        sites.alter = (SOUTH, keep)
        await asker.ask(ids)
        for name, message in alterations(answers[0]):
            sites.alter = SOUTH, lambda real, message=message: message.stamped(real.stamp)
            try:
                scores = await asker.ask(ids)
            except DeploymentError as error:
                text = str(error)
                if "part-1" not in text:
                    raise AssertionError(name) from error
            else:
                assert torch.equal(scores.values, honest) or " of round " in name, name
            await sites.until_ready()

    serve(job, folder, test)
