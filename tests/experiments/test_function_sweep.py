"""A sweep over a Python function goes on where it was stopped and returns a row for each call."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 4))
Y = (X.sum(1) > 0).astype(int)
FEDERATION = tdcd.Federation.from_silos([tdcd.Silo("a", X, [range(40)])], Y)


class Calls:
    """Remembers what it was called with, and stops before a call that is too many."""

    def __init__(self, most: int = 99) -> None:
        self.most, self.seen = most, list[Any]()

    def __call__(self, seed: int, rate: float, name: str = "") -> dict[str, float]:
        if len(self.seen) == self.most:
            raise KeyboardInterrupt
        self.seen.append((rate, name, seed))
        if rate > 9:
            raise tdcd.DivergedError("too far")
        return {"score": rate * seed}


def test_a_row_for_each_call() -> None:
    calls = Calls()
    frame = tdcd.sweep_function(calls, {"rate": [0.5, 1], "name": ["x", "y"]}, seeds=[1, 2])
    expected = [(rate, name, seed) for rate in (0.5, 1) for name in ("x", "y") for seed in (1, 2)]
    assert calls.seen == expected
    assert frame.select("rate", "name", "seed").rows() == expected
    assert frame["score"].to_list() == [rate * seed for rate, _, seed in expected]


def test_results_are_rows_of_their_kept_evaluation() -> None:
    def train_one(seed: int, rate: float) -> tdcd.Result:
        settings = tdcd.Settings(loss="binary-cross-entropy", rounds=3, rate=rate, seed=seed)
        return tdcd.train(FEDERATION, tdcd.models.Linear(), settings)

    frame = tdcd.sweep_function(train_one, {"rate": [0.1]}, seeds=[1, 2])
    assert frame["train_loss"].to_list() == [train_one(seed, 0.1).kept.train["loss"] for seed in (1, 2)]


def test_a_stopped_sweep_goes_on_and_may_grow(tmp_path: Path) -> None:
    file, grid = tmp_path / "sweeps" / "mine.jsonl", {"rate": [1, 2, 3]}
    with pytest.raises(KeyboardInterrupt):
        tdcd.sweep_function(Calls(2), grid, file=file)
    with file.open("a") as unfinished:
        unfinished.write('{"given": {"ra')
    calls = Calls()
    frame = tdcd.sweep_function(calls, grid, file=file)
    assert calls.seen == [(3, "", 2021)]
    assert frame.equals(tdcd.sweep_function(Calls(0), grid, file=file))
    more = Calls()
    assert tdcd.sweep_function(more, {"rate": [1, 2, 3, 4]}, file=file)["score"].to_list() == [2021, 4042, 6063, 8084]
    assert more.seen == [(4, "", 2021)]


def test_a_training_that_diverges_is_a_row() -> None:
    frame = tdcd.sweep_function(Calls(), {"rate": [1, 10]})
    assert frame.select("diverged", "score").rows() == [(False, 2021), (True, None)]


@pytest.mark.parametrize(
    ("function", "grid", "says"),
    [
        (Calls(), {"seed": [1]}, "grid: 'seed' goes by its own name"),
        (Calls(), {"rate": [object()]}, "a sweep writes numbers, texts and lists of them: .* give the others a name"),
        (Calls(), {"rate": 0.1}, r"grid: 'rate': a list of values is wanted, not 0.1; of one value: \[0.1\]"),
        (Calls(), {"name": "xy"}, r"grid: 'name': a list of values is wanted, not 'xy'; of one value: \['xy'\]"),
        (Calls(), [0.1], r"grid: values by the names of arguments are wanted, not \[0.1\]"),
        (lambda **_: {}, {"diverged": [1]}, "grid: 'diverged' is a column of what is measured; call the argument oth"),
        (lambda **_: 3, {"rate": [1]}, "the function returned int; it should return a result, or numbers by name"),
        (lambda **_: {"rate": 3}, {"rate": [1]}, "grid: rate is the name of something measured"),
    ],
)
def test_what_a_sweep_cannot_do(function: Any, grid: Any, says: str) -> None:
    with pytest.raises(tdcd.JobError, match=says):
        tdcd.sweep_function(function, grid)


def test_values_of_numpy_are_taken(tmp_path: Path) -> None:
    grid = {"rate": np.array([0.5, 1.0]), "name": [np.str_("x")]}
    calls, file = Calls(), tmp_path / "mine.jsonl"
    frame = tdcd.sweep_function(calls, grid, seeds=np.arange(2), file=file)  # type: ignore[arg-type]
    assert frame.equals(tdcd.sweep_function(Calls(0), {"rate": [0.5, 1.0], "name": ["x"]}, seeds=[0, 1], file=file))
    assert len(calls.seen) == 4
    with pytest.raises(tdcd.JobError, match="seeds: a list of values is wanted, not 3"):
        tdcd.sweep_function(calls, {"rate": [1]}, seeds=3)  # type: ignore[arg-type]


def test_damage_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    tdcd.sweep_function(Calls(), {"rate": [1, 2]}, file=file)
    file.write_text(file.read_text().replace("4042", "4043"))
    with pytest.raises(tdcd.RunError, match=r"mine.jsonl: line 2: damaged"):
        tdcd.sweep_function(Calls(), {"rate": [1, 2]}, file=file)
