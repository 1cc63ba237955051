"""Evaluations that lack the rows of absent clients: all hubs record how many, and they decide nothing."""

import asyncio
from pathlib import Path

import pytest

from sites.memory import Federation, run_virtually
from sites.test_labels import keeping
from sites.test_mishaps import trained
from sites.test_rounds import ROUNDS, job
from tdcd.cli.status import _describe_evaluation
from tdcd.core.rows import Rows
from tdcd.data.holdout import Part
from tdcd.engines.base import Judge, Measurement, Verdict
from tdcd.jobs.data import load_data
from tdcd.jobs.schema import Job
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.records import Evaluation
from tdcd.sites.messages.frames import Message
from tdcd.sites.prometheus import HubCollector
from tdcd.sites.security.identity import Identity
from tdcd.training.callbacks import Callback
from tdcd.training.loop import Loop
from tdcd.training.settings import Settings

AWAY = Identity("silo-2", "silo-2-1")


def deployed(wanted: Job, folder: Path, away: int | None) -> tuple[Federation, dict[str, list[Evaluation]]]:
    """Train at hubs; in the evaluation after a round, one client hangs."""

    def fault(who: Identity, message: Message) -> str:
        return "hang" if (who, message.kind, message.stamp.round) == (AWAY, "score", away) else ""

    federation = Federation(wanted, folder, fault)
    assert asyncio.run(trained(federation, folder)) == ["finished"] * len(federation.hubs)
    return federation, {silo: read_history(folder / silo) for silo in federation.hubs}


@pytest.mark.parametrize("labels", ["shared", "stale"])
def test_the_best_weights_are_not_those_of_a_partial_evaluation(labels: str, tmp_path: Path) -> None:
    wanted = job(evaluate_every=1, select="best", rate=0.2, batch_size=200)
    wanted = wanted if labels == "shared" else keeping(wanted, labels)
    _, undisturbed = deployed(wanted, tmp_path / "whole", None)
    federation, histories = deployed(wanted, tmp_path / "partial", ROUNDS)
    for silo in federation.hubs:
        assert [line.better for line in undisturbed[silo]] == [True] * (ROUNDS + 1), "the loss falls to the end"
        outcome = read_outcome(tmp_path / "whole" / silo)
        assert outcome
        assert outcome.selected == ROUNDS
        outcome = read_outcome(tmp_path / "partial" / silo)
        assert outcome
        assert outcome.selected == ROUNDS - 1
        assert (tmp_path / "partial" / silo / f"best-{ROUNDS - 1}.safetensors").exists()
    measured = histories["silo-1"]
    assert measured[-1].validation["loss"] < measured[-2].validation["loss"], "lower, but of fewer rows"
    assert not measured[-1].better


@pytest.mark.parametrize("labels", ["shared", "stale"])
def test_every_hub_records_how_many_rows_were_measured(labels: str, tmp_path: Path) -> None:
    wanted = job(evaluate_every=2)
    wanted = wanted if labels == "shared" else keeping(wanted, labels)
    federation, histories = deployed(wanted, tmp_path, ROUNDS)
    plan = federation.hubs[AWAY.silo].prepared.plan
    every = plan.counts
    lost = {part: len(numbers) for part, numbers in plan.holdings[AWAY.client or ""].items()}
    for silo, history in histories.items():
        first, second, last = (line.rows for line in history)
        assert first == second == {part.word: Rows(count, count) for part, count in every.items()}
        assert last == {part.word: Rows(count - lost[part], count) for part, count in every.items()}
        assert [line.partial for line in history] == [(), (), ("train", "validation", "test")]
        of = f"measured on {every[Part.TEST] - lost[Part.TEST]} of {every[Part.TEST]} test samples: clients are away"
        assert f"{silo}: {of}" in federation.log
        assert any(line.endswith("this evaluation decides nothing") for line in federation.log)
    assert bool(histories["silo-2"][0].train) == (labels == "shared"), "counts are known where measures are not"
    status = run_virtually(federation.hubs["silo-1"].snapshot())
    shown = _describe_evaluation(status.evaluation)
    there, total = every[Part.TEST] - lost[Part.TEST], every[Part.TEST]
    assert "clients were away: measured on " in shown
    assert f"{there} of {total} test rows" in shown
    (family,) = [one for one in HubCollector(lambda: status).collect() if one.name == "tdcd_measured_fraction"]
    assert {one.labels["part"]: one.value for one in family.samples}["test"] == there / total


