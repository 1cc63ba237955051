"""Hubs that are stopped at any write, and hubs that come back late: all end with the same model, or none does."""

import json
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import examples, federation_record
from tdcd import files
from tdcd.core.ledger import Traffic
from tdcd.core.state import SiloState, States
from tdcd.data.holdout import Part
from tdcd.engines.base import Judge, Measurement, Measures, RewoundError, Verdict
from tdcd.errors import AbsentError
from tdcd.runs import records, store, tensors
from tdcd.runs.reader import read_history
from tdcd.runs.store import RunDirectory, load_blocks
from tdcd.sites.hub.hub import common_round
from tdcd.sites.security.identity import Identity
from tdcd.training.loop import Loop
from tdcd.training.settings import Settings

from .test_kills import Stage

HUBS = ("a", "b", "c")
JOB = {"x": 1}


class CrashError(BaseException):
    """A hub is killed."""


class Together:
    """Hubs that do everything together, in threads; a hub that is killed makes all others meet it anew."""

    def __init__(self, seed: int) -> None:
        self.news = threading.Condition()
        self.seed, self.epoch, self.broken = seed, 0, True
        self.came: dict[str, Mapping[int, str]] = {}
        self.start = 0
        self.said: dict[str, dict[str, Any]] = {}
        self.over = False
        """Whether a hub has ended: it does not come again by itself."""

    def ended(self) -> None:
        with self.news:
            self.over = True
            self.news.notify_all()

    def crashed(self) -> None:
        with self.news:
            self.broken = True
            self.news.notify_all()

    def agreed(self, hub: str, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        with self.news:
            self.came[hub] = checkpoints
            epoch = self.epoch
            if len(self.came) == len(HUBS):
                self.start, _ = common_round(self.came)
                self.came, self.said = {}, {}
                self.epoch, self.broken = epoch + 1, False
                self.news.notify_all()
            self.wait(lambda: self.epoch > epoch or self.over)
            if self.epoch == epoch:
                raise AbsentError("the others have ended")
            return self.start, f"epoch {self.epoch}"

    def exchange(self, hub: str, what: str, value: Any = None) -> dict[str, Any]:
        with self.news:
            epoch = self.epoch
            if self.broken:
                raise RewoundError
            box = self.said.setdefault(what, {})
            box[hub] = value
            self.news.notify_all()
            self.wait(lambda: len(box) == len(HUBS) or self.broken or self.epoch != epoch)
            if len(box) < len(HUBS):
                raise RewoundError
            return box

    def wait(self, done: Callable[[], bool]) -> None:
        assert self.news.wait_for(done, 5), "the hubs wait for each other for ever"

    def loss(self, number: int) -> float:
        """Clients that are away make another round, and another loss, of a round that is repeated."""
        return Random(f"{self.seed} {self.epoch} {number}").uniform(0.1, 1.0)  # noqa: S311


class HubEngine:
    """One hub's part. See Engine."""

    def __init__(self, hub: str, together: Together) -> None:
        self.hub, self.all, self.done = hub, together, 0
        self.compute_plan: dict[str, str] = {}

    def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        self.done, lineage = self.all.agreed(self.hub, checkpoints)
        return self.done, lineage

    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        self.all.exchange(self.hub, f"round {number}")
        self.done = number
        step = number + self.all.epoch / 100
        return {self.hub: SiloState({"w": states[self.hub].weights["w"] + step})}, Traffic()

    def evaluate(self, states: States, judge: Judge) -> tuple[Measurement, Verdict]:
        loss = self.all.loss(self.done)
        verdict = judge(Measurement({Part.TRAIN: {"loss": loss}, Part.VALIDATION: {"loss": loss}, Part.TEST: {}}, {}))
        text = self.all.exchange(self.hub, f"verdict {self.done}", verdict)
        nothing: Measures = {part: {} for part in Part}
        if self.hub != HUBS[0]:
            return Measurement(nothing, {}), text[HUBS[0]]
        return Measurement({**nothing, Part.TRAIN: {"loss": loss}, Part.VALIDATION: {"loss": loss}}, {}), verdict

    def conclude(self, number: int, selected: int) -> bool:
        self.all.exchange(self.hub, "concluded")
        return True


def trained(folder: Path, hub: str, together: Together, chosen: Settings, ended: dict[str, Any]) -> None:
    """Run a hub, and start it again whenever it is killed."""
    first = {hub: {"w": torch.zeros(1, dtype=torch.float64)}}
    for _ in range(20):
        try:
            with RunDirectory.open(folder / hub, JOB, resume=True, is_hub=True) as opened:
                loop = Loop(HubEngine(hub, together), chosen, {}, [], lambda: first)
                loop.directory = opened
                loop.federation = federation_record()
                loop.begin()
                number, blocks = loop.run()
                ended[hub] = number, float(blocks[hub]["w"])
                together.ended()
                return
        except CrashError:
            together.crashed()
        except BaseException as error:
            ended[hub] = error
            together.crashed()
            return


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(0, 10_000),
    st.dictionaries(st.sampled_from(HUBS), st.lists(st.integers(1, 60), min_size=1, max_size=3), min_size=1),
    st.integers(1, 5),
    st.integers(1, 7),
    st.sampled_from([None, 2, 4]),
    st.booleans(),
)
def test_hubs_killed_at_any_write_end_with_weights_of_the_same_round(
    seed: int, kills: dict[str, list[int]], every: int, saved: int, patience: int | None, after: bool
) -> None:
    chosen = Settings(
        loss="squared-error", rounds=12, rate=0.1, evaluate_every=every, checkpoint_every=saved, select="best",
        patience=patience,
    )  # fmt: skip
    counts = dict.fromkeys(HUBS, 0)
    whole, added = files.write_atomically, files.append

    def killed(path: Path, write: Callable[[], None]) -> None:
        hub = next(name for name in HUBS if name in path.parts)
        counts[hub] += 1
        now = counts[hub] in kills.get(hub, ())
        if now and not after:
            raise CrashError
        write()
        if now:
            raise CrashError

    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as name:
        folder = Path(name)
        for module in (files, records, store, tensors):
            patch.setattr(module, "write_atomically", lambda p, *a, **k: killed(p, lambda: whole(p, *a, **k)))
        patch.setattr(store, "append", lambda p, line: killed(p, lambda: added(p, line)))
        together = Together(seed)
        ended: dict[str, Any] = {}
        threads = [threading.Thread(target=trained, args=(folder, hub, together, chosen, ended)) for hub in HUBS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(ended) == set(HUBS)
        assert len(set(ended.values())) == 1, ended
        stored = {float(load_blocks(folder / hub)[hub]["w"]) for hub in HUBS}
        assert stored == {ended["a"][1]}
        kept, better = ended["a"][0], [line for line in read_history(folder / "a") if line.better]
        assert kept == better[-1].round
        assert kept == min(read_history(folder / "a"), key=lambda line: line.validation["loss"]).round


class Late:
    """The others are not there any more."""

    compute_plan: dict[str, str] = {}

    def __init__(self, error: Exception) -> None:
        self.error = error

    def agree(self, _: Mapping[int, str]) -> tuple[int, str]:
        raise self.error


class Alone(Late):
    """A hub that was alone in the federation, and got to some round."""

    def __init__(self, last: int) -> None:
        super().__init__(AbsentError("nobody is there"))
        self.last = last

    def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        return max(checkpoints.items(), default=(0, "alone"))

    def round(self, states: States, number: int) -> tuple[States, Traffic]:
        if number > self.last:
            raise self.error
        return {"a": SiloState({"w": states["a"].weights["w"] + 1})}, Traffic()

    def evaluate(self, _: States, judge: Judge) -> tuple[Measurement, Verdict]:
        record = Measurement({part: {"loss": 1.0} for part in Part}, {})
        return record, judge(record)

    def conclude(self, number: int, selected: int) -> bool:
        return False


class Meeting(Alone):
    """Draws a new lineage at every meeting."""

    meetings = 0

    def agree(self, checkpoints: Mapping[int, str]) -> tuple[int, str]:
        Meeting.meetings += 1
        return max(checkpoints, default=0), f"meeting {Meeting.meetings}"


def test_a_round_keeps_the_lineage_that_it_happened_in(tmp_path: Path) -> None:
    """Whoever goes on after a round, and is stopped at once, still has the round that the others have."""
    chosen = Settings(loss="squared-error", rounds=9, rate=0.1, evaluate_every=2, checkpoint_every=2)
    first = {"a": {"w": torch.zeros(1)}}
    seen = []
    for last in (3, 3, 3, 5, 5):
        with RunDirectory.open(tmp_path / "run", JOB, resume=True, is_hub=True) as opened:
            loop = Loop(Meeting(last), chosen, {}, [], lambda: first)
            loop.directory = opened
            loop.federation = federation_record()
            loop.begin()
            with pytest.raises(AbsentError):
                loop.run()
        with RunDirectory.open(tmp_path / "run", JOB, resume=True, is_hub=True) as opened:
            seen.append(opened.checkpoints())
    run = seen[0][0]
    assert seen[0] == seen[1] == seen[2] == {0: run, 2: "meeting 1", 3: "meeting 1"}
    assert seen[3] == seen[4] == {0: run, 4: "meeting 4", 5: "meeting 4"}


@pytest.mark.parametrize(("last", "ends"), [(6, True), (5, False)])
def test_a_hub_that_has_all_rounds_ends_without_the_others(tmp_path: Path, last: int, ends: bool) -> None:
    chosen = Settings(loss="squared-error", rounds=6, rate=0.1, evaluate_every=4, checkpoint_every=2)
    first = {"a": {"w": torch.zeros(1)}}

    def loop(party: Any) -> Loop:
        made = Loop(party, chosen, {}, [], lambda: first)
        made.directory = opened
        return made

    with RunDirectory.open(tmp_path / "run", JOB, resume=True, is_hub=True) as opened:
        one = loop(Alone(last))
        one.federation = federation_record()
        one.begin()
        try:
            one.run()
        except AbsentError:
            assert not ends
        (tmp_path / "run" / "result.json").unlink()
        assert not opened.finished(6)
        two = loop(Late(AbsentError("nobody is there")))
        two.federation = federation_record()
        if not ends:
            with pytest.raises(AbsentError, match="nobody is there"):
                two.begin()
            return
        two.begin()
        assert two.alone
        number, blocks = two.run()
        assert (number, float(blocks["a"]["w"])) == (6, 6.0)
        assert json.loads((tmp_path / "run" / "result.json").read_text())["confirmed"] is False
        assert not opened.finished(6)  # another may still need it
        assert [line.round for line in read_history(tmp_path / "run")] == [0, 4, 6]


def test_a_hub_that_was_killed_at_the_end_and_comes_back_late(tmp_path: Path) -> None:
    """The others have waited, and ended; started again, they go back with it, and all end."""
    stage = Stage(tmp_path, {"training.rounds": 4, "training.checkpoint_every": 2, "deployment.hub_deadline": 12})
    a, b = (Identity(silo) for silo in sorted(stage.federation.runs))
    last = (b, "save 4", signal.SIGKILL)
    stage.arm(last)
    for who in stage.federation.sites:
        stage.start(who)
    processes = stage.federation.processes
    reached = stage.file(last).with_name(f"{stage.file(last).name}.reached")
    try:
        stage.until(reached.exists, "the last checkpoint of b")
        processes[b].kill()
        assert processes[a].wait(90) == 0, stage.everything()
        assert "has finished without the others" in stage.logged(a)
        stage.federation.kill()
        stage.file(last).unlink()
        summary = json.loads((stage.federation.runs[a.silo] / "result.json").read_text())
        assert (summary["status"], summary["round"], summary["confirmed"]) == ("finished", 4, False)
        for who in stage.federation.sites:
            stage.start(who)
        assert stage.federation.wait(lambda line: None, seconds=120) == 0, stage.everything()
        histories = [read_history(run) for run in stage.federation.runs.values()]
        assert [[line.round for line in history] for history in histories] == [[0, 3, 4]] * 2
        assert [line.train for line in histories[0]] == [line.train for line in histories[1]]
    finally:
        stage.federation.kill()
