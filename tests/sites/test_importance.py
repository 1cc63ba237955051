"""The importance of columns at real sites: what one place would measure, and nothing depends on it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

from sites.memory import Fault, Federation, run_virtually
from sites.tables import write_tables
from tdcd.core.seeds import derive
from tdcd.data.holdout import Part
from tdcd.errors import DeploymentError, JobError
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.runs.importance import Importances
from tdcd.runs.layout import BLOCKS, IMPORTANCE
from tdcd.runs.records import read_record
from tdcd.runs.store import save_blocks
from tdcd.sites.hub.evaluation import Evaluator, PartResult
from tdcd.sites.hub.importance import _Judge
from tdcd.sites.messages.frames import Message, RefusedError, Stamp
from tdcd.sites.messages.packing import pack
from tdcd.sites.messages.types import EVERY, Fall, Score, SiloScores
from tdcd.sites.security.identity import Identity

ROUNDS, REPEATS = 30, 3
COLUMNS = {"bank": ["income", "noise", "kind"], "shop": ["spent", "visits"]}


def one_client_each(folder: Path, loss: str, sharing: str) -> Job:
    """Two silos of one client each."""
    random = np.random.default_rng(5)
    ids, truth = [f"p{k:03}" for k in range(300)], random.normal(size=(300, 4))
    score = truth[:, 0] + truth[:, 1] + (truth[:, 3] > 0)
    label = (score > 0.5).astype(int) if loss == "binary-cross-entropy" else np.digitize(score, [-0.5, 1.0])
    bank = {"id": ids, "income": truth[:, 0], "noise": truth[:, 2], "kind": np.where(truth[:, 3] > 0, "a", "b")}
    pl.DataFrame({**bank, "y": label}).write_csv(folder / "bank.csv")
    pl.DataFrame({"id": ids, "spent": truth[:, 1], "visits": random.normal(size=300)}).write_csv(folder / "shop.csv")
    labels: dict[str, Any] = {"silo": "bank", "sharing": sharing}
    if sharing != "shared":
        labels |= {"classes": sorted({str(one) for one in label}), "tell_metrics": True}
    table = {
        "data": {"source": "tables", "test_fraction": 0.3},
        "labels": labels,
        "model": {"kind": "mlp", "hidden": [6]},
        "training": {
            "loss": loss, "rounds": ROUNDS, "local_steps": 4, "batch_size": 60, "rate": 0.5, "precision": "float64",
        },
        "deployment": {"importance": REPEATS, "alignment": "plain"},
        "silos": {
            "bank": {"id": "id", "label": "y", "clients": {"north": str(folder / "bank.csv")}},
            "shop": {"id": "id", "clients": {"main": str(folder / "shop.csv")}},
        },
    }  # fmt: skip
    return parse_job(table, "job")


def nobody_is_lost(who: Identity, message: Message) -> str:
    return ""


def measured(
    job: Job, folder: Path, rounds: int = ROUNDS, fault: Fault = nobody_is_lost
) -> tuple[Federation, dict[str, Importances]]:
    """Train, measure at the end as hubs do, and read what each has written."""
    federation = Federation(job, folder / "hubs", fault)

    async def go() -> None:
        try:
            await federation.start()
            blocks = await federation.rounds(rounds)
            for silo, block in blocks.items():
                save_blocks(folder / "hubs" / silo / BLOCKS, {silo: block}, "run")
            await asyncio.gather(*(hub.measure_importance() for hub in federation.hubs.values()))
        finally:
            await federation.stop()

    run_virtually(go())
    files = {silo: folder / "hubs" / silo / IMPORTANCE for silo in federation.hubs}
    return federation, {silo: read_record(file, Importances) for silo, file in files.items() if file.exists()}


@pytest.mark.parametrize(
    ("loss", "sharing"),
    [("binary-cross-entropy", "shared"), ("cross-entropy", "shared"), ("cross-entropy", "exact"),
     ("binary-cross-entropy", "exact")],
)  # fmt: skip
def test_it_is_what_one_place_measures_with_the_same_permutations(loss: str, sharing: str, tmp_path: Path) -> None:
    job = one_client_each(tmp_path, loss, sharing)
    _, records = measured(job, tmp_path)
    data, result = load_data(job), run_job(job).federation
    test = data.held_out[Part.TEST].loaded()
    y, several = test.labels.numpy(), loss == "cross-entropy"

    def measure(rows: dict[str, torch.Tensor]) -> tuple[float, np.ndarray]:
        z = result.scores(rows).double()
        if not several:
            return float(roc_auc_score(y, z[:, 0].numpy())), np.empty(0)
        by_class = [roc_auc_score(y == k, torch.softmax(z, 1)[:, k].numpy()) for k in range(3)]
        return float(accuracy_score(y, z.argmax(1).numpy())), np.array(by_class)

    rows = {silo: x.double() for silo, x in test.features.items() if isinstance(x, torch.Tensor)}
    score, by_class = measure(rows)
    for (silo, names), client in zip(COLUMNS.items(), ("north", "main"), strict=True):
        record = records[silo]
        assert (record.metric, record.rows, record.repeats, record.notes) == (
            "accuracy" if several else "auroc", len(y), REPEATS, ())  # fmt: skip
        assert record.within_clients
        assert record.score == pytest.approx(score, abs=1e-9)
        assert [one.column for one in record.entries] == ["", *names]
        outputs, start = data.federation.preparations[silo], 0
        for one in record.entries:
            width = next((len(c.outputs) for c in outputs.columns if c.name == one.column), rows[silo].shape[1])
            falls, class_falls = [], []
            for repeat in range(REPEATS):
                random = np.random.default_rng(derive(2021, "importance", silo, client, one.column, repeat))
                order, changed = random.permutation(len(y)), rows[silo].clone()
                here = slice(start, start + width) if one.column else slice(None)
                changed[:, here] = rows[silo][order][:, here]
                after, by_class_after = measure(rows | {silo: changed})
                falls.append(score - after)
                class_falls.append(by_class - by_class_after)
            start += width if one.column else 0
            assert one.mean == pytest.approx(np.mean(falls), abs=1e-9)
            assert one.deviation == pytest.approx(np.std(falls), abs=1e-9)
            assert list(one.classes) == (["0", "1", "2"] if several else [])
            assert np.allclose(list(one.classes.values()), np.mean(class_falls, axis=0), atol=1e-9)
    ranked = {one.column: one.mean for record in records.values() for one in record.sorted()}
    assert abs(ranked["noise"]) < 0.03
    assert min(ranked["income"], ranked["spent"]) > 0.1


def three(folder: Path, **more: Any) -> Job:
    write_tables(folder)
    return load_job(folder / "job.toml", {"deployment.importance": 1, "deployment.alignment": "plain", **more})


def dies_when(wanted: Callable[[Identity, Message], bool]) -> Fault:
    return lambda who, message: "die" if message.kind == "score" and wanted(who, message) else ""


def test_a_client_that_is_lost_meanwhile_leaves_fewer_rows(tmp_path: Path) -> None:
    lost = Identity("hospital", "part-2")
    fault = dies_when(lambda who, message: who == lost and message.facts.get("column", EVERY) > 0)
    federation, records = measured(three(tmp_path), tmp_path, 2, fault)
    assert set(records) == {"bank", "hospital", "insurer"}
    assert [one.column for one in records["hospital"].entries] == ["", "hospital_a", "hospital_b"]
    assert "were measured on" in records["hospital"].notes[0]
    assert records["bank"].notes == records["insurer"].notes == ()
    assert records["bank"].rows == federation.hubs["bank"].prepared.plan.counts[Part.TEST]


def test_columns_that_nobody_can_be_asked_about_are_named(tmp_path: Path) -> None:
    fault = dies_when(lambda who, message: who.silo == "hospital" and message.facts.get("column", EVERY) == 0)
    _, records = measured(three(tmp_path), tmp_path, 2, fault)
    assert [one.column for one in records["hospital"].entries] == [""]
    assert records["hospital"].notes == ("not measured, as clients were away: hospital_a, hospital_b",)
    assert [len(records[silo].sorted()) for silo in ("bank", "insurer")] == [2, 2]


class Summing:
    """Measures the mean of the scores of the rows that are there."""

    away = -1
    """A row whose label is not there."""

    def joined(self, part: Part, every: dict[str, SiloScores]) -> tuple[torch.Tensor, torch.Tensor]:
        there = torch.stack([scores.present[0] for scores in every.values()]).bool().all(0)
        return torch.stack([scores.rows[0] for scores in every.values()]).sum(0), there

    async def measure(self, scores: dict[Part, tuple[torch.Tensor, torch.Tensor]], stamp: Stamp) -> Any:
        z, there = scores[Part.TEST]
        there = there & (torch.arange(len(there)) != self.away)
        return {Part.TEST: PartResult({"loss": float(z[there].mean())}, int(there.sum()))}


def test_before_and_after_are_measured_on_the_same_rows() -> None:
    def scores(values: list[float], present: list[int]) -> SiloScores:
        return SiloScores(
            ("test",), (torch.tensor(values, dtype=torch.float64),), (torch.tensor(present, dtype=torch.uint8),)
        )

    evaluator: Any = Summing()
    first = {"bank": scores([1, 2, 3, 0], [1, 1, 1, 0]), "shop": scores([10, 20, 30, 40], [1, 1, 1, 1])}
    judge = _Judge(evaluator, Part.TEST, first)
    for changed, before, after, rows in [
        ({}, 22, 22, 3),
        ({"shop": scores([30, 20, 10, 40], [1, 1, 1, 1])}, 22, 22, 3),
        ({"shop": scores([30, 20, 0, 40], [1, 1, 0, 1])}, 16.5, 26.5, 2),  # one is lost
        ({"bank": scores([3, 1, 2, 9], [1, 1, 1, 1])}, 22, 22, 3),  # one is back that was not there at first
        ({"bank": scores([3, 0, 2, 0], [1, 0, 1, 0])}, 22, 22.5, 2),
        ({"bank": scores([0, 2, 1, 0], [0, 1, 1, 0])}, 27.5, 26.5, 2),  # as many, and others
    ]:
        fall = asyncio.run(judge.fall(changed, Stamp()))
        assert (fall.before, fall.after, fall.rows) == ({"loss": before}, {"loss": after}, rows)
    evaluator.away = 2
    fall = asyncio.run(judge.fall({"bank": scores([0, 3, 1, 0], [0, 1, 1, 0])}, Stamp()))
    assert (fall.before, fall.after, fall.rows) == ({"loss": 22}, {"loss": 23}, 1)


@pytest.mark.parametrize("silo", ["hospital", "bank"])  # the bank has the labels
@pytest.mark.parametrize("first", [True, False])
def test_a_hub_that_fails_ends_nothing(silo: str, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Evaluator.own_scores

    async def failing(self: Evaluator, block: Any, version: int, stamp: Any, parts: Any, dealt: Any = None) -> Any:
        if self.context.silo == silo and first == (dealt is None):
            raise DeploymentError("no client can do its part")
        return await honest(self, block, version, stamp, parts, dealt)

    monkeypatch.setattr(Evaluator, "own_scores", failing)
    federation, records = measured(three(tmp_path), tmp_path, 1)
    assert f"{silo}: the importance of columns was not measured: no client can do its part" in federation.log
    assert set(records) == (set() if first else {"bank", "hospital", "insurer"} - {silo})
    assert not any("timed out" in line for line in federation.log)


def test_what_the_hub_of_the_labels_makes_up_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lying(*_: Any) -> Fall:
        return Fall(10**6, {"auroc": 1.0}, {"auroc": 0.0}, (), ())

    monkeypatch.setattr(_Judge, "fall", lying)
    federation, records = measured(three(tmp_path), tmp_path, 1)
    assert any("the hub of silo 'bank' says that it measured 1,000,000 rows" in line for line in federation.log)
    assert "hospital" not in records


def test_hubs_that_hear_no_metrics_hear_of_no_importance(tmp_path: Path) -> None:
    job = three(tmp_path, **{"labels.sharing": "stale", "labels.tell_metrics": False, "labels.classes": ["0", "1"]})
    federation, records = measured(job, tmp_path, 2)
    assert set(records) == {"bank"}
    assert any(
        "hospital: " in line and "labels.tell_metrics keeps metrics from this hub" in line for line in federation.log
    )


def test_hostile_requests_are_refused(tmp_path: Path) -> None:
    federation = Federation(three(tmp_path), tmp_path / "hubs")

    async def start() -> None:
        await federation.start()
        await federation.stop()

    run_virtually(start())
    session = federation.sessions[Identity("hospital", "part-0")]
    for column, repeat, parts, says in [
        (2, 0, ("test",), "asks for column 2 of 2"),
        (-2, 0, ("test",), "asks for column -2 of 2"),
        (0, -1, ("test",), "for the time -1, of 1 that the job has"),
        (0, 1, ("test",), "for the time 1, of 1 that the job has"),
        (0, 0, ("train",), "deals values of training rows"),
        (EVERY, 0, ("test", "train"), "deals values of training rows"),
    ]:
        with pytest.raises(RefusedError, match=says):
            session.reply(pack(Score(1, None, parts, column, repeat)))
    honest = pack(Score(1, None, ("test",), 0, 0))
    for malformed in (0.5, "hospital_a", True, [0]):
        with pytest.raises(RefusedError, match="'score' without 'column', or with a malformed one"):
            session.reply(replace(honest, facts={**honest.facts, "column": malformed}))


def test_it_is_for_tables() -> None:
    with pytest.raises(JobError, match='deployment.importance goes with data.source = "tables" only'):
        load_job("digits", {"deployment.importance": 1})
