"""What is known is kept: over a reconnect, over a restart of a client, and between evaluations."""

import asyncio
from pathlib import Path

import polars as pl
import pytest

from sites.memory import Federation, run_virtually
from sites.tables import write_tables
from sites.test_rounds import job, patient, same
from tdcd.core.network import Blocks
from tdcd.core.state import SiloState
from tdcd.jobs.run import run_job
from tdcd.sites.client.session import Session
from tdcd.sites.messages.frames import Message
from tdcd.sites.messages.packing import kind_of, unpack
from tdcd.sites.messages.types import ClientKeys, Score
from tdcd.sites.security.identity import Identity

WHO = Identity("bank", "part-1")


class Heard:
    """Notes what one client is asked, and what it replies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, who: Identity = WHO) -> None:
        self.requests: list[Message] = []
        self.replies: list[object] = []
        reply = Session.reply

        def heard(session: Session, request: Message) -> object:
            result = reply(session, request)
            if session.identity == who:
                self.requests.append(request)
                self.replies.append(result)
            return result

        monkeypatch.setattr(Session, "reply", heard)

    @property
    def kinds(self) -> list[str]:
        return [request.kind for request in self.requests]


def trained(federation: Federation, heard: Heard, *, again: bool, spoil: Path | None = None) -> Blocks:
    """Train for a round; cut a client's line, let it come back, and train on."""

    async def go() -> Blocks:
        await federation.start()
        try:
            await federation.rounds(1)
            await federation.lose(WHO)
            heard.requests.clear()
            heard.replies.clear()
            if spoil:
                spoil.write_text(spoil.read_text())  # the same rows, but nobody can know that
            federation.add_client(WHO, again=again)
            await federation.until(lambda: "part-1" in federation.hubs["bank"].context.clients.present())
            return await federation.rounds(3)
        finally:
            await federation.stop()

    return run_virtually(go())


def test_a_client_that_reconnects_is_ready_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = write_tables(tmp_path)
    heard = Heard(monkeypatch)
    trained(Federation(wanted, tmp_path / "runs"), heard, again=True)
    assert heard.kinds[0] == "resume"
    assert not {"request keys", "request survey", "begin"} & set(heard.kinds)
    assert {"embed", "descend"} <= set(heard.kinds)


def test_a_client_whose_table_was_written_meanwhile_reads_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = write_tables(tmp_path)
    heard = Heard(monkeypatch)
    trained(Federation(wanted, tmp_path / "runs"), heard, again=True, spoil=tmp_path / "bank-1.csv")
    assert heard.kinds[:3] == ["resume", "request keys", "begin"]


def test_a_client_that_was_started_again_does_not_send_its_ids_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = write_tables(tmp_path)
    heard = Heard(monkeypatch)
    trained(Federation(wanted, tmp_path / "runs"), heard, again=False)
    assert heard.kinds[:3] == ["resume", "request keys", "begin"]
    keys = heard.replies[1]
    assert isinstance(keys, ClientKeys)
    assert keys.unchanged
    assert not len(keys.ids)
    assert keys.facts == ()


def test_a_client_with_other_ids_sends_them_and_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = write_tables(tmp_path)
    heard, federation = Heard(monkeypatch), Federation(wanted, tmp_path / "runs")
    file = tmp_path / "bank-1.csv"

    async def go() -> None:
        await federation.start()
        await federation.lose(WHO)
        table = pl.read_csv(file)
        table.head(len(table) - 20).write_csv(file)
        heard.replies.clear()
        federation.add_client(WHO, again=True)
        await federation.until(lambda: federation.log.count("bank: client 'part-1' disconnected") == 2)
        await federation.stop()

    run_virtually(go())
    keys = heard.replies[1]
    assert isinstance(keys, ClientKeys)
    assert not keys.unchanged
    assert len(keys.ids)


def test_weights_are_sent_once_for_several_evaluations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    who = Identity("silo-1", "silo-1-1")
    wanted, heard = patient(job(2, 2)), Heard(monkeypatch, who)
    federation = Federation(wanted, tmp_path)

    async def go() -> None:
        await federation.start()
        states = {silo: hub.setup.first_state() for silo, hub in federation.hubs.items()}
        measured = []
        for number in range(1, 3):
            for _ in range(2):
                hubs = federation.hubs.items()
                result = await asyncio.gather(*(hub.evaluate(states[silo], lambda _: "worse") for silo, hub in hubs))
                measured.append([measures for measures, _ in result])
            rounds = await asyncio.gather(
                *(hub.run_round(states[silo], number) for silo, hub in federation.hubs.items())
            )
            states = {silo: SiloState(state.weights) for silo, (state, _) in zip(federation.hubs, rounds, strict=True)}
        assert measured[0] == measured[1]
        assert measured[2] == measured[3]
        assert measured[0] != measured[2]
        await federation.stop()

    run_virtually(go())
    scores = [unpack(request, Score) for request in heard.requests if request.kind == kind_of(Score)]
    assert [score.weights is None for score in scores] == [False, True, False, True]


def test_what_is_trained_is_what_the_simulation_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the client kept, its rows are those that it had."""
    wanted = write_tables(tmp_path)
    expected = run_job(wanted).federation.blocks
    federation, heard = Federation(wanted, tmp_path / "runs"), Heard(monkeypatch)

    async def go() -> Blocks:
        await federation.start()
        await federation.lose(WHO)
        federation.add_client(WHO, again=True)
        await federation.until(lambda: "part-1" in federation.hubs["bank"].context.clients.present())
        result = await federation.rounds(wanted.training.rounds)
        await federation.stop()
        return result

    result = run_virtually(go())
    assert "begin" in heard.kinds
    same(result, expected, 1e-6)
