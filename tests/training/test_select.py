"""Ending with the best weights, and ending early, by the validation loss."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcd
from support import Interrupt

GENERATOR = np.random.default_rng(5)
X, Y = GENERATOR.normal(size=(60, 6)), GENERATOR.integers(0, 2, 60)
"""Noise: training soon learns it by heart, so that the validation loss rises."""
HELD_OUT = tdcd.Samples.from_arrays({"a": X[40:, :3], "b": X[40:, 3:]}, Y[40:])


def run(
    directory: Path | None = None, validation: Any = HELD_OUT, callbacks: Sequence[tdcd.Callback] = (), **more: Any
) -> tdcd.Result:
    silos = [tdcd.Silo(name, x, [range(25), range(25, 40)]) for name, x in (("a", X[:40, :3]), ("b", X[:40, 3:]))]
    federation = tdcd.Federation.from_silos(silos, Y[:40])
    settings = {"loss": "binary-cross-entropy", "rounds": 40, "rate": 0.5, "evaluate_every": 4, "checkpoint_every": 7}
    return tdcd.train(
        federation,
        tdcd.models.MLP(hidden=[16]),
        tdcd.Settings.model_validate(settings | more),
        validation=validation,
        directory=directory,
        resume=directory is not None and (directory / "job.toml").exists(),
        callbacks=callbacks,
    )


def losses(result: tdcd.Result) -> list[float]:
    return [match.validation["loss"] for match in result.history]


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    last, best = run(), run(tmp_path / "run", select="best")
    assert losses(best) == losses(last)
    lowest = min(losses(best))
    assert lowest < losses(best)[-1]  # it did overfit
    assert best.kept.validation["loss"] == lowest
    assert best.selected == best.kept.round < 40
    assert last.selected == last.kept.round == 40
    assert best.final == best.history[-1] != best.kept
    assert last.final == last.kept
    assert best.evaluate(HELD_OUT)["loss"] == pytest.approx(lowest, abs=1e-6)
    stored = tdcd.load_blocks(tmp_path / "run")
    assert all(torch.equal(stored[silo][name], t) for silo, block in best.blocks.items() for name, t in block.items())
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (summary["selected"], summary["round"]) == (best.selected, 40)
    assert summary["evaluated"]["round"] == best.selected
    again = run(tmp_path / "run", select="best")
    assert again.selected == best.selected
    assert "validation" in tdcd.write_report(tmp_path / "run").read_text()


@pytest.mark.parametrize("patience", [None, 3])
@pytest.mark.parametrize("after", [1, 5, 9, 13, 30])
def test_a_resumed_run_keeps_the_same(tmp_path: Path, after: int, patience: int | None) -> None:
    whole = run(tmp_path / "whole", select="best", patience=patience)
    try:
        run(tmp_path / "cut", select="best", patience=patience, callbacks=[Interrupt(after)])
    except KeyboardInterrupt:
        (tmp_path / "cut" / "result.json").unlink()
    resumed = run(tmp_path / "cut", select="best", patience=patience)
    assert resumed.selected == whole.selected
    assert losses(resumed) == losses(whole)
    assert all(
        torch.equal(whole.blocks[silo][name], t) for silo, block in resumed.blocks.items() for name, t in block.items()
    )


def test_a_training_that_no_longer_gains_ends(tmp_path: Path) -> None:
    whole, early = run(), run(tmp_path / "run", patience=2)
    best = losses(whole).index(min(losses(whole)))
    assert losses(early) == losses(whole)[: best + 3]
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert summary["status"] == "finished"
    assert summary["round"] == early.history[-1].round < 40
    again = run(tmp_path / "run", patience=2)
    assert losses(again) == losses(early)


@pytest.mark.parametrize("settings", [{"select": "best"}, {"patience": 3}])
def test_both_need_a_validation_set(settings: dict[str, Any]) -> None:
    with pytest.raises(tdcd.JobError, match='select = "best" and patience need a validation set'):
        run(validation=None, **settings)
