"""What goes wrong at the worst moment: hubs started again, clients that stall or leave, messages that are none."""

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support import federation_record
from tdcd.core.ledger import Traffic
from tdcd.core.state import SiloState, States
from tdcd.data.holdout import Part
from tdcd.engines.base import Judge, Measurement, RewoundError, Verdict
from tdcd.errors import DataError, DeploymentError, TdcdError
from tdcd.runs.reader import read_history
from tdcd.runs.store import Checkpoint, RunDirectory
from tdcd.sites.client.main import run_client
from tdcd.sites.client.process import ClientProcess
from tdcd.sites.client.session import Session
from tdcd.sites.event_loop import now
from tdcd.sites.hub import align as aligning
from tdcd.sites.hub.clients import Clients, Request
from tdcd.sites.hub.engine import HubEngine
from tdcd.sites.hub.hub import Hub
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.peers import Peer, Peers
from tdcd.sites.logs import _Human
from tdcd.sites.messages.calls import Hello, Opening
from tdcd.sites.messages.frames import Assembler, Message, RefusedError, Stamp, frames
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.types import (
    ClientKeys,
    Descend,
    Evaluated,
    RequestKeys,
    RequestSurvey,
    SiloEmbeddings,
    SurveyReply,
    Weights,
)
from tdcd.sites.participants import read_set
from tdcd.sites.security.identity import Identity
from tdcd.sites.security.tls import Open
from tdcd.sites.shared_job import SharedJob
from tdcd.sites.site_file import ClientSite
from tdcd.sites.transport.base import UnreachableError
from tdcd.sites.transport.grpc import GrpcHub
from tdcd.sites.transport.memory import MemoryHub, MemoryStream
from tdcd.training.loop import Loop
from tdcd.training.settings import Settings

from .memory import Federation, run_virtually
from .tables import write_tables
from .test_peers import NobodyKnows, World, note
from .test_rounds import job

# Checkpoints


def save(directory: RunDirectory, number: int) -> None:
    directory.save(Checkpoint(number, {"a": SiloState({"w": torch.zeros(2)})}, 0.0, Traffic(), {}))


def test_checkpoints_of_a_future_that_did_not_happen_are_forgotten(tmp_path: Path) -> None:
    a, b = (RunDirectory(tmp_path / name, {"x": 1}, is_hub=True) for name in "ab")
    for hub in (a, b):
        hub.path.mkdir()
        for number in (50, 100):
            save(hub, number)
    save(a, 130)  # b was killed after 100: both go on there, and b is killed once more
    a.forget_after(100)
    assert list(a.checkpoints()) == [100]
    save(a, 120)
    assert max({*a.checkpoints()} & {*b.checkpoints()}) == 100
    a.forget_after(0)
    assert not a.checkpoints()


async def both(*agreements: Coroutine[Any, Any, tuple[int, str]]) -> None:
    """Wait for both hubs; each must fail."""
    first, second = await asyncio.gather(*agreements, return_exceptions=True)
    assert isinstance(second, DeploymentError)
    assert isinstance(first, DeploymentError)
    raise first


def test_hubs_without_a_common_round_do_not_begin_anew_untold(tmp_path: Path) -> None:
    federation = Federation(job(), tmp_path)

    async def go() -> None:
        await federation.start()
        one, two = federation.hubs.values()
        lost = r"silo 'silo-1' has (10|10, 20); silo 'silo-2' has none\): did the hub of silo silo-2 lose its run"
        with pytest.raises(DeploymentError, match=lost):
            await both(one.agree({0: "run", 10: "run"}), two.agree({}))
        with pytest.raises(DeploymentError, match=lost):
            await both(one.agree({0: "run", 10: "run", 20: "run"}), two.agree({0: "run"}))
        old = r"silo 'silo-1' has 10, 20; silo 'silo-2' has 10\): .* put back from an old backup\?"
        with pytest.raises(DeploymentError, match=old):
            await both(one.agree({0: "run", 10: "new", 20: "new"}), two.agree({0: "other", 10: "old"}))
        for mine, theirs, start in (
            ({0: "run", 10: "a"}, {0: "run"}, 0),  # the other may have been stopped just before its first checkpoint
            ({0: "run", 10: "a", 20: "b"}, {0: "run", 20: "b"}, 20),
            ({0: "run", 10: "a", 20: "b"}, {0: "run", 10: "a", 20: "c"}, 10),  # another 20 than this one's
            ({0: "run"}, {0: "other"}, 0),  # neither has done anything yet
            ({0: "run"}, {}, 0),
        ):
            (first, lineage), (second, same) = await asyncio.gather(one.agree(mine), two.agree(theirs))
            assert first == second == start
            assert lineage == same
            assert lineage not in {*mine.values(), *theirs.values()}
        await federation.stop()

    run_virtually(go())


