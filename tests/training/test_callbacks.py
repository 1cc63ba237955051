"""Callbacks see every round, can stop a training, and cannot harm it."""

import json
import tomllib
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import tdcd
from support import Interrupt, same
from tdcd.core.ledger import Traffic
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.store import RunDirectory
from tdcd.training.callbacks import EarlyStopping, FinishedRound, GradientRecorder, Progress, Start
from tdcd.training.loop import Loop

RNG = np.random.default_rng(2)
X = RNG.normal(size=(60, 6))
Y = (X[:, 0] + X[:, 4] + 1.5 * RNG.normal(size=60) > 0).astype(int)
"""Noisy: the validation loss falls a while, and rises."""
FEDERATION = tdcd.Federation.from_silos(
    [tdcd.Silo(name, x, [range(25), range(25, 40)]) for name, x in (("a", X[:40, :3]), ("b", X[:40, 3:]))], Y[:40]
)
HELD_OUT = tdcd.Samples.from_arrays({"a": X[40:, :3], "b": X[40:, 3:]}, Y[40:])
KEYS = {"loss": "binary-cross-entropy", "rounds": 12, "local_steps": 4, "batch_size": 30, "rate": 0.5,
        "evaluate_every": 4, "checkpoint_every": 5}  # fmt: skip


def train(*callbacks: tdcd.Callback, path: Path | None = None, **more: Any) -> tdcd.Result:
    options = {key: more.pop(key) for key in set(more) - set(tdcd.Settings.model_fields)}
    return tdcd.train(
        FEDERATION,
        tdcd.models.MLP(hidden=[8]),
        tdcd.Settings.model_validate(KEYS | more),
        validation=HELD_OUT,
        directory=path,
        resume=path is not None and path.exists(),
        callbacks=callbacks,
        **options,
    )


def timeless(result: tdcd.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.as_dict().items() if k != "seconds"} for line in result.history]


WHOLE = train()


def recorded_job(path: Path) -> Any:
    return tomllib.loads((path / "job.toml").read_text())


class Diary(tdcd.Callback):
    """Writes down what it is called with; ``replies`` are its replies."""

    def __init__(self, replies: Callable[[str, int], Any] = lambda what, number: None) -> None:
        self.replies = replies
        self.events: list[Any] = []
        self.rounds: list[FinishedRound] = []

    def _enter(self, what: str, number: int) -> Any:
        self.events.append((what, number))
        return self.replies(what, number)

    def started(self, start: Start) -> Any:
        assert "a" in start.compute_plan
        assert [line.round for line in start.history] == list(range(0, start.done + 1, 4))[: len(start.history)]
        return self._enter("started", start.done)

    def after_round(self, finished: FinishedRound) -> Any:
        self.rounds.append(finished)
        return self._enter("round", finished.number)

    def after_evaluation(self, evaluation: tdcd.Evaluation) -> Any:
        return self._enter("evaluation", evaluation.round)

    def ended(self, outcome: Any) -> None:
        self.events.append(("ended", outcome.status if outcome else ""))


def test_they_are_called_in_order() -> None:
    one, two = Diary(), Diary()
    order: list[str] = []
    one.replies, two.replies = (lambda *_: order.append("one")), (lambda *_: order.append("two"))
    train(one, two, rounds=5)
    assert one.events == two.events
    assert one.events == [
        ("started", 0), ("evaluation", 0), ("round", 1), ("round", 2), ("round", 3), ("evaluation", 4), ("round", 4),
        ("evaluation", 5), ("round", 5), ("ended", "finished"),
    ]  # fmt: skip
    assert order == ["one", "two"] * 9


def test_a_round_is_what_happened() -> None:
    diary = Diary()
    result = train(diary, schedule={"kind": "cosine"})
    settings = result.settings
    states = [round_.before for round_ in diary.rounds] + [diary.rounds[-1].after]
    assert [state.done for state in states] == list(range(13))
    assert all(round_.after is later.before for round_, later in zip(diary.rounds, diary.rounds[1:], strict=False))
    assert same(states[-1].weights, result.blocks)
    assert not same(states[0].weights, states[1].weights)
    assert [round_.rate for round_ in diary.rounds] == [settings.rate_of(number) for number in range(1, 13)]
    for round_ in diary.rounds:
        assert torch.equal(round_.batch, settings.sample_batch(round_.number, 40))
    assert sum((round_.traffic for round_ in diary.rounds), Traffic()) == result.history[-1].traffic


