from math import sqrt
from typing import Any

import pytest
from pydantic import ValidationError

from tdcd import JobError, Settings
from tdcd.training.schedules import cut


def settings(**more: Any) -> Settings:
    return Settings.model_validate({"loss": "cross-entropy", "rounds": 11, "local_steps": 4, "rate": 0.8} | more)


def test_constant() -> None:
    assert {settings().rate_of(number) for number in range(1, 12)} == {0.8}


def test_step() -> None:
    stepped = settings(schedule={"kind": "step", "every": 3, "factor": 0.5})
    rates = [stepped.rate_of(number) for number in range(1, 12)]
    assert rates == [0.8] * 3 + [0.4] * 3 + [0.2] * 3 + [0.1] * 2


def test_cosine() -> None:
    cosine = settings(schedule={"kind": "cosine", "final": 0.25})
    rates = [cosine.rate_of(number) for number in range(1, 12)]
    assert rates[0] == pytest.approx(0.8)
    assert rates[5] == pytest.approx((0.8 + 0.2) / 2)
    assert rates[-1] == pytest.approx(0.2)
    assert rates == sorted(rates, reverse=True)
    assert settings(rounds=1, schedule={"kind": "cosine"}).rate_of(1) == pytest.approx(0.8)


@pytest.mark.parametrize("schedule", [{"kind": "cosine", "final": 0.1}, {"kind": "theory"}, {"kind": "constant"}])
def test_a_schedule_can_be_cut(schedule: dict[str, Any]) -> None:
    whole = settings(schedule=schedule)
    short = whole.replace(rounds=4, schedule=cut(whole.schedule, whole.rounds))
    assert [short.rate_of(number) for number in range(1, 5)] == [whole.rate_of(number) for number in range(1, 5)]
    assert cut(short.schedule, short.rounds) == short.schedule, "cut again, it is still that of the first training"


def test_a_cosine_that_is_over_stays_where_it_is() -> None:
    cosine = settings(schedule={"kind": "cosine", "final": 0.5, "over": 5})
    assert [cosine.rate_of(number) for number in (1, 5, 6, 11)] == pytest.approx([0.8, 0.4, 0.4, 0.4])


def test_theory() -> None:
    assert settings(schedule={"kind": "theory"}).rate_of(7) == pytest.approx(0.8 / (4 * sqrt(11)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rounds": 0}, "greater than 0"),
        ({"rounds": 2.5}, "valid integer"),
        ({"rounds": "ten"}, "valid integer"),
        ({"rate": -0.1}, "greater than 0"),
        ({"rate": float("nan")}, "greater than 0|finite"),
        ({"rate": float("inf")}, "finite"),
        ({"loss": "hinge"}, "cross-entropy"),
        ({"local_stepz": 3}, "unknown key 'local_stepz'; did you mean 'local_steps'"),
        ({"optimizer": {"kind": "sgd", "momentum": 1.0}}, "at least 0 and below 1"),
        ({"batch_size": "half"}, "full"),
        (
            {"loss": {"kind": "cross-entropy", "positive_weight": 2.0}},
            "unknown key 'positive_weight' of the kind",
        ),
        ({"schedule": {"kind": "step"}}, "Field required"),
        ({"schedule": {"kind": "cosine", "fnal": 1}}, "did you mean 'final'"),
    ],
)
def test_bad_settings(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(**changes)


def test_a_batch_larger_than_the_data() -> None:
    assert settings().batch_of(70) == 70
    assert settings(batch_size=50).batch_of(70) == 50
    with pytest.raises(JobError, match=r"training.batch_size: 71 is more than the 70 training samples"):
        settings(batch_size=71).batch_of(70)


def test_python_gets_tdcds_own_error() -> None:
    with pytest.raises(JobError, match=r"Settings: rounds: should be greater than 0 \(is 0\)\nSettings: rate: should"):
        Settings(loss="cross-entropy", rounds=0, rate=-1)
