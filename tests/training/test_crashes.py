"""Whatever a training is writing when it is stopped: going on ends where an uninterrupted run ends."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcd
from support import examples, same
from tdcd import files
from tdcd.runs import records, store, tensors

RNG = np.random.default_rng(5)
X = RNG.normal(size=(60, 6))
Y = (X[:, 0] + X[:, 4] + 1.5 * RNG.normal(size=60) > 0).astype(np.int64)
"""Noisy: the validation loss falls a while, and rises."""
HELD_OUT = tdcd.Samples.from_arrays({"a": X[40:, :3], "b": X[40:, 3:]}, Y[40:])
FEDERATION = tdcd.Federation.from_silos(
    [tdcd.Silo(name, x, [range(25), range(25, 40)]) for name, x in (("a", X[:40, :3]), ("b", X[:40, 3:]))], Y[:40]
)


def run(path: Path | None, **more: Any) -> tdcd.Result:
    table = {"loss": "binary-cross-entropy", "rounds": 20, "rate": 0.5, "local_steps": 4, "evaluate_every": 2,
             "checkpoint_every": 5}  # fmt: skip
    return tdcd.train(
        FEDERATION,
        tdcd.models.MLP(hidden=[8]),
        tdcd.Settings.model_validate(table | more),
        validation=HELD_OUT,
        directory=path,
        resume=path is not None and path.exists(),
    )


class CrashError(BaseException):
    """The power is gone."""


@contextmanager
def stopped_at(write: int, moment: str, error: type[BaseException]) -> Iterator[Callable[[], int]]:
    """Stop at the n-th write to a file: before it, after it, or half-way."""
    count = 0
    whole, added = files.write_atomically, files.append

    def hit() -> bool:
        nonlocal count
        count += 1
        return count == write

    def write_atomically(path: Path, content: Any, **more: Any) -> None:
        now = hit()
        if now and moment == "before":
            raise error
        if now and moment == "half":
            path.with_name(f".{path.name}.tmp").write_bytes(b"half")
            raise error
        whole(path, content, **more)
        if now:
            raise error

    def append(path: Path, line: str) -> None:
        now = hit()
        if now and moment == "before":
            raise error
        if now and moment == "half":
            with path.open("a") as file:
                file.write(line[: len(line) // 2])
            raise error
        added(path, line)
        if now:
            raise error

    with pytest.MonkeyPatch.context() as patch:
        for module in (files, records, store, tensors):
            patch.setattr(module, "write_atomically", write_atomically)
        patch.setattr(store, "append", append)
        yield lambda: count


def timeless(result: tdcd.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.as_dict().items() if k != "seconds"} for line in result.history]


ENDS = {
    (select, patience): run(None, select=select, patience=patience)
    for select in ("last", "best")
    for patience in (None, 3)
}


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(1, 60),
    st.sampled_from(["before", "half", "after"]),
    st.sampled_from([KeyboardInterrupt, CrashError]),
    st.sampled_from(sorted(ENDS, key=str)),
    st.integers(1, 60),
)
def test_stopped_at_any_write_it_ends_where_it_would_have(
    write: int, moment: str, error: type[BaseException], how: tuple[str, int | None], again: int
) -> None:
    """And stopped once more while it goes on."""
    select, patience = how
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        for number in (write, again):
            try:
                with stopped_at(number, moment, error):
                    run(path, select=select, patience=patience)
            except error:
                pass
        result = run(path, select=select, patience=patience)
        expected = ENDS[how]
        assert result.selected == expected.selected
        assert timeless(result) == timeless(expected)
        assert same(result.blocks, expected.blocks)
        assert same(tdcd.load_blocks(path), expected.blocks)


@pytest.mark.parametrize("moment", ["before", "half", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, CrashError])
def test_best_weights_survive_a_signal_while_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, error: type[BaseException]
) -> None:
    """Every write of best weights in turn."""
    expected = ENDS["best", None]
    original = files.write_atomically
    better = sum(line.better for line in expected.history)
    assert better > 2
    for number in range(1, better + 1):
        path, count = tmp_path / str(number), 0

        def stopped(file: Path, content: Any, **more: Any) -> None:
            nonlocal count
            count += file.name.startswith("best-")
            if file.name.startswith("best-") and count == number:  # noqa: B023
                if moment == "half":
                    file.with_name(f".{file.name}.tmp").write_bytes(b"half")
                if moment == "after":
                    original(file, content, **more)
                raise error
            original(file, content, **more)

        with monkeypatch.context() as patch:
            patch.setattr(tensors, "write_atomically", stopped)
            with pytest.raises(error):
                run(path, select="best")
        result = run(path, select="best")
        assert result.selected == expected.selected
        assert same(result.blocks, expected.blocks)
        shutil.rmtree(path)


@settings(max_examples=examples(20), deadline=None)
@given(
    st.integers(1, 25),
    st.integers(1, 25),
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from(["last", "best"]),
    st.sampled_from([None, 1, 2, 4]),
)
def test_more_rounds_end_where_a_run_of_so_many_ends(
    first: int, second: int, every: int, saved: int, select: str, patience: int | None
) -> None:
    """The evaluation at the old end is no part of the longer run, unless it was due anyway."""
    chosen = {"evaluate_every": every, "checkpoint_every": saved, "select": select, "patience": patience}
    total = first + second
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run")
        run(path, rounds=first, **chosen)
        result = run(path, rounds=total, **chosen)
        expected = run(None, rounds=total, **chosen)
        assert result.selected == expected.selected
        assert timeless(result) == timeless(expected)
        assert same(result.blocks, expected.blocks)


def test_missing_best_weights_are_told(tmp_path: Path) -> None:
    run(tmp_path / "run", select="best")
    for file in (tmp_path / "run").glob("best*"):
        file.unlink()
    with pytest.raises(tdcd.RunError, match=r"the weights of round \d+, the best so far, are missing"):
        run(tmp_path / "run", select="best", rounds=25)
