"""How long reading, aligning and preparing data takes, and how much memory: each job in a process of its own.

python benchmarks/loading.py JOB.toml     # one job, as JSON; a folder: its tables by polars alone
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROWS, COLUMNS, FILES = 1_000_000, 50, 20
"""In two silos: each has every row, half of the columns and half of the files."""

JOB = """
name = "million"
labels = {{ silo = "bank", sharing = "shared" }}
data = {{ source = "tables" }}
model = {{ kind = "linear" }}
training = {{ loss = "binary-cross-entropy", rounds = 1, rate = 0.1 }}
silos.bank = {{ id = "id", label = "label", clients = {{ {bank} }} }}
silos.insurer = {{ id = "id", clients = {{ {insurer} }} }}
"""


def write_tables(folder: Path, suffix: str, *, texts: bool) -> Path:
    """Write a million rows: numbers, a column of texts and one of codes in each silo; return the job."""
    import numpy as np  # not above: they would count in the memory that is measured
    import polars as pl

    generator = np.random.default_rng(0)
    own, clients = COLUMNS // 2, FILES // 2
    files = {}
    for silo in ("bank", "insurer"):
        ids = generator.permutation(ROWS)
        names = [folder / f"{silo}-{client}.{suffix}" for client in range(clients)]
        for name, part in zip(names, np.array_split(ids, clients), strict=True):
            count = len(part)
            frame = pl.DataFrame({"id": [f"C{n:07d}" for n in part] if texts else part})
            numbers = {f"n{c}": np.round(generator.normal(size=count) * 10.0 ** (c % 4), 4) for c in range(own - 2)}
            frame = frame.with_columns(**{name: pl.Series(values) for name, values in numbers.items()})
            frame = frame.with_columns(
                colour=pl.Series(generator.choice(["red", "green", "blue", "grey"], count)),
                flag=pl.Series(generator.integers(0, 2, count)),
                label=pl.Series(generator.integers(0, 2, count)),
            )
            frame = frame.drop("label") if silo == "insurer" else frame
            frame.write_csv(name) if suffix == "csv" else frame.write_parquet(name)
        files[silo] = ", ".join(f'c{client} = "{name.name}"' for client, name in enumerate(names))
    job = folder / "job.toml"
    job.write_text(JOB.format(**files))
    return job


def point(job: str) -> dict[str, float]:
    """Load one job's data."""
    import tdcd

    loaded = tdcd.load_job(job)
    start = time.perf_counter()
    data = tdcd.load_data(loaded)
    passed = time.perf_counter() - start
    parts = [data.federation.samples, *data.held_out.values()]
    size = sum(rows.nbytes for part in parts for rows in part.features.values())
    return {"seconds": passed, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "data": size}


def plain(folder: str) -> dict[str, float]:
    """Do the same to the tables with polars alone: read, join, standardise, make dummies of texts."""
    start = time.perf_counter()
    import polars as pl

    silos = [
        pl.concat([pl.read_csv(file) for file in sorted(Path(folder).glob(f"{silo}-*.csv"))])
        for silo in ("bank", "insurer")
    ]
    joined = silos[0].join(silos[1], on="id", suffix=" 2").sort("id").drop("id", "label")
    numbers = [name for name, kind in joined.schema.items() if kind.is_numeric()]
    scaled = [((pl.col(name) - pl.col(name).mean()) / pl.col(name).std()).cast(pl.Float32) for name in numbers]
    rows = joined.with_columns(scaled).to_dummies(["colour", "colour 2"]).cast(pl.Float32).to_numpy()
    passed = time.perf_counter() - start
    return {"seconds": passed, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "data": rows.nbytes}


def measured(cifar10: Path | None) -> Iterator[tuple[str, dict[str, float]]]:
    """Measure every job."""
    with TemporaryDirectory() as scratch:
        for name, suffix, texts in (
            ("20 CSV files, IDs are numbers", "csv", False),
            ("20 CSV files, IDs are texts", "csv", True),
            ("20 Parquet files, IDs are numbers", "parquet", False),
        ):
            folder = Path(scratch, name)
            folder.mkdir()
            job = write_tables(folder, suffix, texts=texts)
            yield f"{ROWS:,} rows of {COLUMNS} columns in {name}", _apart(job)
            if texts:
                yield "the same by polars alone: read, join, standardise", _apart(folder)
        if cifar10:
            job = Path(scratch, "cifar10.toml")
            job.write_text(
                f'data = {{ source = "cifar10", directory = "{cifar10.resolve()}" }}\nmodel = {{ kind = "linear" }}\n'
                'training = { loss = "cross-entropy", rounds = 1, rate = 0.1 }\n'
            )
            yield "CIFAR-10 as two halves", _apart(job)


def _apart(job: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, job], capture_output=True, text=True, check=True)  # noqa: S603
    result: dict[str, float] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    print(json.dumps(plain(sys.argv[1]) if Path(sys.argv[1]).is_dir() else point(sys.argv[1])))