def test_looking_at_clients_changes_nothing() -> None:
    class Looking(tdcd.Callback):
        def after_round(self, finished: FinishedRound) -> None:
            simulation = finished.simulation
            assert simulation
            assert finished.clients == simulation.clients(finished.before)
            assert finished.clients is finished.clients

    assert same(train(Looking()).blocks, WHOLE.blocks)


def stops_at(*events: tuple[str, int]) -> Diary:
    return Diary(lambda what, number: tdcd.Stop("enough") if (what, number) in events else None)


STOPS = {
    "in a round": ("round", 6),
    "in a round that was evaluated": ("round", 8),
    "in an evaluation": ("evaluation", 4),
    "before the first round": ("evaluation", 0),
    "at once": ("started", 0),
}


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize("select", ["last", "best"])
def test_a_stopped_training_is_finished_and_can_go_on(tmp_path: Path, where: str, select: str) -> None:
    diary = stops_at(STOPS[where])
    result = train(diary, path=tmp_path / "run", select=select)
    last = diary.rounds[-1].number if diary.rounds else 0
    assert result.history[-1].round == last < 12
    outcome = read_outcome(tmp_path / "run")
    assert outcome
    assert (outcome.status, outcome.round, outcome.stopped) == ("finished", last, "stopped by Diary: enough")
    assert same(tdcd.load_blocks(tmp_path / "run"), result.blocks)
    assert max(RunDirectory(tmp_path / "run", recorded_job(tmp_path / "run")).checkpoints()) == last
    shorter = train(rounds=max(last, 1), select=select)
    if last:
        assert same(result.blocks, shorter.blocks)
    going_on, expected = train(path=tmp_path / "run", select=select), train(select=select)
    assert same(going_on.blocks, expected.blocks)
    assert timeless(going_on) == timeless(expected)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stopped"] == ""
    longer = train(path=tmp_path / "run", select=select, rounds=16)
    assert same(longer.blocks, train(select=select, rounds=16).blocks)


def test_the_first_that_stops_says_why_and_all_see_the_round(tmp_path: Path) -> None:
    class Other(Diary):
        """Another name."""

    one = stops_at(("round", 6))
    two = Other(one.replies)
    train(one, two, path=tmp_path)
    assert one.events == two.events
    assert one.events[-3:] == [("round", 6), ("evaluation", 6), ("ended", "finished")]
    outcome = read_outcome(tmp_path)
    assert outcome
    assert outcome.stopped == "stopped by Diary: enough"


def test_a_stop_after_the_last_round_is_none(tmp_path: Path) -> None:
    train(Diary(lambda what, number: tdcd.Stop("enough") if number == 12 else None), path=tmp_path)
    outcome = read_outcome(tmp_path)
    assert outcome
    assert (outcome.round, outcome.stopped) == (12, "")


@pytest.mark.parametrize("what", ["started", "round", "evaluation"])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), tdcd.DataError("mine"), KeyboardInterrupt("mine")])
def test_an_error_in_a_callback_is_passed_on_and_a_checkpoint_kept(
    tmp_path: Path, what: str, error: BaseException
) -> None:
    def failing(now: str, number: int) -> None:
        if now == what and number in (0, 8):
            raise error

    watching, path = Diary(), tmp_path / "run"
    with pytest.raises(type(error)) as caught:
        train(Diary(failing), watching, path=path)
    assert caught.value is error
    assert error.__cause__ is None
    assert watching.events[-1] == ("ended", "interrupted")
    done = 8 if what == "round" else 0
    assert max(RunDirectory(path, recorded_job(path)).checkpoints()) == done
    outcome = read_outcome(path)
    assert outcome
    assert (outcome.status, outcome.round) == ("interrupted", done)
    result = train(path=path)
    assert same(result.blocks, WHOLE.blocks)
    assert timeless(result) == timeless(WHOLE)
    assert [line.round for line in read_history(path)] == [0, 4, 8, 12]


class Failing(tdcd.Callback):
    """Fails where it is told of something."""

    def __init__(self, what: str, error: BaseException) -> None:
        self.what, self.error, self.ends = what, error, 0

    def noted(self, note: str) -> None:
        if self.what == "noted":
            raise self.error

    def ended(self, outcome: Any) -> None:
        self.ends += 1
        if self.what == "ended":
            raise self.error


