"""The authors' own program, round by round."""

from pathlib import Path

import numpy as np
import pytest

import tdcd
from tdcd.training.simulation import EngineName

GOLDEN = Path(__file__).parent / "golden"
FILES = ("authors_lstm_n1_k4_q7", "authors_lstm_n4_k3_q5")


def check_trajectory(name: str, engine: EngineName) -> None:
    """Train as they did, so many rounds and one more each time, and compare weights, losses and metrics."""
    record = np.load(GOLDEN / f"{name}.npz", allow_pickle=False)
    samples, silos, clients, local_steps, rounds, batch, rate, seed = record["meta"].tolist()
    M, N, K = int(samples), int(silos), int(clients)
    columns = {f"silo-{j}": record[f"cols_{j}"] for j in range(N)}
    rows = record["X_train"][record["perm"]]
    held = [list(range(k * M // K, (k + 1) * M // K)) for k in range(K)]
    federation = tdcd.Federation.from_silos(
        [tdcd.Silo(silo, rows[:, :, chosen], held) for silo, chosen in columns.items()],
        record["y_train"][record["perm"]],
    )
    test = tdcd.Samples.from_arrays({s: record["X_test"][:, :, c] for s, c in columns.items()}, record["y_test"])

    def weights(stage: str) -> dict[str, dict[str, np.ndarray]]:
        outcome: dict[str, dict[str, np.ndarray]] = {}
        for key in record.files:
            if key.startswith(f"{stage}/"):
                _, silo, parameter = key.split("/")
                outcome.setdefault(f"silo-{silo}", {})[parameter] = record[key]
        return outcome

    for number in range(1, int(rounds) + 1):
        result = tdcd.train(
            federation,
            tdcd.models.LSTM(hidden=64 // N),
            tdcd.Settings(
                loss="binary-cross-entropy",
                rounds=number,
                local_steps=int(local_steps),
                rate=rate,
                seed=int(seed),
                evaluate_every=1,
            ),
            test=test,
            initial=weights("init"),
            batches=list(record["batches"]),
            engine=engine,
        )
        expected = weights(f"after{number - 1}")  # the record numbers rounds from 0
        for silo, block in result.blocks.items():
            for parameter, value in block.items():
                assert np.abs(value.numpy() - expected[silo][parameter]).max() < 1e-6, (number, silo, parameter)
        last = result.history[-1]
        at = number - 1
        assert last.train["loss"] == pytest.approx(record["train_loss"][at], abs=1e-5)
        assert last.test["loss"] == pytest.approx(record["test_loss"][at], abs=1e-5)
        assert last.train["f1"] == pytest.approx(record["train_f1"][at], abs=1e-12)
        assert last.test["f1"] == pytest.approx(record["test_f1"][at], abs=1e-12)
        assert last.test["auroc"] == pytest.approx(record["test_auroc"][at], abs=1e-12)
    assert int(batch) == record["batches"].shape[1]
