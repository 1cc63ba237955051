"""Cross-validation of a function on a federation from arrays."""

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch

import tdcd

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X.sum(1) > 0).astype(int)
IDS = RNG.permutation(1000)[:120]
FEDERATION = tdcd.Federation.from_silos(
    [
        tdcd.Silo("a", X[:, :2], {"north": IDS[:50], "south": IDS[50:]}, IDS),
        tdcd.Silo("b", X[:, 2:], [IDS[::2], IDS[1::2]], IDS),
    ],
    Y,
    IDS,
)
SETTINGS = tdcd.Settings(loss="cross-entropy", rounds=4, local_steps=2, rate=0.5)


def train_one(training: tdcd.Federation, test: tdcd.Samples) -> tdcd.Result:
    return tdcd.train(training, tdcd.models.Linear(), SETTINGS, test=test)


def test_a_fold_is_a_part_of_the_rows_of_every_silo() -> None:
    seen = []
    rows = dict(zip(IDS.tolist(), zip(X, Y, strict=True), strict=True))
    for number in (1, 2, 3):
        training, test = FEDERATION.fold(number, of=3)
        seen += list(set(IDS.tolist()) - set(training.ids.tolist()))
        assert len(training) + len(test) == 120
        for place, identity in enumerate(training.ids.tolist()):
            x, y = rows[identity]
            assert torch.equal(training.samples.features["a"][place], torch.from_numpy(x[:2]))
            assert torch.equal(training.samples.features["b"][place], torch.from_numpy(x[2:]))
            assert training.samples.labels[place] == y
            client = training.rosters["a"].clients[training.rosters["a"].owner[place]]
            assert client == ("north" if identity in IDS[:50] else "south")
        assert sum(test.holders["a"].counts()) == len(test)
    assert sorted(seen) == sorted(IDS.tolist())
    with pytest.raises(tdcd.DataError, match="there is no fold 4 of 3"):
        FEDERATION.fold(4, of=3)


def test_rows_in_files_stay_there(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    kept = tdcd.Federation.from_silos([tdcd.Silo("a", tdcd.ArrayFile(tmp_path / "a.npy"), [range(120)])], Y)
    plain = tdcd.Federation.from_silos([tdcd.Silo("a", X, [range(120)])], Y)
    (training, test), (expected, tested) = kept.fold(2), plain.fold(2)
    for samples, other in ((training.samples, expected.samples), (test, tested)):
        assert samples.features["a"].is_meta
        assert torch.equal(samples.loaded().features["a"], other.features["a"])


def test_the_measures_are_those_of_the_results(tmp_path: Path) -> None:
    result = tdcd.cross_validate_function(train_one, FEDERATION, folds=3, repeats=2, file=tmp_path / "cv.jsonl")
    folds = [FEDERATION.fold(fold, 3, seed) for seed in (2021, 2022) for fold in (1, 2, 3)]
    values = [train_one(*fold).kept.test["accuracy"] for fold in folds]
    assert result.frame["test_accuracy"].to_list() == values
    assert result.frame["split"].to_list()[2:4] == ["fold=3", "fold=1,repeat=2"]
    assert result.summary.filter(metric="accuracy")["mean"].item() == pytest.approx(fmean(values))
    assert "3 folds, 2 repeats" in repr(result)

    def never(training: tdcd.Federation, test: tdcd.Samples) -> tdcd.Result:
        raise AssertionError("it has ended before")

    again = tdcd.cross_validate_function(never, FEDERATION, folds=3, repeats=2, file=tmp_path / "cv.jsonl")
    assert again.frame.equals(result.frame)
    with pytest.raises(AssertionError, match="it has ended before"):
        tdcd.cross_validate_function(never, FEDERATION, folds=4, file=tmp_path / "cv.jsonl")


def test_a_call_that_diverges_is_a_failure() -> None:
    first = FEDERATION.fold(1, 3)[0].ids.tolist()

    def diverge_once(training: tdcd.Federation, test: tdcd.Samples) -> dict[str, float]:
        if training.ids.tolist() == first:
            raise tdcd.DivergedError("too far")
        return {"score": float(len(test))}

    result = tdcd.cross_validate_function(diverge_once, FEDERATION, folds=3)
    assert [run.split for run in result.failures] == ["fold=1"]
    others = [len(FEDERATION.fold(fold, 3)[1]) for fold in (2, 3)]
    assert result.summary["mean"].to_list() == [fmean(others)]
    assert "failed or diverged: federation fold=1" in repr(result)
