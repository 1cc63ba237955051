"""Type checkers know the keywords of the Python interface, without any plugin."""

import subprocess
import sys
from pathlib import Path

import pytest

SNIPPET = """
import numpy as np
import tdcd

x = np.zeros((4, 2))
federation = tdcd.Federation.from_silos([tdcd.Silo("bank", x, {"north": range(4)})], [0, 1, 0, 1])
test = tdcd.Samples.from_arrays({"bank": x}, np.zeros(4))
cosine = tdcd.schedules.Cosine(final=0.1)
parts = tdcd.Settings(loss="huber", optimizer={"kind": "adam"}, rounds=2, rate=1, batch_size="full", schedule=cosine)
model = tdcd.models.MLP(hidden=[4], activation="tanh")
labels = tdcd.Labels(silo="bank", sharing="shared")
result = tdcd.train(federation, {"bank": model}, parts, test=test, labels=labels, optimizer=tdcd.optimizers.Adam())
loss: float = result.kept.test["loss"] + result.history[-1].train["loss"]
tdcd.Settings(loss="huber", rounds=2, rate=1, lr=1)  # wrong
tdcd.Settings(loss="huber", rate=1)  # wrong
tdcd.models.MLP(hiden=[4])  # wrong
tdcd.models.MLP(activation="rlu")  # wrong
tdcd.Labels(silos="bank")  # wrong
tdcd.Silo("bank", x, client=[])  # wrong
tdcd.train(federation, model, parts, tests=test)  # wrong
tdcd.trian  # wrong
"""


@pytest.mark.slow
def test_mypy_sees_wrong_keywords_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    said = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(SNIPPET.splitlines(), start=1) if "# wrong" in line}
    assert said == wrong, done.stdout + done.stderr
