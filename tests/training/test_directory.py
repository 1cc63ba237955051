"""Runs on disk: what is written, what survives a crash, and going on."""

import importlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcd
from support import Interrupt, KilledError, same
from tdcd.files import write_atomically
from tdcd.runs.store import RunDirectory
from tdcd.runs.stored_job import differences, stored_job
from tdcd.training.callbacks import FinishedRound, Start

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4))
Y = (X.sum(1) > 0).astype(int)
FEDERATION = tdcd.Federation.from_silos(
    [
        tdcd.Silo("a", X[:, :2], [range(30), range(30, 40)]),
        tdcd.Silo("b", X[:, 2:], [range(0, 40, 2), range(1, 40, 2)]),
    ],
    Y,
)
MODELS: dict[str, Any] = {
    "a": nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1)),
    "b": tdcd.models.MLP(hidden=[4]),
}


def settings(**more: Any) -> tdcd.Settings:
    table = {"loss": "binary-cross-entropy", "rounds": 12, "local_steps": 2, "batch_size": 30, "rate": 0.2,
             "optimizer": {"kind": "sgd", "momentum": 0.5}, "evaluate_every": 2, "checkpoint_every": 3}  # fmt: skip
    return tdcd.Settings.model_validate(table | more)


def train(
    path: Path | None, *, resume: bool = False, callbacks: Sequence[tdcd.Callback] = (), **more: Any
) -> tdcd.Result:
    return tdcd.train(FEDERATION, MODELS, settings(**more), directory=path, resume=resume, callbacks=callbacks)


def timeless(history: Any) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.as_dict().items() if k != "seconds"} for line in history]


def recorded() -> dict[str, Any]:
    return {"engine": "local", "compute": "auto", "device": "cpu", "training": settings().model_dump(exclude_none=True)}


def loaded(path: Path) -> Any:
    return RunDirectory(path, recorded()).load()


WHOLE = train(None)


def test_what_a_run_writes(tmp_path: Path) -> None:
    result = train(tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert names == {"job.toml", "environment.json", "federation.json", "rosters.safetensors", "history.jsonl",
                     "checkpoint.safetensors", "earlier.safetensors", "blocks", "result.json"}  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 2, 4, 6, 8, 10, 12]
    assert all(
        {"round", "iteration", "seconds", "traffic", "rows", "train", "validation", "test", "better", "digest"}
        == set(line)
        for line in lines
    )
    assert same(tdcd.load_blocks(tmp_path / "run"), result.blocks)
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (summary["status"], summary["round"], summary["iteration"]) == ("finished", 12, 24)
    sessions = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert {"tdcd", "torch", "numpy", "polars", "pydantic"} < set(sessions[0]["packages"])
    assert set(sessions[0]["inputs"]) == {"training data", "networks", "first weights"}
    assert sessions[0]["inputs"]["training data"] == FEDERATION.fingerprint()
    federation = json.loads((tmp_path / "run" / "federation.json").read_text())
    assert [len(silo["clients"]) for silo in federation["silos"]] == [2, 2]