def test_a_simulation_measures_every_row(tmp_path: Path) -> None:
    from tdcd.jobs.run import run_job

    wanted = job(evaluate_every=2)
    run_job(wanted, tmp_path / "run")
    data = load_data(wanted)
    sizes = {"train": len(data.federation), **{part.word: len(own) for part, own in data.held_out.items()}}
    for line in read_history(tmp_path / "run"):
        assert line.rows == {part: Rows(count, count) for part, count in sizes.items()}
        assert line.partial == ()


class Scripted:
    """An engine that measures what a test says: validation losses, each with the part of the rows that was there."""

    compute_plan: dict[str, str] = {}

    def __init__(self, losses: list[tuple[float, int]]) -> None:
        self.losses, self.done = losses, 0

    def agree(self, checkpoints: object) -> tuple[int, str]:
        return 0, ""

    def round(self, states: object, number: int) -> object:
        from tdcd.core.ledger import Traffic

        self.done = number
        return states, Traffic()

    def evaluate(self, states: object, judge: Judge) -> tuple[Measurement, Verdict]:
        loss, rows = self.losses[self.done]
        measures = {Part.TRAIN: {"loss": 1.0}, Part.VALIDATION: {"loss": loss}, Part.TEST: {}}
        result = Measurement(measures, {Part.TRAIN: Rows(50, 50), Part.VALIDATION: Rows(rows, 10)})
        return result, judge(result)

    def conclude(self, number: int, selected: int) -> bool:
        return True


class Notes(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, note: str) -> None:
        self.notes.append(note)


def scripted(losses: list[tuple[float, int]], patience: int | None = None) -> tuple[int, int, list[str]]:
    """Return the round whose weights are kept, the last round, and what was noted."""
    import torch

    notes = Notes()
    settings = Settings(
        loss="squared-error", rounds=len(losses) - 1, rate=0.1, evaluate_every=1, select="best", patience=patience
    )
    loop = Loop(Scripted(losses), settings, {}, [notes], lambda: {"s": {"w": torch.zeros(1)}})  # type: ignore[arg-type]
    selected, _ = loop.run()
    return selected, loop.history[-1].round, notes.notes


def test_a_partial_validation_is_neither_the_best_nor_what_others_are_held_against() -> None:
    assert scripted([(1.0, 10), (0.2, 7), (0.5, 10), (0.6, 10)])[0] == 2
    assert scripted([(1.0, 10), (0.2, 10), (0.5, 10)])[0] == 1


def test_patience_counts_whole_validations_only() -> None:
    assert scripted([(1.0, 10), (1.1, 7), (1.1, 7), (1.1, 7), (0.9, 10)], patience=2)[:2] == (4, 4)
    assert scripted([(1.0, 10), (1.1, 7), (1.1, 10), (1.1, 10), (0.9, 10)], patience=2)[:2] == (0, 3)


def test_the_end_says_what_could_not_decide() -> None:
    (note,) = scripted([(1.0, 10), (0.2, 7), (0.5, 7)])[2]
    assert note.startswith("2 of 3 evaluations lacked validation rows of absent clients and decided nothing")
    assert note.endswith("the weights of round 0 are kept")
    assert scripted([(1.0, 10), (0.5, 10)])[2] == []


def test_a_hub_that_measures_more_rows_than_there_are_is_refused(tmp_path: Path) -> None:
    federation, _ = deployed(job(), tmp_path, None)
    from tdcd.sites.hub.evaluation import Evaluator
    from tdcd.sites.messages.frames import RefusedError

    hub = federation.hubs["silo-2"]
    with pytest.raises(RefusedError, match=r"the hub of silo 'silo-1' says that it measured 9,999 of \d+ test samples"):
        Evaluator(hub.context, hub.prepared)._rows(Part.TEST, 9999)


@pytest.mark.parametrize("labels", ["shared", "stale"])
def test_all_hubs_keep_the_weights_that_are_best_by_the_chosen_measure(labels: str, tmp_path: Path) -> None:
    wanted = job(evaluate_every=1, select="best", select_by="accuracy", rate=6.0, batch_size=200)
    wanted = wanted if labels == "shared" else keeping(wanted, labels)
    federation, histories = deployed(wanted, tmp_path, None)
    outcomes = [read_outcome(tmp_path / silo) for silo in federation.hubs]
    measured = next(history for history in histories.values() if history[0].validation)
    values = [line.validation["accuracy"] for line in measured]
    best = values.index(max(values))
    assert {outcome and outcome.selected for outcome in outcomes} == {best}
    losses = [line.validation["loss"] for line in measured]
    assert best != losses.index(min(losses)), "or it could have been the loss"
