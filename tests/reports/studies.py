"""Runs, lines and studies that are made up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import federation_record, silo_record
from tdcd.core.ledger import Traffic
from tdcd.core.rows import Rows
from tdcd.costs import Costs
from tdcd.reports.frame import Measure
from tdcd.reports.lines import Line
from tdcd.reports.study import Panel, Study
from tdcd.runs.history import History
from tdcd.runs.reader import RunRecord
from tdcd.runs.records import Evaluation, Outcome

ACCURACY, TEST_LOSS = Measure("test", "accuracy"), Measure("test", "loss")


def made(steps: int, scores: Sequence[float], *, losses: Sequence[float] = (), silos: int = 2, clients: int = 3,
         variant: str = "federation", seed: int = 1, status: Any = "finished") -> RunRecord:  # fmt: skip
    """Make up a run that was evaluated after every round."""
    history = tuple(
        Evaluation(
            round=number,
            iteration=number * steps,
            seconds=1.0,
            traffic=Traffic(number, number, number),
            rows={"train": Rows(100, 100), "test": Rows(20, 20)},
            train={"loss": losses[number] if losses else 1 - score},
            test={"accuracy": score, "loss": 1 - score},
        )
        for number, score in enumerate(scores)
    )
    last = len(scores) - 1
    return RunRecord(
        path=Path(f"run-{steps}-{silos}-{clients}-{variant}-{seed}"),
        variant=variant,
        job={"training": {"local_steps": steps, "seed": seed}, "data": {"clients": clients, "features": silos}},
        federation=federation_record([silo_record(f"s{j}", [1] * clients) for j in range(silos)]),
        history=History(history),
        sessions=(),
        outcome=Outcome(status, True, last, last, last, last * steps, 1.0, None, {}),
        baselines={},
    )


def line(*runs: RunRecord) -> Line:
    job = runs[0].job
    values = {"Q": job["training"]["local_steps"], "K": job["data"]["clients"], "N": job["data"]["features"]}
    return Line(f"Q = {values['Q']}", runs[0].variant, values, tuple(runs))


def study(*panels: Panel, t_comm: tuple[float, ...] = (10.0, 100.0), wanted: float | None = None) -> Study:
    planned = sum(len(one.runs) for panel in panels for one in panel.lines)
    return Study("s", "s", "Q", ACCURACY, t_comm, wanted, Costs(), panels, planned, {"name": "s"}, {})