@pytest.mark.parametrize("where", ["round", "evaluated", "save"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_ctrl_c_in_the_middle_of_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, at: int) -> None:
    """Interrupted in a round, between an evaluation and its record, or while a checkpoint is written."""
    from tdcd.engines import LocalEngine

    loop = importlib.import_module("tdcd.training.setup")
    target: Any = {"round": LocalEngine, "evaluated": loop, "save": RunDirectory}[where]
    name = {"round": "round", "evaluated": "measure", "save": "save"}[where]
    original, calls = getattr(target, name), 0

    def interrupted(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise KeyboardInterrupt
        return original(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    resumed = train(tmp_path, resume=True)
    assert same(resumed.blocks, WHOLE.blocks)
    assert timeless(resumed.history) == timeless(WHOLE.history)


@pytest.mark.parametrize("error", [KeyboardInterrupt, KilledError])
@pytest.mark.parametrize("after", [1, 2, 3, 5, 7, 11])
def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_ends(
    tmp_path: Path, after: int, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        train(tmp_path, callbacks=[Interrupt(after, error)])
    resumed = train(tmp_path, resume=True)
    assert same(resumed.blocks, WHOLE.blocks)
    assert timeless(resumed.history) == timeless(WHOLE.history)
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 2, 4, 6, 8, 10, 12]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    assert len(json.loads((tmp_path / "environment.json").read_text())) == 2


def test_ctrl_c_keeps_the_last_finished_round(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Interrupt(5)])
    checkpoint = loaded(tmp_path)
    assert checkpoint
    assert checkpoint.round == 5
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "interrupted"
    assert set(tdcd.load_blocks(tmp_path)) == {"a", "b"}


def test_resuming_a_finished_run_does_nothing(tmp_path: Path) -> None:
    train(tmp_path)
    again = train(tmp_path, resume=True)
    assert same(again.blocks, WHOLE.blocks)
    assert len(again.history) == 7


def test_a_run_stopped_before_its_first_checkpoint_starts_again(tmp_path: Path) -> None:
    train(tmp_path)
    for name in ("checkpoint", "earlier"):
        (tmp_path / f"{name}.safetensors").unlink()
    history = tmp_path / "history.jsonl"
    with pytest.raises(tdcd.RunError, match=r"checkpoint.safetensors: missing, though history.jsonl has rounds"):
        train(tmp_path, resume=True)
    history.write_text(history.read_text().splitlines()[0] + "\n")
    assert same(train(tmp_path, resume=True).blocks, WHOLE.blocks)
    assert len(history.read_text().splitlines()) == 7


def test_a_damaged_history_is_named_not_mended(tmp_path: Path) -> None:
    train(tmp_path)
    history = tmp_path / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    for damaged, says in (
        ([*lines[:2], "garbage\n", *lines[3:]], "line 3: damaged"),
        ([*lines[:2], '{"round": "x"}\n', *lines[3:]], "line 3: damaged"),
        ([*lines[:2], "[]\n", *lines[3:]], "line 3: damaged"),
        (lines[1:], "lacks the evaluations after round 0"),
        ([], "lacks the evaluations after round 0, 2, 4, 6, 8 and 1 more"),
    ):
        history.write_text("".join(damaged))
        with pytest.raises(tdcd.RunError, match=rf"history.jsonl: .*{says}"):
            train(tmp_path, resume=True)
        assert history.read_text() == "".join(damaged)


def test_an_edited_job_is_noticed(tmp_path: Path) -> None:
    train(tmp_path)
    file = tmp_path / "job.toml"
    file.write_text(file.read_text().replace("rate = 0.2", "rate = 0.4"))
    with pytest.raises(tdcd.RunError, match=r"training.rate: 0.2 there, 0.4 here"):
        train(tmp_path, resume=True, rate=0.4)


def test_a_checkpoint_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    run = RunDirectory(tmp_path, recorded())
    good = run.load()
    assert good
    broken = good.states["b"].weights["1.bias"] * torch.nan
    state = replace(good.states["b"], weights={**good.states["b"].weights, "1.bias": broken})
    run.save(replace(good, states={**good.states, "b": state}))
    with pytest.raises(tdcd.ModelError, match=r"checkpoint.safetensors: silo 'b': the weights '1.bias' to start from"):
        train(tmp_path, resume=True)


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(tdcd.RunError, match="cannot be written: No space left on device"):
        train(tmp_path)


def test_threads_are_put_back() -> None:
    torch.set_num_threads(3)
    try:
        train(None, rounds=1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_another_job_is_refused_by_name(tmp_path: Path) -> None:
    train(tmp_path)
    with pytest.raises(tdcd.RunError, match=r"another job(.|\n)*training.rate: 0.2 there, 0.3 here") as caught:
        train(tmp_path, resume=True, rate=0.3, clip_norm=1.0)
    assert "training.clip_norm: not set there, 1.0 here" in str(caught.value)


def test_other_inputs_are_refused_and_change_nothing(tmp_path: Path) -> None:
    test = tdcd.Samples.from_arrays({"a": X[:9, :2], "b": X[:9, 2:]}, Y[:9])
    batches = [np.r_[number : number + 9, 30:36] for number in range(12)]
    tdcd.train(FEDERATION, MODELS, settings(), test=test, batches=batches, directory=tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    other = tdcd.Federation.from_silos(
        [tdcd.Silo("a", X[:, :2] + 1, [range(40)]), tdcd.Silo("b", X[:, 2:], [range(40)])], Y
    )
    first = {silo: network.initial() for silo, network in WHOLE.networks.items()}
    first["b"]["1.bias"] = first["b"]["1.bias"] + 1
    changed_test = tdcd.Samples.from_arrays({"a": X[:9, :2], "b": X[:9, 2:]}, 1 - Y[:9])
    given: dict[str, Any] = {"test": test, "batches": batches}
    for federation, models, more, says in (
        (other, MODELS, {}, "training data"),
        (FEDERATION, MODELS | {"b": tdcd.models.MLP(hidden=[5])}, {}, "networks, first weights"),
        (FEDERATION, MODELS, {"test": changed_test}, "test data"),
        (FEDERATION, MODELS, {"batches": batches[1:] + batches[:1]}, "batches"),
        (FEDERATION, MODELS, {"initial": first}, "first weights"),
    ):
        with pytest.raises(tdcd.RunError, match=f"not what it was started with: {says}; start a new run"):
            tdcd.train(federation, models, settings(), directory=tmp_path, resume=True, **(given | more))
    with pytest.raises(tdcd.RunError, match="engine: local there, oracle here"):
        tdcd.train(FEDERATION, MODELS, settings(), directory=tmp_path, resume=True, engine="oracle")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == before


def test_weights_in_another_memory_layout_resume_exactly(tmp_path: Path) -> None:
    images = tdcd.Federation.from_silos([tdcd.Silo("a", RNG.normal(size=(40, 2, 6, 6)), [range(20), range(20, 40)])], Y)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 1))
    model = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    whole = tdcd.train(images, {"a": model}, settings())
    with pytest.raises(KeyboardInterrupt):
        tdcd.train(images, {"a": model}, settings(), directory=tmp_path, callbacks=[Interrupt(5)])
    assert same(tdcd.train(images, {"a": model}, settings(), directory=tmp_path, resume=True).blocks, whole.blocks)


def test_a_silo_without_weights_resumes(tmp_path: Path) -> None:
    class Sum(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.sum(1, keepdim=True)

    models = MODELS | {"b": Sum()}
    whole = tdcd.train(FEDERATION, models, settings())
    with pytest.raises(KeyboardInterrupt):
        tdcd.train(FEDERATION, models, settings(), directory=tmp_path, callbacks=[Interrupt(5)])
    assert same_or_empty(tdcd.train(FEDERATION, models, settings(), directory=tmp_path, resume=True), whole)


def same_or_empty(one: tdcd.Result, two: tdcd.Result) -> bool:
    return one.blocks["b"] == two.blocks["b"] == {} and same({"a": one.blocks["a"]}, {"a": two.blocks["a"]})


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    before = (tmp_path / "history.jsonl").read_bytes()
    with pytest.raises(tdcd.RunError, match="already holds a run; go on with it"):
        train(tmp_path)
    assert (tmp_path / "history.jsonl").read_bytes() == before


def test_two_trainings_do_not_share_a_directory(tmp_path: Path) -> None:
    class Intruder(tdcd.Callback):
        def after_round(self, finished: FinishedRound) -> None:
            if finished.number == 3:
                with pytest.raises(tdcd.RunError, match="is in use by another training"):
                    train(tmp_path, resume=True)

    train(tmp_path, callbacks=[Intruder()])
    assert same(train(tmp_path, resume=True).blocks, WHOLE.blocks)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    train(tmp_path)
    for file in ("environment.json", "job.toml"):
        whole = (tmp_path / file).read_text()
        (tmp_path / file).write_text(whole[: len(whole) // 2] + "\n[[")
        with pytest.raises(tdcd.RunError, match=rf"{file}: damaged"):
            train(tmp_path, resume=True)
        (tmp_path / file).write_text(whole)


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(tdcd.RunError, match="cannot be written"):
        train(tmp_path / "file" / "run")


class Notes(tdcd.Callback):
    """Keeps notes and where a training starts."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.start = -1

    def noted(self, note: str) -> None:
        self.notes.append(note)

    def started(self, start: Start) -> None:
        self.start = start.done


def test_a_damaged_checkpoint_falls_back_to_the_earlier_one(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        train(tmp_path, callbacks=[Interrupt(11, KilledError)])
    files = {name: (tmp_path / f"{name}.safetensors").read_bytes() for name in ("checkpoint", "earlier")}
    whole, history = files["checkpoint"], (tmp_path / "history.jsonl").read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5], b"", flipped(whole, 7 * len(whole))):
        (tmp_path / "checkpoint.safetensors").write_bytes(damaged)
        seen = Notes()
        result = train(tmp_path, resume=True, callbacks=[seen])
        assert seen.start == 6
        (note,) = [note for note in seen.notes if "kernel" not in note]
        assert "checkpoint.safetensors: damaged" in note
        assert "Going on with the other checkpoint, of round 6" in note
        assert same(result.blocks, WHOLE.blocks)
        assert timeless(result.history) == timeless(WHOLE.history)
        for name, content in files.items():
            (tmp_path / f"{name}.safetensors").write_bytes(content)
        (tmp_path / "history.jsonl").write_bytes(history)
    for name in files:
        (tmp_path / f"{name}.safetensors").write_bytes(files[name][:-1])
    with pytest.raises(tdcd.RunError, match=r"checkpoint.safetensors: damaged"):
        train(tmp_path, resume=True)


def flipped(content: bytes, bit: int) -> bytes:
    """Return bytes with one bit changed."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_no_flipped_bit_resumes_or_predicts_other_numbers(tmp_path: Path) -> None:
    """Every file in turn, at bits drawn all over it: an error that names it, or the very same numbers."""
    train(tmp_path / "run")
    before = tdcd.load_blocks(tmp_path / "run")
    files = sorted(path for path in (tmp_path / "run").rglob("*") if path.is_file() and not path.name.startswith("."))
    assert len(files) == 10
    drawn = np.random.default_rng(5)
    reasons: list[tuple[str, str]] = []
    for file in files:
        content = file.read_bytes()
        for bit in drawn.integers(0, 8 * len(content), 12).tolist():
            copy = tmp_path / "copy"
            shutil.copytree(tmp_path / "run", copy)
            (copy / file.relative_to(tmp_path / "run")).write_bytes(flipped(content, bit))
            try:
                result = train(copy, resume=True)
                blocks = tdcd.load_blocks(copy)
            except tdcd.RunError as error:
                reasons.append((file.name, str(error)))
            else:
                assert same(result.blocks, WHOLE.blocks)
                assert same(blocks, before)
                assert timeless(result.history) == timeless(WHOLE.history)
            shutil.rmtree(copy)
    assert len(reasons) > 30
    assert all(name in reason or "was started with another job" in reason for name, reason in reasons)


def test_blocks_of_another_silo_or_run_are_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        train(tmp_path / str(number), seed=number)
    one, two = (tmp_path / str(number) / "blocks" for number in (1, 2))
    (one / "a.safetensors").write_bytes((two / "a.safetensors").read_bytes())
    with pytest.raises(tdcd.RunError, match=r"blocks: blocks of 2 runs, and no model together"):
        tdcd.load_blocks(tmp_path / "1")
    (two / "a.safetensors").write_bytes((two / "b.safetensors").read_bytes())
    with pytest.raises(tdcd.RunError, match=r"a.safetensors: it holds the block of silo 'b'"):
        tdcd.load_blocks(tmp_path / "2")


def test_a_crash_at_any_byte_loses_nothing_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Die after writing n bytes of a new checkpoint, for many n, or just before it takes the old one's place."""
    file = tmp_path / "checkpoint"
    write_atomically(file, b"old" * 100)
    new = b"new" * 200

    class Crash(Exception):
        pass

    def crash(*_: object) -> None:
        raise Crash

    class Dying:
        """A file whose process dies after some bytes."""

        def __init__(self, path: Path, bytes_: int) -> None:
            self.path, self.bytes = str(path), bytes_

        def __enter__(self) -> "Dying":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, data: bytes) -> None:
            with open(self.path, "wb") as file:
                file.write(data[: self.bytes])
            raise Crash

    for written in range(0, len(new) + 1, 50):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", lambda path, mode, n=written: Dying(path, n))
            with pytest.raises(Crash):
                write_atomically(file, new)
        assert file.read_bytes() == b"old" * 100
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", crash)
        with pytest.raises(Crash):
            write_atomically(file, new)
        assert file.read_bytes() == b"old" * 100
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", crash)
        with pytest.raises(Crash):
            write_atomically(file, new)
        assert file.read_bytes() == b"old" * 100
    write_atomically(file, new)
    assert file.read_bytes() == new


def test_half_a_line_of_history_is_forgotten(tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        train(tmp_path, callbacks=[Interrupt(8, KilledError)])
    history = tmp_path / "history.jsonl"
    whole = history.read_text()
    assert whole.splitlines()[-1].startswith('{"round": 8')  # later than the checkpoint, which is of round 6
    for cut in range(len(whole) - 150, len(whole), 13):
        copy = tmp_path.parent / f"{tmp_path.name}-{cut}"
        shutil.copytree(tmp_path, copy)
        (copy / "history.jsonl").write_text(whole[:cut])
        resumed = train(copy, resume=True)
        assert timeless(resumed.history) == timeless(WHOLE.history)
        assert same(resumed.blocks, WHOLE.blocks)


def test_divergence_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    class Poison(nn.Module):
        """Overflows after some rounds."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.get_buffer("calls").add_(1)
            factor = torch.where(self.get_buffer("calls") > 15, torch.inf, 1.0)
            embedding: torch.Tensor = self.linear(rows) * factor
            return embedding

    says = (
        r"of silo '.' are no longer finite after round 8 of 12. The checkpoint of round 6 is kept in .*. "
        r"Try a smaller rate, such as 0.02 instead of 0.2"
    )
    with pytest.raises(tdcd.DivergedError, match=says):
        tdcd.train(FEDERATION, MODELS | {"a": Poison()}, settings(), directory=tmp_path)
    checkpoint = loaded(tmp_path)
    assert checkpoint
    assert checkpoint.round == 6
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"
    assert all(t.isfinite().all() for block in tdcd.load_blocks(tmp_path).values() for t in block.values())


def test_differences_are_named() -> None:
    old = {"a": 1, "b": {"c": [1], "d": 2}}
    assert differences(old, {"a": 1, "b": {"c": [1], "d": 2}}) == []
    assert differences(old, {"a": 1, "b": {"c": [2], "e": 3}}) == [
        "b.c: [1] there, [2] here",
        "b.d: 2 there, not set here",
        "b.e: not set there, 3 here",
    ]


def test_no_blocks(tmp_path: Path) -> None:
    with pytest.raises(tdcd.RunError, match="no blocks there"):
        tdcd.load_blocks(tmp_path)


@pytest.mark.parametrize("schedule", [{"kind": "constant"}, {"kind": "step", "every": 5}])
def test_a_run_that_has_ended_can_be_given_more_rounds(tmp_path: Path, schedule: dict[str, Any]) -> None:
    whole = train(tmp_path / "whole", schedule=schedule)
    train(tmp_path / "grown", rounds=8, schedule=schedule)
    grown = train(tmp_path / "grown", resume=True, schedule=schedule)
    assert same(grown.blocks, whole.blocks)
    assert timeless(grown.history) == timeless(whole.history)
    assert stored_job(tmp_path / "grown")["training"]["rounds"] == 12
    with pytest.raises(tdcd.RunError, match=r"training.rounds: 12 there, 8 here"):
        train(tmp_path / "grown", resume=True, rounds=8, schedule=schedule)


def test_a_schedule_that_depends_on_the_rounds_cannot_be_given_more(tmp_path: Path) -> None:
    train(tmp_path / "run", rounds=8, schedule={"kind": "cosine"})
    with pytest.raises(tdcd.RunError, match=r"training.rounds: 8 there, 12 here"):
        train(tmp_path / "run", resume=True, schedule={"kind": "cosine"})


class Scaled(nn.Module):
    """Two of these look the same when printed."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.linear = scale, nn.Linear(2, 1)
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.constant_(self.linear.bias, 0.0)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        embedding: torch.Tensor = self.scale * self.linear(rows)
        return embedding


def other_forward() -> type[nn.Module]:
    """Return another class of the same name."""

    class Scaled(globals()["Scaled"]):  # type: ignore[misc]
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            embedding: torch.Tensor = self.linear(rows).tanh()
            return embedding

    return Scaled


def hooked() -> nn.Module:
    module = Scaled(2.0)
    module.linear.register_forward_hook(lambda _m, _i, output: -output)
    return module


@pytest.mark.parametrize("other", [lambda: Scaled(3.0), lambda: other_forward()(2.0), hooked])
def test_another_network_that_looks_the_same_is_refused(tmp_path: Path, other: Any) -> None:
    class Twice(Scaled):
        pass

    first = Scaled(2.0)
    models = MODELS | {"a": first}
    assert repr(other().linear) == repr(first.linear)
    tdcd.train(FEDERATION, models, settings(rounds=3), directory=tmp_path)
    for strange in (other(), Twice(2.0)):
        with pytest.raises(tdcd.RunError, match="not what it was started with: networks; start a new run"):
            tdcd.train(FEDERATION, MODELS | {"a": strange}, settings(rounds=6), directory=tmp_path, resume=True)
    again = tdcd.train(FEDERATION, MODELS | {"a": Scaled(2.0)}, settings(rounds=6), directory=tmp_path, resume=True)
    assert same(again.blocks, tdcd.train(FEDERATION, models, settings(rounds=6)).blocks)
