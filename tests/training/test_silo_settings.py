"""What one silo does in its own way: local steps and rates; and clients that take turns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from support import distance, same
from tdcd.experiments.sweep_plan import matters
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import run_job, variant_job
from tdcd.runs.reader import read_run
from tdcd.runs.records import Evaluation
from tdcd.training.schedules import Theory

X = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)


def federation() -> tdcd.Federation:
    thirds = [range(0, 60, 3), range(1, 60, 3), range(2, 60, 3)]
    silos = [tdcd.Silo("bank", X[:, :3], thirds), tdcd.Silo("insurer", X[:, 3:], [range(30), range(30, 60)])]
    return tdcd.Federation.from_silos(silos, Y)


def train(silos: Any = None, **more: Any) -> tdcd.Result:
    given = {name: more.pop(name) for name in ("labels", "directory", "resume", "batches") if name in more}
    table = {"loss": "binary-cross-entropy", "rounds": 4, "local_steps": 2, "batch_size": 30, "rate": 0.3}
    settings = tdcd.Settings.model_validate(table | more)
    return tdcd.train(federation(), tdcd.models.Linear(), settings, silos=silos, **given)


def test_a_silo_that_repeats_the_common_settings_changes_nothing() -> None:
    own = {"bank": tdcd.SiloSettings(local_steps=2, rate=0.3), "insurer": tdcd.SiloSettings()}
    assert same(train(own).blocks, train().blocks)


def test_each_silo_takes_its_own_steps_at_its_own_rate() -> None:
    """In the first round a silo does not depend on what the others do after the exchange."""
    own = {"bank": tdcd.SiloSettings(local_steps=5, rate=0.1)}
    mixed = train(own, rounds=1).blocks
    assert same({"bank": mixed["bank"]}, {"bank": train(rounds=1, local_steps=5, rate=0.1).blocks["bank"]})
    assert same({"insurer": mixed["insurer"]}, {"insurer": train(rounds=1).blocks["insurer"]})
    assert distance(mixed, train(rounds=1).blocks) > 1e-3


def test_a_schedule_goes_with_a_rate_of_its_own() -> None:
    settings = tdcd.Settings(loss="cross-entropy", rounds=10, local_steps=4, rate=0.4, schedule=Theory())
    own = settings.of_silo("bank", tdcd.SiloSettings(local_steps=2, rate=0.1))
    assert own.rate_of(3) == pytest.approx(0.1 / (2 * 10**0.5))
    assert settings.rate_of(3) == pytest.approx(0.4 / (4 * 10**0.5))


def test_a_silo_with_rate_of_its_own_goes_on_to_the_bit(tmp_path: Path) -> None:
    own = {"bank": tdcd.SiloSettings(local_steps=3, rate=0.05)}
    more: dict[str, Any] = {
        "participation": 0.5, "checkpoint_every": 2, "aggregator": {"kind": "momentum", "momentum": 0.5}
    }  # fmt: skip
    whole = train(own, rounds=8, **more)
    train(own, rounds=4, directory=tmp_path / "run", **more)
    assert same(train(own, rounds=8, directory=tmp_path / "run", resume=True, **more).blocks, whole.blocks)
    changed = {"bank": tdcd.SiloSettings(local_steps=3, rate=0.06)}
    with pytest.raises(tdcd.RunError, match=r"silos.bank.rate: 0.05 there, 0.06 here"):
        train(changed, rounds=8, directory=tmp_path / "run", resume=True, **more)


@pytest.mark.parametrize(
    ("silos", "more", "message"),
    [
        ({"bnak": tdcd.SiloSettings()}, {}, "silos: 'bnak' is no silo; did you mean 'bank'"),
        ({"bank": {"rate": 0.1}}, {}, r"silos: 'bank': make it with tdcd.SiloSettings\(…\)"),
        ({"bank": tdcd.SiloSettings(local_steps=1)}, {"optimizer": {"kind": "sgd", "momentum": 0.5}},
         "silo 'bank': momentum starts afresh"),
        ({"bank": tdcd.SiloSettings(local_steps=1)}, {"proximal": 0.1}, "silo 'bank': proximal: with local_steps = 1"),
        (None, {"participation": 0.5, "batches": [range(10)] * 4}, "batches: participation below 1 draws"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_named(silos: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(tdcd.JobError, match=message):
        train(silos, **more)


@pytest.mark.parametrize("participation", [0, -0.5, 1.5, float("nan"), "half"])
def test_a_participation_that_is_no_part(participation: Any) -> None:
    with pytest.raises(ValueError, match="participation"):
        train(participation=participation)


def test_a_silo_without_features_takes_no_steps() -> None:
    table = load_job("digits").as_table()
    table["silos"]["registry"] = {"clients": 2, "local_steps": 3}
    table["labels"] = {"silo": "registry", "sharing": "exact"}
    with pytest.raises(tdcd.JobError, match="silo 'registry' has no features, so it takes no local steps"):
        run_job(parse_job(table, "job"))


def test_only_those_who_take_part_count() -> None:
    """With one client drawn in each silo, the hub's new weights are that client's."""
    own = federation()
    settings = tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.3, participation=0.4)
    result = tdcd.train(own, tdcd.models.Linear(), settings)
    start = tdcd.train(own, tdcd.models.Linear(), settings.model_copy(update={"rate": 1e-30})).blocks
    taken = {}
    for silo, block in result.blocks.items():
        x = torch.from_numpy(X[:, :3] if silo == "bank" else X[:, 3:])
        scores = torch.zeros(60, 1)
        for name, part in (("bank", slice(3)), ("insurer", slice(3, 6))):
            scores += torch.from_numpy(X[:, part]) @ start[name]["1.weight"].T + start[name]["1.bias"]
        ways = []
        for bank in range(3):
            for insurer in range(2):
                rows = (np.arange(60) % 3 == bank) & (np.arange(60) // 30 == insurer)
                pull = torch.sigmoid(scores[rows, 0]) - torch.from_numpy(Y[rows])
                step = start[silo]["1.weight"] - 0.3 * (pull @ x[rows]).unsqueeze(0) / len(pull)
                ways.append(torch.allclose(block["1.weight"], step.float(), atol=1e-6))
        taken[silo] = ways
    assert sum(taken["bank"]) == 1
    assert taken["bank"] == taken["insurer"]


def test_a_part_that_is_everybody_is_noted() -> None:
    notes = [tdcd.Simulation(federation(), tdcd.models.Linear(), settings).setup.notes for settings in (
        tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.1, participation=0.9),
        tdcd.Settings(loss="binary-cross-entropy", rounds=1, rate=0.1, participation=0.5),
    )]  # fmt: skip
    assert notes == [("participation = 0.9 draws all clients of every silo in each round; leave it out",), ()]


def test_where_all_data_is_in_one_place_nothing_is_encoded_and_nobody_takes_turns() -> None:
    job = load_job("digits", {"training.codec": "float16", "training.participation": 0.5})
    for variant in ("central", "left alone"):
        settings = variant_job(job, variant).training
        assert (settings.codec, settings.participation) == (tdcd.codecs.Plain(), 1.0)
    assert variant_job(job, "one-tier").training.codec == tdcd.codecs.Float16()
    for key in ("training.codec", "training.participation", "silos.left.rate", "silos.left.local_steps"):
        assert [matters(key, kind) for kind in ("central", "alone", "one-tier")] == [False, False, True]
    assert matters("silos.left.model", "alone")


def test_a_job_says_what_a_silo_does_in_its_own_way(tmp_path: Path) -> None:
    settings = {
        "silos.left.local_steps": 1, "silos.right.rate": 0.05, "training.participation": 0.5, "training.rounds": 3,
        "training.evaluate_every": 3, "baselines": ["central", "alone"], "training.local_steps": 4,
    }  # fmt: skip
    job = load_job("digits", settings)
    assert (job.settings_of("left").local_steps, job.settings_of("right").local_steps) == (1, 4)
    assert (job.settings_of("left").rate, job.settings_of("right").rate) == (job.training.rate, 0.05)
    result = run_job(job, tmp_path / "run")
    rounds = {name: last(one).round for name, one in result.all.items()}
    notes = read_run(tmp_path / "run").federation.notes
    rate = job.training.rate
    assert f"silo 'left' takes 1 local step in a round, with rate = {rate:g}" in notes
    assert "silo 'right' takes 4 local steps in a round, with rate = 0.05" in notes
    assert rounds == {"federation": 3, "central": 12, "left alone": 12, "right alone": 12}
    again = run_job(load_job("digits", settings | {"engine": "oracle", "baselines": []}))
    assert distance(result.federation.blocks, again.federation.blocks) < 1e-5


def last(result: tdcd.Result) -> Evaluation:
    return result.history[-1]


def test_settings_but_for_some() -> None:
    settings = tdcd.Settings(loss="cross-entropy", rounds=10, local_steps=4, rate=0.4, codec="float16")
    assert settings.replace(rate=0.1) == tdcd.Settings(
        loss="cross-entropy", rounds=10, local_steps=4, rate=0.1, codec="float16"
    )
    with pytest.raises(tdcd.JobError, match="unknown key 'local_step'; did you mean 'local_steps'"):
        settings.replace(local_step=1)
    with pytest.raises(tdcd.JobError, match="rate: should be greater than 0"):
        settings.replace(rate=-1.0)
    with pytest.raises(tdcd.JobError, match="proximal: with local_steps = 1"):
        settings.replace(local_steps=1, proximal=0.1)