class Rewinding:
    """Goes back to round 10 once; the second time everything is a little worse."""

    compute_plan: Mapping[str, str] = {}

    def __init__(self, at: int) -> None:
        self.at, self.done, self.again = at, 0, False

    def agree(self, checkpoints: Any) -> tuple[int, str]:
        self.done = 10 if self.again else 0
        return self.done, "run"

    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        if number == self.at and not self.again:
            self.again = True
            raise RewoundError
        self.done = number
        return states, Traffic()

    def conclude(self, number: int, selected: int) -> bool:
        assert (number, selected) == (30, 10)
        return True

    def evaluate(self, states: States, judge: Judge) -> tuple[Measurement, Verdict]:
        first = {0: 1.0, 5: 0.8, 10: 0.5, 15: 0.45, 20: 0.4, 25: 0.3, 30: 0.2}
        loss = first[self.done] + (0.3 if self.again and self.done > 10 else 0.0)
        record = Measurement({Part.TRAIN: {"loss": loss}, Part.VALIDATION: {"loss": loss}, Part.TEST: {}}, {})
        return record, judge(record)


def test_all_hubs_keep_the_best_of_what_really_happened(tmp_path: Path) -> None:
    settings = Settings(
        loss="squared-error", rounds=30, rate=0.1, evaluate_every=5, checkpoint_every=10, select="best", local_steps=1
    )
    kept = {}
    for at in (11, 16, 23, 26):  # stopped before or after evaluations that did not happen after all
        with RunDirectory.open(tmp_path / str(at), {"x": 1}, resume=True, is_hub=True) as directory:
            loop = Loop(Rewinding(at), settings, {}, [], lambda: {"s": {"w": torch.zeros(1)}})
            loop.directory = directory
            loop.federation = federation_record()
            loop.begin()
            kept[at] = loop.run()[0]
        assert len(list((tmp_path / str(at)).glob("best*"))) <= 3
    assert set(kept.values()) == {10}


# Hubs


async def trained(federation: Federation, folder: Path, spoilt: Callable[[Hub], None] = lambda _: None) -> list[str]:
    """Train with checkpoints; return how it ends at every hub."""
    federation.add_everybody()
    await asyncio.gather(*(hub.setup.prepare(read_set(federation.job)) for hub in federation.hubs.values()))
    running, settings = asyncio.get_running_loop(), federation.job.training

    def train(hub: Hub) -> str:
        def run(coroutine: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, running).result()

        network = hub.prepared.model.network
        networks = {hub.context.silo: network} if network else {}
        loop = Loop(HubEngine(hub, run), settings, networks, [], lambda: {hub.context.silo: hub.setup.first_block()})
        table = federation.job.as_table()
        with RunDirectory.open(folder / hub.context.silo, table, resume=True, is_hub=True) as loop.directory:
            try:
                loop.federation = federation_record()
                loop.begin()
                spoilt(hub)
                loop.run()
            except TdcdError as error:
                return str(error)
            return "finished"

    ended = await asyncio.gather(*(asyncio.to_thread(train, hub) for hub in federation.hubs.values()))
    await federation.stop()
    return ended


