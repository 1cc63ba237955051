"""Labels that never leave their silo, at real sites: the numbers of a simulation, and nobody sees what it must not."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sites.memory import Federation, run_virtually
from sites.tables import write_tables
from sites.test_rounds import ROUNDS, Watched, deployed, job, patient, same, set_up, simulated
from support import examples
from tdcd.core.network import Blocks
from tdcd.core.state import SiloState
from tdcd.data.holdout import Part
from tdcd.errors import LEARNED_NOTHING, DeploymentError, JobError
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.runs.reader import read_history
from tdcd.runs.store import load_blocks
from tdcd.sites.hub.link import Link
from tdcd.sites.hub.peers import Peers
from tdcd.sites.local_deployment import LocalFederation
from tdcd.sites.messages import frames as messages
from tdcd.sites.messages.frames import Frame, Message
from tdcd.sites.participants import check_job, read_set
from tdcd.sites.security.identity import Identity
from tdcd.sites.transport.wire.frames import to_wire


def keeping(wanted: Job, sharing: str, silo: str = "silo-1", **more: Any) -> Job:
    labels = wanted.labels.model_validate({"silo": silo, "sharing": sharing, **more})
    return parse_job(wanted.model_copy(update={"labels": labels}).model_dump(), "job")


@settings(max_examples=examples(10), deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["uniform", "samples"]),
    st.integers(1, 40),
    st.integers(1, 4),
    st.sampled_from(["exact", "stale"]),
)
def test_it_is_what_the_oracle_computes(
    silos: int, clients: int, averaging: str, batch: int, steps: int, sharing: str
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched = Watched(monkeypatch)
        table = job(silos, clients, averaging=averaging, batch_size=batch, local_steps=steps)
        kept = patient(keeping(table, sharing))
        result = deployed(Federation(kept, Path("unused")))
        same(result, simulated(kept, watched.agreed()))
        if sharing == "exact":  # and that is what labels everywhere give
            same(result, deployed(Federation(patient(table), Path("unused"))))


def registry(sharing: str, **training: Any) -> Job:
    """Two silos with features, and one that has labels only."""
    table = job(2, 3, **training).model_dump()
    table["labels"] = {"silo": "registry", "sharing": sharing}
    table["silos"]["registry"] = {"clients": 2}
    return parse_job(table, "job")


@pytest.mark.parametrize("sharing", ["exact", "stale", "shared"])
def test_a_silo_that_has_labels_only(sharing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watched = Watched(monkeypatch)
    wanted = patient(registry(sharing))
    federation = Federation(wanted, tmp_path)
    result = deployed(federation)
    assert result["registry"] == {}
    same(result, simulated(wanted, watched.agreed()))

    async def run() -> list[Any]:
        again = Federation(wanted, tmp_path / "again")
        await again.start()
        hubs = again.hubs.items()
        measured = await asyncio.gather(
            *(hub.evaluate(SiloState(result[silo]), lambda _: "worse") for silo, hub in hubs)
        )
        await again.stop()
        return [measurement.measures for measurement, _ in measured]

    text = run_virtually(run())
    assert all(bool(measures[Part.TEST]) == (sharing == "shared") for measures in text[:-1])
    assert text[-1][Part.TEST]["auroc"] > 0.5


def test_all_hubs_hear_that_a_silo_diverged(tmp_path: Path) -> None:
    wanted = patient(registry("stale", rate=1e300))
    federation = Federation(wanted, tmp_path)

    async def run() -> list[Any]:
        await federation.start()
        blocks = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}
        result: list[Any] = []
        for number in range(1, 5):
            hubs = federation.hubs.items()
            rounds = (hub.run_round(SiloState(blocks[silo]), number) for silo, hub in hubs)
            result = await asyncio.gather(*rounds, return_exceptions=True)
            if any(isinstance(one, Exception) for one in result):
                break
            blocks = {silo: state.weights for silo, (state, _) in zip(federation.hubs, result, strict=True)}
        await federation.stop()
        return result

    outcomes = run_virtually(run())
    assert [outcome.silos for outcome in outcomes] == [("silo-1", "silo-2")] * 3, (
        "all hubs, also one that trains nothing"
    )


def test_a_silo_with_labels_only_needs_embeddings_as_wide_as_there_are_classes(tmp_path: Path) -> None:
    table = registry("stale").model_dump()
    table["model"] = {"kind": "sites.test_labels:wide"}
    with pytest.raises(DeploymentError, match=r"embedding widths differ between silos: registry 2, silo-1 4"):
        deployed(
            Federation(parse_job(table | {"training": table["training"] | {"loss": "cross-entropy"}}, "job"), tmp_path)
        )


def wide(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(shape[0], outputs + 2)


@pytest.mark.parametrize("way", ["die", "hang"])
@pytest.mark.parametrize(
    ("sharing", "silo", "stage"),
    [
        ("exact", "silo-1", "embed"),
        ("exact", "silo-1", "later gradients"),
        ("exact", "silo-1", "descend"),
        ("exact", "silo-2", "embed"),
        ("exact", "silo-2", "step"),
        ("stale", "silo-1", "first gradients"),
        ("stale", "silo-2", "descend"),
        ("exact", "registry", "later gradients"),
    ],
)
def test_a_client_lost_in_any_stage(
    sharing: str, silo: str, stage: str, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its rows leave the mini-batch in all silos; everything else is as if they had never been in it."""
    watched = Watched(monkeypatch)
    wanted = registry(sharing) if silo == "registry" else keeping(job(), sharing)
    asked = 0

    def fault(who: Identity, message: Message) -> str:
        nonlocal asked
        here = (who, message.kind, message.stamp.round) == (Identity(silo, f"{silo}-1"), stage, 2)
        asked += here
        return way if here and asked == (2 if stage == "step" else 1) else ""

    federation = Federation(wanted, tmp_path, fault)
    result = deployed(federation)
    batches = watched.agreed()
    assert len(batches[1]) == 24
    assert len(batches[2]) < 24
    same(result, simulated(wanted, batches))
    assert any(f"'{silo}-1' is left out" in line for line in federation.log)


