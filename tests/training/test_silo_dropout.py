"""Silos that are missing in training: the setting, and what it is good for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tdcd
from support import distance, run_command, same
from tdcd.core.silo_dropout import SiloDropout
from tdcd.experiments.sweep_plan import matters
from tdcd.jobs.load import load_job, parse_job
from tdcd.jobs.run import run_job, variant_job
from tdcd.runs.reader import read_run

GENERATOR = np.random.default_rng(0)
COMMON = GENERATOR.normal(size=(400, 2))
BANK, SHOP = (np.hstack([COMMON, GENERATOR.normal(size=(400, 1))]) for _ in range(2))
"""Both silos know the same, and something else each."""
Y = (4 * COMMON.sum(1) + BANK[:, 2] + SHOP[:, 2] + GENERATOR.logistic(size=400) > 0).astype(np.int64)
FIRST, LAST = slice(300), slice(300, 400)


def train(rounds: int = 150, **more: Any) -> tdcd.Result:
    silos = [
        tdcd.Silo("bank", BANK[FIRST], [range(100), range(100, 300)]),
        tdcd.Silo("shop", SHOP[FIRST], [range(0, 300, 2), range(1, 300, 2)]),
    ]
    given = {name: more.pop(name) for name in ("labels", "directory", "resume", "engine") if name in more}
    table = {"loss": "binary-cross-entropy", "rounds": rounds, "rate": 0.3, "local_steps": 2, "batch_size": 64}
    settings = tdcd.Settings.model_validate(table | more)
    return tdcd.train(tdcd.Federation.from_silos(silos, Y[FIRST]), tdcd.models.Linear(), settings, **given)


def loss_of(result: tdcd.Result, *silos: str) -> float:
    """Return the loss on new rows, of the sum of these silos' embeddings alone."""
    rows = {"bank": BANK[LAST], "shop": SHOP[LAST]}
    with torch.no_grad():
        scores = sum(result.modules()[silo](torch.from_numpy(rows[silo]).float()) for silo in silos)
    assert isinstance(scores, torch.Tensor)
    return float(F.binary_cross_entropy_with_logits(scores[:, 0], torch.from_numpy(Y[LAST]).float()))


def test_predictions_survive_the_absence_of_a_silo() -> None:
    """Without it, each silo learns a part of what both know, and has too little when it is alone."""
    plain, dropped = train(), train(silo_dropout=0.4)
    for silo in ("bank", "shop"):
        assert loss_of(dropped, silo) < loss_of(plain, silo) - 0.01
        assert loss_of(dropped, "bank", "shop") < loss_of(dropped, silo) - 0.02
    assert loss_of(dropped, "bank", "shop") < loss_of(plain, "bank", "shop") + 0.01


def test_a_silo_left_out_counts_in_its_own_steps_only() -> None:
    """One step from the first weights, written out."""
    settings: dict[str, Any] = {"rounds": 1, "local_steps": 1, "batch_size": "full", "averaging": "samples"}
    start, new = (train(**settings, rate=rate, silo_dropout=0.5).blocks for rate in (1e-30, 0.3))
    rows = {"bank": torch.from_numpy(BANK[FIRST]).float(), "shop": torch.from_numpy(SHOP[FIRST]).float()}
    embeddings = {silo: x @ start[silo]["1.weight"].T + start[silo]["1.bias"] for silo, x in rows.items()}
    for silo, other in (("bank", "shop"), ("shop", "bank")):
        present = SiloDropout(0.5, 2021).present(1, torch.arange(300), other)
        assert 100 < int(present.sum()) < 200
        scores = embeddings[silo][:, 0] + embeddings[other][:, 0] * present
        pull = torch.sigmoid(scores) - torch.from_numpy(Y[FIRST])
        wanted = start[silo]["1.weight"] - 0.3 * (pull @ rows[silo]).unsqueeze(0) / 300
        assert torch.allclose(new[silo]["1.weight"], wanted.float(), atol=1e-6)


def test_none_is_the_default_and_changes_no_bit() -> None:
    assert same(train(20).blocks, train(20, silo_dropout=0.0).blocks)
    assert distance(train(20).blocks, train(20, silo_dropout=0.1).blocks) > 1e-3


def test_a_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    whole = train(6, silo_dropout=0.3)
    train(3, silo_dropout=0.3, directory=tmp_path / "run")
    assert same(train(6, silo_dropout=0.3, directory=tmp_path / "run", resume=True).blocks, whole.blocks)
    assert distance(whole.blocks, train(6, silo_dropout=0.3, engine="oracle").blocks) < 1e-5


@pytest.mark.parametrize("value", [-0.1, 1, 1.0, float("nan"), "often"])
def test_what_is_no_probability_below_one_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="silo_dropout"):
        train(silo_dropout=value)


@pytest.mark.parametrize("sharing", ["exact", "stale"])
def test_private_labels_are_refused_by_name(sharing: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = f'training.silo_dropout goes with shared labels: with labels.sharing = "{sharing}" silo '
    with pytest.raises(tdcd.JobError, match=message):
        train(silo_dropout=0.1, labels=tdcd.Labels(silo="bank", sharing=sharing))
    table = load_job("digits").as_table()
    table["labels"] = {"silo": "left", "sharing": sharing}
    parse_job(table, "job")
    table["training"]["silo_dropout"] = 0.2
    with pytest.raises(tdcd.JobError, match=message):
        parse_job(table, "job")
    words = ("--set", "labels.silo=left", "--set", f"labels.sharing={sharing}", "--set", "training.silo_dropout=0.2")
    assert run_command("train", "digits", "-o", tmp_path / "run", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_where_all_data_is_in_one_place_no_silo_is_missing() -> None:
    job = load_job("digits", {"training.silo_dropout": 0.2})
    for variant in ("central", "left alone"):
        assert variant_job(job, variant).training.silo_dropout == 0
    assert variant_job(job, "one-tier").training.silo_dropout == 0.2
    kept = [matters("training.silo_dropout", kind) for kind in ("central", "alone", "one-tier")]
    assert kept == [False, False, True]


def test_one_silo_is_told_that_there_is_nobody_to_leave_out(tmp_path: Path) -> None:
    settings = {
        "data.features": {"kind": "strips", "silos": 1}, "silos": {}, "baselines": [], "training.rounds": 1,
        "training.silo_dropout": 0.2,
    }  # fmt: skip
    run_job(load_job("digits", settings), tmp_path / "run")
    (note,) = [note for note in read_run(tmp_path / "run").federation.notes if "silo_dropout" in note]
    assert "only silo" in note