@pytest.mark.slow
def test_an_evaluation_that_only_some_hubs_have_is_done_again(tmp_path: Path) -> None:
    work = job(silos=3, clients=2, evaluate_every=2, checkpoint_every=4)

    def stopped(hub: Hub) -> None:
        """Stop a hub as it waits for the metrics after round 2; the others go on waiting for it."""
        if hub.context.silo != "silo-2":
            return
        receive = hub.context.peers.receive

        async def received(silo: str, kind: type, stamp: Stamp) -> Any:
            if kind is Evaluated and stamp.round == 2:

                async def gone(*_: Any) -> Any:
                    raise UnreachableError("it is gone")

                hub.context.peers.delivered = gone  # type: ignore[method-assign,assignment]
                raise DeploymentError("stopped by its operator")
            return await receive(silo, kind, stamp)

        hub.context.peers.receive = received  # type: ignore[method-assign,assignment]

    first = run_virtually(trained(Federation(work, tmp_path, hub_deadline=2.0), tmp_path, stopped))
    assert "finished" not in first
    assert run_virtually(trained(Federation(work, tmp_path, hub_deadline=20.0), tmp_path)) == ["finished"] * 3
    evaluated = [[line.round for line in read_history(tmp_path / silo)] for silo in work_silos(work)]
    assert evaluated[0] == evaluated[1] == evaluated[2]
    assert evaluated[0] == sorted({*range(0, work.training.rounds, 2), work.training.rounds})


def work_silos(work: Any) -> list[str]:
    return list(Federation(work, Path()).names())


def test_an_evaluation_waits_for_somebody_to_measure_on(tmp_path: Path) -> None:
    fallen: list[Identity] = []

    def fault(who: Identity, question: Message) -> str:
        if question.kind == "score" and who.silo == "silo-2" and question.stamp.round == 2 and not fallen:
            fallen.append(who)
            return "die"
        return ""

    federation = Federation(job(silos=2, clients=1, evaluate_every=2), tmp_path, fault)

    async def go() -> list[str]:
        training = asyncio.ensure_future(trained(federation, tmp_path / "runs"))
        await federation.until(lambda: bool(fallen), 30)
        await asyncio.sleep(0.3)
        federation.add_client(fallen[0])
        return await training

    assert run_virtually(go()) == ["finished"] * 2


def test_a_message_may_come_before_the_news_that_a_meeting_is_over() -> None:
    class Slow(NobodyKnows):
        async def meet(self, hello: Hello, timeout: float) -> Opening:
            opening = await super().meet(hello, timeout)
            if hello.silo == "c":
                await asyncio.sleep(0.1)
            return opening

    async def go() -> None:
        world = World("abc", deadline=5.0)
        world.stubs["a"] = Slow()
        for name in "abc":
            world.start(name)

        async def met(name: str) -> list[str]:
            await world.hubs[name].meeting("start", {})
            world.hubs[name].advance(1)
            return sorted(await world.hubs[name].exchange(*note(1, 1.0)))

        assert await asyncio.gather(*map(met, "abc")) == [["b", "c"], ["a", "c"], ["a", "b"]]

    run_virtually(go())