@settings(max_examples=examples(10), deadline=None)
@given(st.data())
def test_whatever_is_lost_what_is_left_is_computed(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        watched = Watched(monkeypatch)
        sharing = data.draw(st.sampled_from(["exact", "stale"]))
        steps = data.draw(st.integers(1, 3))
        wanted = data.draw(
            st.sampled_from([keeping(job(3, 3, local_steps=steps), sharing), registry(sharing, local_steps=steps)])
        )
        federation = Federation(wanted, Path("unused"))
        everyone = [Identity(silo, name) for silo, names in federation.names().items() for name in names[1:]]
        stages = st.sampled_from(["embed", "first gradients", "later gradients", "step", "descend"])
        moments = st.tuples(st.sampled_from(everyone), stages, st.integers(1, ROUNDS))
        faults = data.draw(st.dictionaries(moments, st.sampled_from(["die", "hang"]), max_size=3))
        federation.fault = lambda who, message: faults.get((who, message.kind, message.stamp.round), "")
        result = deployed(federation)
        same(result, simulated(wanted, watched.agreed()))


@pytest.mark.parametrize("tell", [False, True])
@pytest.mark.parametrize("label_only", [False, True])
def test_metrics_are_found_where_labels_are(tell: bool, label_only: bool, tmp_path: Path) -> None:
    from tdcd.core.rows import Rows
    from tdcd.engines.base import Judge, Measurement, Verdict
    from tdcd.training.metrics import measure

    kept = registry("stale") if label_only else keeping(job(3, 3), "stale")
    labels = kept.labels.model_copy(update={"tell_metrics": tell})
    wanted = patient(kept.model_copy(update={"labels": labels}))
    federation = Federation(wanted, tmp_path)
    judged: list[str] = []

    async def run() -> dict[str, tuple[Measurement, Verdict]]:
        await federation.start()
        blocks = {silo: hub.setup.first_block() for silo, hub in federation.hubs.items()}

        def judge(silo: str) -> Judge:
            def judged_here(measurement: Measurement) -> Verdict:
                judged.append(silo)
                assert measurement.measures[Part.VALIDATION]
                return "better"

            return judged_here

        hubs = federation.hubs.items()
        result = await asyncio.gather(*(hub.evaluate(SiloState(blocks[silo]), judge(silo)) for silo, hub in hubs))
        await federation.stop()
        return dict(zip(federation.hubs, result, strict=True))

    result = run_virtually(run())
    setup = set_up(wanted)
    label_holder = wanted.labels.silo or ""
    assert judged == [label_holder]
    assert {verdict for _, verdict in result.values()} == {"better"}  # all hubs act alike
    for part, samples in zip(Part, (setup.train, setup.validation, setup.test), strict=True):
        assert samples is not None
        scores = sum(n(n.initial(), samples.features[silo], training=False) for silo, n in setup.networks.items())
        assert isinstance(scores, torch.Tensor)
        expected = measure(wanted.training.objective, scores.detach(), samples.labels)
        area = expected.pop("auprc")
        for silo, (measurement, _) in result.items():
            known: Any = pytest.approx(expected, rel=1e-9) if tell or silo == label_holder else {}
            measures = dict(measurement.measures[part])
            if "auprc" in measures:
                assert abs(measures.pop("auprc") - area) <= measures.pop("auprc_error")
            assert measures == known
            assert measurement.rows[part] == Rows(len(samples), len(samples)), "all hubs know how many"


# What a silo without labels hears


class Heard:
    """Every byte that hubs hear of other hubs, and clients of their hub."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: dict[str, list[Message]] = {}
        self.bytes: dict[str, bytearray] = {}
        delivered, say, met = Peers.delivered, Link._send, Peers.meeting
        assemblers: dict[str, messages.Assembler] = {}

        async def heard_by_hub(peers: Peers, silo: str, stream: Any) -> Any:
            async def listening() -> Any:
                assembler = messages.Assembler(1 << 34)
                async for frame in stream:
                    self._note(f"hub {peers.silo}", frame, assembler)
                    yield frame

            return await delivered(peers, silo, listening())

        async def heard_by_client(link: Link, frame: Frame) -> None:
            who = f"client {link.name}"
            self._note(who, frame, assemblers.setdefault(f"{who} {id(link)}", messages.Assembler(1 << 34)))
            await say(link, frame)

        async def heard_at_meeting(peers: Peers, topic: str, brought: Any) -> Any:
            result = await met(peers, topic, brought)
            self.bytes.setdefault(f"hub {peers.silo}", bytearray()).extend(json.dumps(result).encode())
            return result

        monkeypatch.setattr(Peers, "delivered", heard_by_hub)
        monkeypatch.setattr(Link, "_send", heard_by_client)
        monkeypatch.setattr(Peers, "meeting", heard_at_meeting)

    def _note(self, who: str, frame: Frame, assembler: messages.Assembler) -> None:
        self.bytes.setdefault(who, bytearray()).extend(to_wire(frame).SerializeToString())
        if (message := assembler.feed(frame)) is not None:
            self.messages.setdefault(who, []).append(message)


def sums(folder: Path, labels: list[str], sharing: str, loss: str, clients: int = 3, **more: object) -> Job:
    """Write tables of two silos of so many clients, whose labels are easy to find among bytes."""
    generator = np.random.default_rng(3)
    people = len(labels)
    text = "".join(f", {key} = {json.dumps(value)}" for key, value in more.items())
    lines = [
        f'name = "sums"\nlabels = {{ silo = "bank", sharing = "{sharing}"{text} }}',
        '[data]\nsource = "tables"\nvalidation_fraction = 0.1',
        '[model]\nkind = "mlp"\nhidden = [4]',
        f'[training]\nloss = "{loss}"\nrounds = 6\nlocal_steps = 3\nbatch_size = 30\nrate = 0.0000001',
        'evaluate_every = 3\nprecision = "float64"',
        "[deployment]\nclient_deadline = 30\nhub_deadline = 120",
    ]
    for silo in ("bank", "insurer"):
        owner = generator.integers(clients, size=people)
        lines.append(f'[silos.{silo}]\nid = "person"' + ('\nlabel = "y"' if silo == "bank" else ""))
        lines.append(f"[silos.{silo}.clients]")
        for client in range(clients):
            mine = np.flatnonzero(owner == client)
            columns: dict[str, Any] = {"person": mine, f"{silo}_x": generator.normal(size=len(mine)).round(3)}
            if silo == "bank":
                columns["y"] = [labels[person] for person in mine]
            pl.DataFrame(columns).write_csv(folder / f"{silo}-{client}.csv")
            lines.append(f'part-{client} = "{silo}-{client}.csv"')
    (folder / "job.toml").write_text("\n".join(lines))
    return load_job(folder / "job.toml")


def patterns(labels: list[str]) -> Iterator[bytes]:
    """Yield every way in which a number could be written down."""
    for text in labels:
        number = float(text)
        yield text.encode()
        yield np.float64(number).tobytes()
        yield np.float32(number).tobytes()


def numbers(people: int = 150) -> list[str]:
    """Return labels that begin alike, as texts and as bytes, and unlike anything else."""
    return [f"{987654.321 + 1e-7 * person:.7f}" for person in range(people)]


@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_no_label_is_among_the_bytes_that_others_hear(
    sharing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A regression: every label is a number of its own. Nor does the bank's own hub see one."""
    heard = Heard(monkeypatch)
    labels = numbers()
    federation = Federation(sums(tmp_path, labels, sharing, "squared-error"), tmp_path)

    async def run() -> None:
        await federation.start()
        blocks = await federation.rounds(6)
        hubs = federation.hubs.items()
        await asyncio.gather(*(hub.evaluate(SiloState(blocks[silo]), lambda _: "worse") for silo, hub in hubs))
        record = {silo: hub.context.progress.evaluation for silo, hub in hubs}
        assert "train" in record["bank"]
        assert record["insurer"] == {"round": 6, "partial": {}}
        await federation.stop()

    run_virtually(run())
    assert {"hub insurer", "hub bank", *(f"client part-{k}" for k in range(3))} <= set(heard.bytes)
    for who in ("hub insurer", "hub bank"):
        result = bytes(heard.bytes[who])
        assert len(result) > 10_000
        assert not [pattern for pattern in patterns(labels) if pattern in result], who
    up = [m for m in heard.messages["hub insurer"] if m.kind == "silo gradients"]
    assert len(up) == 6 * (3 if sharing == "exact" else 1)
    for hub in federation.hubs.values():
        assert not hub.prepared.plan.labels
        assert not hub.prepared.model.labels
        assert hub.setup.tables
        assert all("y" not in keys.facts for keys in hub.setup.tables.keys.values())
    for identity, party in federation.sessions.items():
        if identity.silo == "insurer":
            assert party._ready is not None
            assert party._ready.label_holder is None
            assert party._ready.worker is not None
            assert not party._ready.worker.task.labels.any()


@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_nothing_but_answers_depends_on_the_labels(sharing: str, tmp_path: Path) -> None:
    """The same federation with other labels: until the first answers the others hear the same to the byte."""
    runs = []
    for flip in (False, True):
        folder = tmp_path / str(flip)
        folder.mkdir()
        labels = ["yes" if person % 3 == flip else "no" for person in range(150)]
        wanted = sums(folder, labels, sharing, "binary-cross-entropy", positive="yes", classes=["yes", "no"])
        wanted = wanted.model_copy(update={"deployment": wanted.deployment.model_copy(update={"alignment": "plain"})})
        with pytest.MonkeyPatch.context() as monkeypatch:
            heard = Heard(monkeypatch)
            federation = Federation(wanted, folder)

            async def run(federation: Federation = federation) -> None:
                await federation.start()
                await federation.rounds(1)
                await federation.stop()

            run_virtually(run())
        runs.append(heard.messages["hub insurer"])
    one, two = ({(m.kind, m.stamp.round, m.stamp.step): m for m in result if m.kind != "call"} for result in runs)
    assert set(one) == set(two)
    for key, message in one.items():
        gradients = key[0] == "silo gradients"
        assert message.facts == two[key].facts, key
        assert set(message.tensors) == set(two[key].tensors)
        for name, tensor in message.tensors.items():
            assert torch.equal(tensor, two[key].tensors[name]) == (not gradients or name != "rows"), (key, name)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no /proc to read a process's memory from")
@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_processes_over_tls_end_as_the_simulation_and_others_never_have_a_label(sharing: str, tmp_path: Path) -> None:
    labels = numbers()
    wanted = sums(tmp_path, labels, sharing, "squared-error", clients=2)
    training = wanted.training.model_copy(update={"rounds": 40, "evaluate_every": 20})
    patience = wanted.deployment.model_copy(update={"client_deadline": 600.0})  # while all are stopped, clocks go on
    wanted = wanted.model_copy(update={"training": training, "deployment": patience})
    federation = LocalFederation.laid_out(wanted, tmp_path / "deployed")
    federation.start(quiet=True)
    seen: dict[Identity, int] = {}
    searched = (b"987654.321", np.float64(float(labels[75])).tobytes()[3:])
    hub = federation.sites[Identity("bank")].log
    while not hub.exists() or "round 0:" not in hub.read_text():
        assert federation.processes[Identity("bank")].poll() is None, hub.read_text()
        time.sleep(0.05)
    for process in federation.processes.values():
        process.send_signal(signal.SIGSTOP)
    for who, process in federation.processes.items():
        every = [np.float64(float(label)).tobytes() for label in labels[::10]]
        # the bank's hub hears the mean of each client's labels, which begins like them
        seen[who], size = count_in_memory(process.pid, every if who == Identity("bank") else searched)
        assert size > 1 << 20, "it is over before it was looked at"
        process.send_signal(signal.SIGCONT)
    code = federation.wait(lambda line: None, seconds=240)
    logs = "\n".join(file.read_text() for file in federation_logs(tmp_path))
    assert code == LEARNED_NOTHING, logs  # the numbers are drawn, and say nothing of the rows
    expected = run_job(wanted).federation
    for silo, run in federation.runs.items():
        result = load_blocks(run)[silo]
        for name, tensor in expected.blocks[silo].items():
            assert torch.allclose(result[name], tensor, rtol=0, atol=1e-6), (silo, name)
    history = {silo: read_history(run) for silo, run in federation.runs.items()}
    for here, there in zip(history["bank"], expected.history, strict=True):
        assert here.test["loss"] == pytest.approx(there.test["loss"], rel=1e-9)
        assert here.better == there.better
    assert all(not line.train and not line.test for line in history["insurer"])
    assert sum((h[-1].traffic.total for h in history.values()), 0) == expected.kept.traffic.total
    assert [line.better for line in history["insurer"]] == [line.better for line in history["bank"]]
    assert len(seen) == 6
    found_at = {who for who, count in seen.items() if count}
    assert any(who.silo == "bank" and who.client for who in found_at), seen  # this way of looking finds labels
    assert not [who for who in found_at if who.silo == "insurer" or who.client is None], seen


def federation_logs(folder: Path) -> list[Path]:
    return list((folder / "deployed").rglob("*.log"))


def count_in_memory(pid: int, patterns: Sequence[bytes]) -> tuple[int, int]:
    """Count patterns in all that a process may write to; return also how many bytes that is."""
    count = size = 0
    try:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
            for line in maps:
                span, rights, *_ = line.split()
                start, end = (int(number, 16) for number in span.split("-"))
                if not rights.startswith("rw"):
                    continue
                try:
                    memory.seek(start)
                    part = memory.read(end - start)
                except (OSError, ValueError, OverflowError):
                    continue
                size += len(part)
                count += sum(map(part.count, patterns))
    except OSError:
        return count, size
    return count, size


# Settings


def test_classes_must_be_named_where_nobody_can_find_them_out(tmp_path: Path) -> None:
    labels = [("low", "mid", "high")[person % 3] for person in range(150)]
    with pytest.raises(JobError, match=r"labels\.classes: no site sees all private labels"):
        check_job(sums(tmp_path, labels, "stale", "cross-entropy"))
    with pytest.raises(JobError, match=r"labels\.classes: no site sees all private labels"):
        check_job(sums(tmp_path, labels, "exact", "binary-cross-entropy", positive="low"))
    named = sums(tmp_path, labels, "stale", "cross-entropy", classes=["low", "mid", "high"])
    same(deployed_six(Federation(named, tmp_path / "named")), dict(run_job(named).federation.blocks))


def deployed_six(federation: Federation) -> Blocks:
    async def run() -> Blocks:
        await federation.start()
        try:
            return await federation.rounds(6)
        finally:
            await federation.stop()

    return run_virtually(run())


def test_a_label_that_the_job_does_not_know_is_told_by_its_client_only(tmp_path: Path) -> None:
    labels = ["low" if person else "strange" for person in range(150)]
    named = sums(tmp_path, labels, "stale", "cross-entropy", classes=["low", "high"])
    federation = Federation(named, tmp_path / "named")
    record: dict[Identity, list[str]] = {}

    async def run() -> None:
        starting = asyncio.ensure_future(federation.start())
        await federation.until(lambda: len(federation.sessions) == 6)
        for who, party in federation.sessions.items():
            party.log = record.setdefault(who, []).append
        await federation.until(lambda: any("strange" in line for lines in record.values() for line in lines))
        starting.cancel()
        await federation.stop()

    run_virtually(run())
    (where,) = [who for who, lines in record.items() if any("strange" in line for line in lines)]
    assert where.silo == "bank"
    assert not any("strange" in line for line in federation.log)


def test_noise_at_real_sites_is_nobodys_to_draw_again(tmp_path: Path) -> None:
    runs = []
    for name in ("one", "two"):
        wanted = patient(keeping(job(), "stale", clip=1.0, noise=1.0))
        runs.append(deployed(Federation(wanted, tmp_path / name)))
    one, two = (next(iter(blocks["silo-2"].values())) for blocks in runs)
    assert not torch.allclose(one, two)


def test_the_pid_of_a_process_is_looked_at_with_care() -> None:
    pattern = "looked for " * 3
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60; :", pattern]) as process:
        count, size = count_in_memory(process.pid, [pattern.encode()])
        process.kill()
    assert count == 1
    assert size > 1 << 12
    assert count_in_memory(2**22 + 1, [pattern.encode()]) == (0, 0)


@pytest.mark.slow
def test_tables_with_three_silos_as_in_the_simulation(tmp_path: Path) -> None:
    shared = write_tables(tmp_path)
    for sharing in ("exact", "stale"):
        wanted = keeping(shared, sharing, "bank")
        expected = run_job(wanted).federation

        async def run(wanted: Job = wanted, sharing: str = sharing) -> Blocks:
            federation = Federation(wanted, tmp_path / sharing)
            await federation.start()
            result = await federation.rounds(12)
            await federation.stop()
            return result

        same(run_virtually(run()), expected.blocks, 1e-6)


@pytest.mark.parametrize(
    "tallies",
    [
        {},
        {"train": {}},
        {"train": {"rows": [0.0], "loss": [0.0]}},
        {"nothing": {"rows": [1.0]}},
        {"train": {"rows": [1e9], "loss": [0.0], "both": [0, 0], "truth": [0, 0], "said": [0, 0], "ranks": [0]}},
    ],
)
def test_sums_that_cannot_be_leave_their_client_out(
    tallies: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tdcd.sites.client.session import Session
    from tdcd.sites.messages.types import Judge, Tallies

    wanted = patient(keeping(job(2, 2), "stale"))
    federation, judge = Federation(wanted, tmp_path), Session._judge

    def spoilt(session: Session, request: Judge) -> Tallies:
        good = judge(session, request)
        if session.identity.client != "silo-1-1":
            return good
        return Tallies(tallies or {part: {**sums, "more": [1.0]} for part, sums in good.tallies.items()})

    monkeypatch.setattr(Session, "_judge", spoilt)

    async def run() -> Any:
        federation.add_everybody()
        hubs = federation.hubs
        await asyncio.gather(*(hub.setup.prepare(read_set(wanted)) for hub in hubs.values()))
        await asyncio.gather(*(hub.agree({}) for hub in hubs.values()))
        states = {silo: hub.setup.first_state() for silo, hub in hubs.items()}
        result = await asyncio.gather(*(hub.evaluate(states[silo], lambda _: "worse") for silo, hub in hubs.items()))
        await federation.stop()
        return result

    measured = run_virtually(run())
    assert measured[0][0].measures[Part.TEST]["accuracy"] <= 1
    assert any("client 'silo-1-1' is left out: " in line and " of " in line for line in federation.log)


def test_a_client_counts_no_bin_of_few_rows() -> None:
    from tdcd.data.holdout import Part
    from tdcd.sites.client.label_holder import LabelHolder
    from tdcd.sites.messages.frames import RefusedError
    from tdcd.sites.messages.types import Judge
    from tdcd.training.labels import Labels
    from tdcd.training.settings import Settings

    wanted = Settings(loss="binary-cross-entropy", rounds=1, rate=0.1, precision="float64")
    holder = LabelHolder(Labels(silo="bank", sharing="stale"), wanted, 1, {Part.TEST: (torch.arange(40) % 2).double()})
    ranked = torch.arange(1.0, 41.0).double().unsqueeze(1)

    def judge(*edges: float, rows: int = 1) -> dict[str, list[float]]:
        between = torch.tensor([edges] * rows, dtype=torch.float64)
        present = torch.ones(40, dtype=torch.uint8)
        return holder.judge(Judge(("test",), (ranked,), (ranked,), (present,), (between,))).tallies["test"]

    assert judge(20.5)["bin_rows"] == [20, 20]
    assert judge(20.5)["bin_positives"] == [10, 10]
    assert judge(20.5, np.inf)["bin_rows"] == [20, 20, 0]
    assert "bin_rows" not in judge()
    with pytest.raises(RefusedError, match="the hub asks for test counts of fewer than 10 of its rows"):
        judge(20.5, 21.5)
    for edges in ((20.5, 10.5), (np.nan,), tuple(range(200))):
        with pytest.raises(RefusedError, match="bins that are not in ascending order, or too many"):
            judge(*edges)
    with pytest.raises(RefusedError, match="bins that do not fit the scores"):
        judge(20.5, rows=2)
