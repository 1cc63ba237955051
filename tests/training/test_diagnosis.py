"""Every finding is provoked: on made-up histories, and by trainings that deserve it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcd
from support import federation_record, silo_record
from tdcd.core.ledger import Traffic
from tdcd.core.rows import Rows
from tdcd.errors import DivergedError, JobError
from tdcd.runs.reader import read_outcome
from tdcd.runs.records import Evaluation, Finding
from tdcd.training.diagnosis import Contribution, Evidence, Overshoot, diagnose

RNG = np.random.default_rng(5)
X = RNG.normal(size=(400, 6))
Y = (X[:, 0] + X[:, 4] + 0.5 * RNG.normal(size=400) > 0).astype(int)


def settings(**more: Any) -> tdcd.Settings:
    return tdcd.Settings.model_validate({"loss": "binary-cross-entropy", "rounds": 100, "rate": 0.1} | more)


def history(
    train: Sequence[float],
    validation: Sequence[float] = (),
    every: int = 10,
    measures: Mapping[str, float] | None = None,
) -> list[Evaluation]:
    more = measures or {}
    return [
        Evaluation(
            round=every * number,
            iteration=every * number,
            seconds=1.0,
            traffic=Traffic(),
            rows={"train": Rows(100, 100)} | ({"validation": Rows(20, 20)} if validation else {}),
            train={"loss": loss, **more},
            validation={"loss": validation[number], **more} if validation else {},
        )
        for number, loss in enumerate(train)
    ]


def findings(lines: Sequence[Evaluation], selected: int | None = None, **more: Any) -> dict[str, Finding]:
    evidence: Mapping[str, Any] = {"settings": settings(), "status": "finished"} | more
    chosen = lines[-1].round if selected is None else selected
    return {finding.kind: finding for finding in diagnose(Evidence(history=lines, selected=chosen, **evidence))}


SETTLED = [1.0, 0.6, 0.5, 0.45, 0.45, 0.45]


def test_a_good_training_has_no_findings() -> None:
    assert findings(history(SETTLED, SETTLED, measures={"null_loss": 0.9})) == {}
    assert findings([], selected=0) == {}, "a hub that does not receive the measures knows nothing"


def test_a_training_that_rose() -> None:
    found = findings(history([0.72, 5.0, 68.8]))["worse-than-start"]
    assert (found.level, found.numbers) == ("failure", {"first": 0.72, "last": 68.8})
    assert "rose from 0.72 to 68.8" in found.text


def test_kept_weights_of_round_0() -> None:
    found = findings(history([0.72, 5.0, 68.8], [0.7, 5.0, 60.0]), selected=0)["worse-than-start"]
    assert found.level == "failure"
    assert "0.7 before training and 60 after it, so the weights of round 0 are kept" in found.text


def test_a_loss_that_rose_while_ranks_improved_is_a_warning() -> None:
    lines = history([1.0, 0.5, 0.1], [1.0, 0.9, 1.2])
    lines = [
        Evaluation(**{**vars(line), "validation": {**line.validation, "auroc": 0.5 + 0.1 * n}})
        for n, line in enumerate(lines)
    ]
    found = findings(lines)["worse-than-start"]
    assert found.level == "warning"
    assert "AUROC rose from 0.500 to 0.700" in found.text


@pytest.mark.parametrize(
    ("measures", "kind", "level"),
    [
        ({"null_loss": 0.4}, "trivial", "failure"),
        ({"null_loss": 0.4, "auroc": 0.51}, "trivial", "failure"),
        ({"null_loss": 0.4, "auroc": 0.9}, "overconfident", "warning"),
        ({"r2": -0.01}, "trivial", "failure"),
    ],
)
def test_no_better_than_a_constant(measures: dict[str, float], kind: str, level: str) -> None:
    found = findings(history(SETTLED, SETTLED, measures=measures))
    assert [(one.kind, one.level) for one in found.values()] == [(kind, level)]


def test_best_weights_from_the_first_evaluations() -> None:
    validation = [1.0, 0.5, *[0.52] * 19]
    found = findings(history([1.0, 0.5, *[0.5] * 19], validation), selected=10)
    assert list(found) == ["early-best"]
    assert "evaluation 1 of 20 (round 10)" in found["early-best"].text


def test_overfitting_is_a_warning_unless_the_best_weights_are_kept() -> None:
    lines = history([1.0, 0.6, 0.5, 0.4, 0.3, 0.2], [1.0, 0.7, 0.6, 0.65, 0.7, 0.8])
    assert findings(lines)["overfitting"].level == "warning"
    found = findings(lines, selected=20)["overfitting"]
    assert found.level == "note"
    assert found.numbers == {"round": 20, "lowest": 0.6, "last": 0.8}


def test_a_training_that_was_still_falling() -> None:
    lines = history([1.0 - 0.05 * n for n in range(11)])
    found = findings(lines)["unfinished"]
    assert "the last 10 of 100 rounds brought 10.0% of its descent" in found.text
    assert "rounds = 200" in found.advice
    assert "unfinished" not in findings(lines, stopped="stopped by EarlyStopping")
    few = history([1.0, 0.5, 0.4, 0.399], every=30)
    assert findings(few) == {}, "a third of the rounds for a six-hundredth of the descent"


def test_silos_that_overshoot_together() -> None:
    far = [Overshoot(n, 1.0, {1.0: 1.2, 0.5: 0.7, 0.25: 0.8}) for n in range(8)]
    found = findings(history(SETTLED), overshoots=far)["overshooting"]
    assert "raised the loss of the mini-batch by 0.2 on average, where a step of 0.5 lowers it by 0.3" in found.text
    assert "size = 0.5" in found.advice
    well = [Overshoot(n, 1.0, {1.0: 0.6, 0.5: 0.58, 0.25: 0.8}) for n in range(8)]
    assert findings(history(SETTLED), overshoots=well) == {}, "a twentieth more is not worth a setting"


def test_silos_that_add_nothing() -> None:
    shares = {"bank": Contribution(0.45, 0.7), "noise": Contribution(0.45, 0.4501)}
    found = findings(history(SETTLED, SETTLED), contributions=shares)
    assert list(found) == ["superfluous-silo-noise"]


def test_clients_that_add_nothing_and_unequal_ones() -> None:
    record = federation_record([silo_record("a", [500, 490, 0]), silo_record("b", [330, 330, 340])], samples=990)
    found = findings(history(SETTLED), federation=record)
    assert list(found) == ["idle-clients-a"]
    unequal = federation_record([silo_record("a", [900, 90]), silo_record("b", [500, 490])], samples=990)
    found = findings(history(SETTLED), federation=unequal)
    assert (found["unequal-clients-a"].level, list(found)) == ("note", ["unequal-clients-a"])
    assert "weighs 10.0 times as much" in found["unequal-clients-a"].text
    assert findings(history(SETTLED), federation=unequal, settings=settings(averaging="samples")) == {}


# What trainings show ------------------------------------------------------------------------------------------------


def train(
    features: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], path: Path | None = None, **more: Any
) -> tdcd.Result:
    silos = [
        tdcd.Silo(name, rows, [range(100), range(100, 190), range(190, 300)])
        for name, rows in (("a", features[:300, :3]), ("b", features[:300, 3:]))
    ]
    held_out = tdcd.Samples.from_arrays({"a": features[300:, :3], "b": features[300:, 3:]}, labels[300:])
    keys = {"rounds": 60, "local_steps": 5, "rate": 0.5, "batch_size": 100}
    model = more.pop("model", tdcd.models.Linear())
    return tdcd.train(
        tdcd.Federation.from_silos(silos, labels[:300]),
        model,
        settings(**keys | more),
        validation=held_out,
        directory=path,
    )


def test_noise_teaches_nothing(tmp_path: Path) -> None:
    noise = RNG.normal(size=X.shape)
    result = train(noise, Y, tmp_path / "run", rounds=200, model=tdcd.models.MLP(hidden=[32]))
    assert {"trivial"} <= {finding.kind for finding in result.failures}
    outcome = read_outcome(tmp_path / "run")
    assert outcome
    assert outcome.findings == result.findings
    assert tdcd.Result.load(tmp_path / "run").failures == result.failures


def test_a_silo_of_noise_adds_nothing() -> None:
    features = np.concatenate([X[:, :1], X[:, 4:5], X[:, 0:1], 0 * X[:, :3]], axis=1)
    kinds = {finding.kind for finding in train(features, Y).findings}
    assert "superfluous-silo-b" in kinds
    assert "superfluous-silo-a" not in kinds


def test_silos_that_see_the_same_overshoot() -> None:
    twins = np.concatenate([X[:, :3], X[:, :3]], axis=1)
    many = train(twins, Y, local_steps=50, rate=3.0, batch_size="full")
    assert "overshooting" in {finding.kind for finding in many.findings}
    once = train(twins, Y, local_steps=1, rate=0.5, batch_size="full")
    assert "overshooting" not in {finding.kind for finding in once.findings}


def test_looking_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = train(X, Y)
    monkeypatch.setattr("tdcd.training.diagnosis.probes.PROBES", 1)
    monkeypatch.setattr("tdcd.training.diagnosis.probes.ROWS", 3)
    other = train(X, Y)
    for silo, block in looked.blocks.items():
        assert all(bool((block[name] == other.blocks[silo][name]).all()) for name in block)


def test_a_diverged_training_says_so_in_its_result(tmp_path: Path) -> None:
    with pytest.raises(DivergedError):
        train(X, Y, tmp_path / "run", model=tdcd.models.MLP(hidden=[8]), rate=1e20, rounds=100, checkpoint_every=1)
    outcome = read_outcome(tmp_path / "run")
    if outcome:  # a round before was finite
        assert "diverged" in {finding.kind for finding in outcome.findings}


# Which weights are best ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("measure", "best"), [("loss", min), ("auroc", max), ("accuracy", max)])
def test_weights_are_selected_by_any_measure(measure: str, best: Any) -> None:
    result = train(X, Y, select="best", select_by=measure, rate=4.0, local_steps=20, evaluate_every=3)
    values = [line.validation[measure] for line in result.history]
    assert result.kept.validation[measure] == best(values)
    assert result.selected == result.history[values.index(best(values))].round, "the first of equals"


def test_patience_goes_by_that_measure() -> None:
    result = train(X, Y, patience=2, select_by="accuracy", evaluate_every=1, rounds=60, rate=0.01)
    values = [line.validation["accuracy"] for line in result.history]
    best = values.index(max(values))
    assert len(values) - 1 - best == 2


def test_select_by_refuses_what_it_cannot_do() -> None:
    with pytest.raises(JobError, match=r"select_by: 'aurok' is not measured; did you mean 'auroc'"):
        settings().replace(select="best", select_by="aurok")
    with pytest.raises(JobError, match=r'nothing is selected; write select = "best", or set patience'):
        settings().replace(select_by="auroc")
    with pytest.raises(JobError, match=r"'auroc' is not defined on the validation samples"):
        train(X, np.concatenate([Y[:300], np.zeros(100, int)]), select="best", select_by="auroc")