def test_a_callback_that_fails_at_a_note_hears_of_the_end() -> None:
    failing, diary = Failing("noted", ZeroDivisionError("mine")), Diary()
    own = {"a": tdcd.SiloSettings(rate=0.1)}  # is noted
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(failing, diary, silos=own)
    assert failing.ends == 1
    assert diary.events[-1] == ("ended", "")


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt("mine")])
def test_a_callback_that_fails_at_the_end_keeps_no_other_from_it(tmp_path: Path, error: BaseException) -> None:
    first, second, diary = Failing("ended", error), Failing("ended", ValueError("other")), Diary()
    with pytest.raises(type(error)) as caught:
        train(first, second, diary, path=tmp_path)
    assert caught.value is error
    assert (first.ends, second.ends) == (1, 1)
    assert diary.events[-1] == ("ended", "finished")
    outcome = read_outcome(tmp_path)
    assert outcome
    assert outcome.status == "finished"


def test_an_error_before_the_end_is_the_one_that_is_raised() -> None:
    diary = Diary()
    with pytest.raises(tdcd.DivergedError) as caught:
        train(Failing("ended", ValueError("mine")), diary, rate=1e200)
    assert caught.value.__notes__ == ["callback Failing failed as the training ended: ValueError: mine"]
    assert diary.events[-1] == ("ended", "")


def test_other_errors_end_it_for_callbacks_too() -> None:
    diary = Diary()
    with pytest.raises(tdcd.DivergedError):
        train(diary, rate=1e200)
    assert diary.events[-1] == ("ended", "")


@pytest.mark.parametrize(
    ("callbacks", "says"),
    [
        (print, "callbacks: a list of tdcd.Callback is wanted, not <built-in function print>"),
        (EarlyStopping(2), "callbacks: a list of tdcd.Callback is wanted, not "),
        ([EarlyStopping], r"callbacks: EarlyStopping is a class; give an object: EarlyStopping\(…\)"),
        (
            [print],
            r"callbacks: a list of tdcd.Callback is wanted, not of .*make a class of your own from tdcd.Callback",
        ),
        ([Diary(lambda *_: True)], r'callback Diary returned True; return tdcd.Stop\("why"\), or nothing'),
        ([Diary(lambda *_: "enough")], "callback Diary returned 'enough'"),
    ],
)
def test_wrong_callbacks_are_named(callbacks: Any, says: str) -> None:
    with pytest.raises(tdcd.JobError, match=says):
        tdcd.train(FEDERATION, tdcd.models.Linear(), tdcd.Settings.model_validate(KEYS), validation=HELD_OUT,
                   callbacks=callbacks)  # fmt: skip


def test_early_stopping_is_patience(tmp_path: Path) -> None:
    chosen = {"rounds": 60, "rate": 2.0, "evaluate_every": 3}
    by_settings = train(path=tmp_path / "settings", patience=2, **chosen)
    by_callback = train(EarlyStopping(2), path=tmp_path / "callback", **chosen)
    assert timeless(by_settings) == timeless(by_callback)
    assert by_settings.history[-1].round < 60
    for name in ("settings", "callback"):
        outcome = read_outcome(tmp_path / name)
        assert outcome
        assert outcome.stopped == "stopped by EarlyStopping: no better validation loss in 2 evaluations"
    again = train(EarlyStopping(2), path=tmp_path / "callback", **chosen)
    assert timeless(again) == timeless(by_callback)
    with pytest.raises(tdcd.JobError, match="patience need a validation set"):
        tdcd.train(FEDERATION, tdcd.models.Linear(), tdcd.Settings.model_validate(KEYS), callbacks=[EarlyStopping(2)])
    with pytest.raises(tdcd.JobError, match="EarlyStopping: a patience of at least 1 evaluation is wanted, not 0"):
        EarlyStopping(0)
    with pytest.raises(tdcd.JobError, match="EarlyStopping: a patience of at least 1 evaluation is wanted, not 'a'"):
        EarlyStopping("a")  # type: ignore[arg-type]


@pytest.mark.parametrize("wide", [True, False])
def test_progress_shows_rounds_and_measures(wide: bool) -> None:
    console = Console(record=True, width=160 if wide else 70, force_terminal=True, file=StringIO())
    result = train(Progress("digits", console))
    text = console.export_text()
    assert "digits" in text
    assert "12/12" in text
    assert f"loss {result.final.train['loss']:.4f}" in text
    assert f"validation auroc {result.final.validation['auroc']:.4f}" in text
    assert ("rounds/s" in text) is wide
    broken = Progress(console=console)
    with pytest.raises(KeyboardInterrupt):
        train(broken, Interrupt(3))
    assert not broken.bars.live.is_started