@pytest.mark.parametrize("late", [False, True])
def test_a_hub_is_started_again_during_the_alignment(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third hub may hear the call to the next meeting before it hears that the first is over."""
    federation, victim, hung = Federation(write_tables(tmp_path), tmp_path / "runs"), "insurer", asyncio.Event()
    privately, delays = aligning._privately, {name: 0.5 * late for name in federation.names() if name != victim}

    class Late(MemoryHub):
        async def meet(self, hello: Hello, timeout: float) -> Opening:
            opening = await super().meet(hello, timeout)
            await asyncio.sleep(delays.pop(hello.silo, 0.0))
            return opening

    federation.remotes[min(federation.names())] = Late()

    async def hanging(silo: str, *more: Any) -> Any:
        if silo == victim and not hung.is_set():
            hung.set()
            await asyncio.sleep(100)
        return await privately(silo, *more)

    monkeypatch.setattr(aligning, "_privately", hanging)

    async def go() -> None:
        names = federation.names()
        federation.add_everybody()
        tasks = {silo: asyncio.ensure_future(hub.setup.prepare(None)) for silo, hub in federation.hubs.items()}
        await hung.wait()
        tasks[victim].cancel()
        for client in names[victim]:
            federation._tasks[Identity(victim, client)].cancel()
        await asyncio.sleep(0.05)
        hub = federation.add_hub(victim)
        for client in names[victim]:
            federation.add_client(Identity(victim, client))
        tasks[victim] = asyncio.ensure_future(hub.setup.prepare(None))
        await asyncio.wait_for(asyncio.gather(*tasks.values()), 30)
        assert len({hub.prepared.plan.fingerprint for hub in federation.hubs.values()}) == 1
        await federation.stop()

    run_virtually(go())


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (lambda tensors: {k: v for k, v in tensors.items() if k != "lost"}, "without 'lost'"),
        (lambda tensors: {**tensors, "lost": torch.zeros(2, 2, dtype=torch.int64)}, "not a list of samples"),
        (lambda tensors: {**tensors, "lost": torch.tensor([0.5])}, "not a list of samples"),
        (lambda tensors: {**tensors, "lost": torch.tensor([10**9])}, "not in the mini-batch"),
        (lambda tensors: {**tensors, "rows": torch.zeros(3)}, "rows: torch.float32 of shape"),
        (lambda tensors: {**tensors, "phi": torch.zeros(3)}, "unexpected field 'phi'"),
        (lambda tensors: {k: v for k, v in tensors.items() if k != "rows"}, "rows: nothing, not"),
    ],
)
def test_a_strange_message_of_a_hub_is_refused(
    spoilt: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    federation, push = Federation(job(), tmp_path, hub_deadline=2.0), Peers._push

    async def spoiling(peers: Peers, peer: Peer, message: Message, *more: Any, **named: Any) -> None:
        if peers.silo == "silo-2":
            message = Message(message.kind, message.facts, spoilt(message.tensors), message.stamp)
        await push(peers, peer, message, *more, **named)

    async def go() -> None:
        await federation.start()
        monkeypatch.setattr(Peers, "_push", spoiling)
        hub, other = federation.hubs.values()
        task = asyncio.ensure_future(other.run_round(other.setup.first_state(), 1))
        with pytest.raises(RefusedError, match=why):
            await hub.run_round(hub.setup.first_state(), 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await federation.stop()

    run_virtually(go())


# Clients


def keys_with(**changed: Any) -> Callable[[object], object]:
    return lambda reply: replace(reply, **changed) if isinstance(reply, ClientKeys) else reply


def survey_of(report: Any) -> Callable[[object], object]:
    text = json.dumps(report).encode()
    return lambda reply: SurveyReply(text) if isinstance(reply, SurveyReply) else reply


@pytest.mark.parametrize(
    "spoilt",
    [
        keys_with(ids=np.zeros(5, dtype=np.float32)),
        keys_with(ids=np.array(3)),
        keys_with(facts=(np.zeros(1, dtype=np.int64),)),
        keys_with(facts=()),
        keys_with(named=(), facts=()),
        keys_with(ids=np.array(["x" * 300])),
        keys_with(unchanged=True),
        survey_of({"facts": {}, "empty": [], "problems": []}),
        survey_of({"facts": {}, "empty": 7, "problems": 7}),
        survey_of({"facts": {}, "empty": {"unasked": 1}, "problems": {}}),
        survey_of([]),
    ],
)
def test_a_strange_answer_before_the_first_round_stops_nobody(
    spoilt: Callable[[object], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, reply = Federation(write_tables(tmp_path), tmp_path / "runs", hub_deadline=20.0), Session.reply
    strange = Identity("bank", "part-1")

    def spoilt_reply(session: Session, request: Message) -> object:
        result = reply(session, request)
        return spoilt(result) if session.identity == strange else result

    monkeypatch.setattr(Session, "reply", spoilt_reply)

    async def go() -> None:
        federation.add_everybody()
        preparing = asyncio.gather(*(hub.setup.prepare(None) for hub in federation.hubs.values()))
        await federation.until(lambda: "bank: client 'part-1' disconnected" in federation.log, 20)
        federation._tasks[strange].cancel()
        monkeypatch.setattr(Session, "reply", reply)
        federation.add_client(strange)
        await preparing
        await federation.stop()

    run_virtually(go())


def test_a_hub_that_is_started_again_does_not_wait_for_all_clients(tmp_path: Path) -> None:
    work = write_tables(tmp_path)
    work = work.model_copy(update={"deployment": work.deployment.model_copy(update={"client_deadline": 2.0})})
    first, again = Federation(work, tmp_path / "runs"), Federation(work, tmp_path / "runs", hub_deadline=20.0)
    away = Identity("bank", "part-1")

    async def begin() -> None:
        await first.start()
        await first.stop()

    async def go_on() -> None:
        again.add_everybody(but=away)
        await asyncio.gather(*(hub.setup.prepare(None) for hub in again.hubs.values()))
        await asyncio.gather(*(hub.agree({}) for hub in again.hubs.values()))
        await again.rounds(1)
        await again.stop()

    run_virtually(begin())
    run_virtually(go_on())
    for silo, hub in again.hubs.items():
        before, plan = first.hubs[silo].prepared.plan, hub.prepared.plan
        assert plan.holdings.keys() == before.holdings.keys()
        assert all(
            (numbers == before.holdings[name][part]).all()
            for name, held in plan.holdings.items()
            for part, numbers in held.items()
        )
        assert {part: values.tolist() for part, values in plan.labels.items()} == {
            part: values.tolist() for part, values in before.labels.items()
        }
    assert again.hubs["bank"].context.clients.left_out == {"part-1": 1}


@pytest.mark.parametrize(
    ("data", "why"),
    [(None, "its site file names no table"), ("lost.csv", "lost.csv"), ("other.csv", "it has no column 'person'")],
)
def test_a_client_looks_at_its_table_before_it_dials(data: str | None, why: str, tmp_path: Path) -> None:
    work = write_tables(tmp_path)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    site = ClientSite(data=data and str(tmp_path / data))
    with pytest.raises(DataError, match=why):
        run_client(work, "bank", "part-0", site, insecure=True)


def test_a_second_process_takes_a_clients_place() -> None:
    async def welcome(_: Link) -> None:
        return

    async def go() -> None:
        clients = Clients("bank", ("north",), "job", 2.0, lambda _: None, welcome)
        one = asyncio.ensure_future(clients.attend("north", MemoryStream.pair()[0]))
        await asyncio.sleep(0.01)
        two = asyncio.ensure_future(clients.attend("north", MemoryStream.pair()[0]))
        with pytest.raises(RefusedError, match="another process has come as client 'north', and takes its place"):
            await asyncio.wait_for(one, 5)
        assert clients.present() == {"north"}
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)

    run_virtually(go())


def test_a_client_tells_only_what_its_own_job_says(tmp_path: Path) -> None:
    work = write_tables(tmp_path)
    who, site = Identity("insurer", "part-0"), ClientSite(data=str(tmp_path / "insurer-0.csv"))
    session = Session(work, who, site, lambda _: None)
    strange = replace(pack(RequestKeys("")), facts={"known": "", "label": "insurer_a", "split": "insurer_b"})
    with pytest.raises(RefusedError, match="unexpected field 'label'"):
        session.reply(strange)
    keys = session.reply(pack(RequestKeys("")))
    assert isinstance(keys, ClientKeys)
    assert (keys.named, keys.facts) == ((), ())
    common = torch.ones(len(keys.ids), dtype=torch.uint8)
    parts = torch.zeros(len(common), dtype=torch.int8)
    with pytest.raises(RefusedError, match="'person', which is no feature of the job"):
        session.reply(pack(RequestSurvey(("person",), "U", common, parts)))


def test_a_client_that_comes_back_in_the_middle_of_a_round_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, who = Federation(job(silos=2, clients=1), tmp_path), Identity("silo-1", "silo-1-1")
    send = Peers.send
    cut: list[Identity] = []

    async def slow(peers: Peers, silo: str, message: object, stamp: Stamp) -> None:
        if peers.silo == "silo-2" and isinstance(message, SiloEmbeddings) and stamp.round == 2 and not cut:
            cut.append(who)
            federation._tasks[who].cancel()
            await asyncio.sleep(0.05)
            federation.add_client(who, again=True)  # the same process, another stream
            await federation.until(lambda: "silo-1-1" in federation.hubs["silo-1"].context.clients.present())
        await send(peers, silo, message, stamp)

    monkeypatch.setattr(Peers, "send", slow)

    async def go() -> None:
        await federation.start()
        await federation.rounds(4)
        await federation.stop()

    run_virtually(go())
    assert cut


def test_a_client_that_stalls_in_a_large_answer_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tdcd.sites.hub.clients.LARGE", 0)
    monkeypatch.setattr("tdcd.sites.messages.frames.CHUNK", 64)

    async def welcome(_: Link) -> None:
        return

    async def go() -> tuple[set[str], set[str], dict[str, int], float]:
        clients = Clients("bank", ("bad", "one", "two"), "job", 2.0, lambda _: None, welcome)
        pairs = {name: MemoryStream.pair() for name in clients.names}
        lines = {name: near for name, (near, _) in pairs.items()}
        attending = [asyncio.ensure_future(clients.attend(name, far)) for name, (_, far) in pairs.items()]
        while len(clients.present()) < 3:
            await asyncio.sleep(0.01)

        async def answering(name: str) -> None:
            frame = await lines[name].receive()
            assert frame is not None
            if name != "bad":
                await asyncio.sleep(0.05)  # the bad one is first
            for number, reply in enumerate(frames(pack(Weights((torch.ones(100),)), _stamp_of(frame)))):
                await lines[name].send(reply)
                if name == "bad" and number == 1:
                    return

        answers = [asyncio.ensure_future(answering(name)) for name in lines]
        taken: dict[str, int] = {}

        def take(name: str, _: str, tensor: Tensor) -> None:
            taken[name] = tensor.numel()

        request = Request(Descend(None), Weights, 1000, lambda _: None)
        began = now()
        result, lost = await clients.ask(dict.fromkeys(lines, request), Stamp(), take)
        took = now() - began
        for task in (*attending, *answers):
            task.cancel()
        await asyncio.gather(*attending, *answers, return_exceptions=True)
        return set(result), set(lost), taken, took

    result, lost, taken, took = run_virtually(go())
    assert (result, lost, taken) == ({"one", "two"}, {"bad"}, {"one": 100, "two": 100})
    assert took < 6


def _stamp_of(frame: Any) -> Any:
    question = Assembler(1 << 20).feed(frame)
    assert question is not None
    return question.stamp


HUB = """
import asyncio, sys
import grpc
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.frames import frames
from tdcd.sites.messages.types import Descend
from tdcd.sites.transport.wire.frames import to_wire
from tdcd.sites.transport.wire import tdcd_pb2_grpc

class Talkative(tdcd_pb2_grpc.HubServicer):
    async def Attend(self, _, context):
        await context.read()
        while True:
            for frame in frames(pack(Descend(None))):
                await context.write(to_wire(frame))
            await context.read()
            await asyncio.sleep(0.05)

async def main():
    server = grpc.aio.server()
    tdcd_pb2_grpc.add_HubServicer_to_server(Talkative(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


def test_a_client_waits_for_a_hub_that_was_killed_however_long_it_was_there() -> None:
    with subprocess.Popen([sys.executable, "-c", HUB], stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdout
        port = int(hub.stdout.readline())
        parts: list[str] = []
        answers: list[str] = []

        class Answering:
            identity = Identity("silo-1", "c")
            site = ClientSite(hub=f"127.0.0.1:{port}")
            most = 1 << 20

            def reply(self, request: Message) -> Weights:
                answers.append(request.kind)
                return Weights(())

        patience = 0.5
        shared, remote = SharedJob.of(job()), GrpcHub(Open(Answering.identity), Answering.site.hub, "silo-1")
        process = ClientProcess(Answering(), shared, remote, parts.append, patience)  # type: ignore[arg-type]

        async def until(done: Callable[[], bool]) -> None:
            end = time.monotonic() + 30
            while not done():
                assert time.monotonic() < end, parts
                await asyncio.sleep(0.02)

        async def go() -> None:
            running = asyncio.ensure_future(process.run())
            await until(lambda: bool(answers))
            await asyncio.sleep(2 * patience)
            hub.kill()
            await until(lambda: "lost the connection to the hub; reconnecting" in parts)
            assert not running.done()
            with pytest.raises(DeploymentError, match="was not reached for 0.5 seconds"):
                await asyncio.wait_for(running, 30)

        asyncio.run(go())


def test_what_comes_from_elsewhere_does_not_rule_the_terminal() -> None:
    record = logging.LogRecord("bank", logging.INFO, "", 0, "left out: \x1b[2J\nbank · all is well", None, None)
    assert _Human().format(record).endswith("left out: \\x1b[2J\\nbank · all is well")
