"""Tables of three silos: files of several kinds, rows that become one, one file that is dealt to clients."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl


def write_tables(folder: Path) -> dict[str, Any]:
    """Write the tables of three silos; return a job over them."""
    draw = np.random.default_rng(8)
    people = [f"p{number:03}" for number in draw.permutation(400)[:180]]
    bank = pl.DataFrame({
        "id": people,
        "amount": draw.lognormal(5, 2, 180).round(2),
        "kind": draw.choice(["a", "b", "c", "rare"], 180, p=[0.5, 0.3, 0.19, 0.01]),
        "joined": [f"20{number // 9 + 10}-0{number % 9 + 1}-11" for number in draw.integers(0, 90, 180)],
        "y": draw.integers(0, 2, 180),
    })  # fmt: skip
    bank[:100].write_csv(folder / "north.csv", separator=";")
    bank[100:103].write_parquet(folder / "sea.parquet")
    bank[103:].write_csv(folder / "south.csv")
    visits = pl.DataFrame({
        "visit": range(500), "id": draw.choice(people[10:], 500), "cost": draw.normal(size=500).round(3),
        "ward": draw.choice(["x", "y", "NA"], 500), "day": draw.permutation(500),
    })  # fmt: skip
    visits[:260].filter(pl.col("id") < "p200").write_csv(folder / "ward1.csv")
    visits[:260].filter(pl.col("id") >= "p200").write_csv(folder / "ward2.csv")
    shop = pl.DataFrame(
        {"id": draw.permutation(people), "spent": draw.normal(size=180), "age": draw.integers(18, 90, 180)}
    )
    shop = shop.with_columns(age=pl.when(pl.int_range(pl.len()) % 7 == 3).then(None).otherwise(pl.col("age")))
    shop.write_parquet(folder / "shop.parquet")
    return {
        "labels": {"silo": "bank", "sharing": "shared"},
        "data": {"source": "tables", "test_fraction": 0.2, "validation_fraction": 0.1},
        "silos": {
            "bank": {
                "id": "id", "label": "y", "rare": 4,
                "clients": {
                    "north": {"file": str(folder / "north.csv"), "separator": ";"},
                    "sea": str(folder / "sea.parquet"), "south": str(folder / "south.csv"),
                },
            },
            "ward": {
                "id": "id", "row_id": "visit", "order": "day", "aggregate": {"cost": "sum", "*": "last"},
                "clients": {name: str(folder / f"{name}.csv") for name in ("ward1", "ward2")},
            },
            "shop": {"id": "id", "file": str(folder / "shop.parquet"), "clients": 5},
        },
        "model": {"kind": "mlp", "hidden": [3]},
        "training": {"loss": "binary-cross-entropy", "rounds": 3, "rate": 0.1},
    }  # fmt: skip