@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_gradients_that_a_silo_receives_can_be_recorded(sharing: Any) -> None:
    labels = tdcd.Labels(silo="a", sharing=sharing)
    recorder, other = GradientRecorder("b", 40), GradientRecorder("a", 40)
    diary = Diary()
    result = train(recorder, other, diary, labels=labels, rounds=3)
    plain = train(labels=labels, rounds=3)
    for silo, block in plain.blocks.items():
        assert all(torch.allclose(tensor, result.blocks[silo][name], atol=1e-5) for name, tensor in block.items())
    assert not other.count.any()
    batches = torch.bincount(torch.cat([round_.batch for round_ in diary.rounds]), minlength=40)
    assert torch.equal(recorder.count, batches * (4 if sharing == "exact" else 1))
    batch = diary.rounds[0].batch
    weights = diary.rounds[0].before.weights
    scores: Tensor = sum(  # type: ignore[assignment]
        network(weights[silo], torch.from_numpy(x[batch]).float(), training=False)
        for (silo, network), x in zip(result.networks.items(), (X[:, :3], X[:, 3:]), strict=True)
    )
    expected = torch.sigmoid(scores) - torch.from_numpy(Y[batch]).float().unsqueeze(1)
    assert torch.allclose(recorder.first[batch].float(), expected, atol=1e-5)
    with pytest.raises(tdcd.JobError, match='engine: "oracle" does not record logit gradients; use engine = "local"'):
        train(GradientRecorder("b", 40), labels=labels, engine="oracle")
    with pytest.raises(tdcd.JobError, match="GradientRecorder: 'bb' is no silo; did you mean 'b'"):
        train(GradientRecorder("bb", 40), labels=labels)
    with pytest.raises(tdcd.JobError, match=r"GradientRecorder: silo 'b' received .* room for 9 samples; .* len\(fed"):
        train(GradientRecorder("b", 9), labels=labels)
    with pytest.raises(tdcd.JobError, match="GradientRecorder: samples: the number of training samples is wanted"):
        GradientRecorder("b", "x")  # type: ignore[arg-type]


class Site:
    """One hub's part of a training, without the others."""

    compute_plan: dict[str, str] = {"a": "at its clients' sites"}

    def agree(self, checkpoints: Any) -> tuple[int, str]:
        return max(checkpoints.items(), default=(0, "alone"))

    def round(self, states: Any, number: int) -> Any:
        return states, Traffic()

    def evaluate(self, states: Any, judge: Any) -> Any:
        from tdcd.data.holdout import Part
        from tdcd.engines.base import Measurement

        record = Measurement({part: {"loss": 1.0} for part in Part}, {})
        return record, judge(record)

    def conclude(self, number: int, selected: int) -> bool:
        return True


def test_a_hub_cannot_stop_by_itself_nor_look_at_clients(tmp_path: Path) -> None:
    from support import federation_record

    def run(path: Path, callback: tdcd.Callback) -> int:
        settings = tdcd.Settings.model_validate(KEYS | {"patience": 2})
        with RunDirectory.open(path, {"x": 1}, resume=True, is_hub=True) as opened:
            loop = Loop(Site(), settings, {}, [callback], lambda: {"a": {"w": torch.zeros(1)}})
            loop.directory = opened
            loop.federation = federation_record()
            loop.begin()
            loop.run()
            return loop.state.done

    class Looking(tdcd.Callback):
        def __init__(self, what: str) -> None:
            self.what = what

        def after_round(self, finished: FinishedRound) -> None:
            getattr(finished, self.what)

    assert run(tmp_path / "patience", tdcd.Callback()) == 8
    with pytest.raises(tdcd.JobError, match="callback Diary: a hub cannot stop by itself; use patience"):
        run(tmp_path / "stop", stops_at(("round", 6)))
    with pytest.raises(tdcd.JobError, match="round 1: only a simulation knows each client's numbers"):
        run(tmp_path / "clients", Looking("clients"))
    with pytest.raises(tdcd.JobError, match="round 1: only a simulation knows the mini-batch"):
        run(tmp_path / "batch", Looking("batch"))
