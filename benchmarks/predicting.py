"""How long central prediction from tables takes, and how much memory: `tdcd predict` in a process of its own.

    python benchmarks/predicting.py             # 250,000, 1,000,000 and 4,000,000 people
    python benchmarks/predicting.py --short

Two silos of 25 columns each, an MLP each, IDs are texts in another order in each silo; writes benchmarks/RESULTS.md.
"""

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

import loading
import tdcd
from results import Section, Table, write_sections
from tdcd.serving.assemble import assemble

SIZES = (250_000, 1_000_000, 4_000_000)
LEARN = 20_000
"""People that the model is trained on."""


def run(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and the most megabytes of memory that it had."""
    begun = time.perf_counter()
    quiet = ["sh", "-c", 'exec "$@" > /dev/null', "sh", sys.executable, "-m", *command]
    process = os.spawnvp(os.P_NOWAIT, "sh", quiet)  # noqa: S606 - subprocess would count this process's memory
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with {status}")
    return time.perf_counter() - begun, usage.ru_maxrss / 1024


def write(folder: Path, rows: int, suffix: str) -> Path:
    """Write tables of so many people; return the job."""
    folder.mkdir()
    loading.ROWS, loading.FILES = rows, 2
    return loading.write_tables(folder, suffix, texts=True)


def unlabelled(folder: Path, suffix: str) -> list[str]:
    """Take the labels out of the bank's table; return the tables as options."""
    files = {silo: folder / f"{silo}-0.{suffix}" for silo in ("bank", "insurer")}
    scan, new = pl.scan_csv if suffix == "csv" else pl.scan_parquet, folder / f"new.{suffix}"
    rows = scan(files["bank"]).drop("label")
    rows.sink_csv(new) if suffix == "csv" else rows.sink_parquet(new)
    new.replace(files["bank"])
    return [f"--table={silo}={path}" for silo, path in files.items()]


def table(options: argparse.Namespace) -> Table:
    """Predict for more and more people."""
    yield ["people", "tables", "seconds, with starting Python", "most memory, MB", "predictions a second"]
    with TemporaryDirectory() as scratch:
        job = tdcd.load_job(write(Path(scratch, "learn"), 2_000 if options.short else LEARN, "csv"))
        settings = job.model_copy(update={"model": tdcd.models.MLP(hidden=[64])})
        tdcd.run_job(settings, Path(scratch, "run"))
        model = assemble([Path(scratch, "run")], Path(scratch, "model"))
        for suffix in ("csv", "parquet"):
            for rows in (5_000,) if options.short else SIZES:
                folder = Path(scratch, f"{suffix}-{rows}")
                write(folder, rows, suffix)
                files = unlabelled(folder, suffix)
                out = Path(scratch, "predictions.parquet")
                seconds, memory = run(["tdcd", "predict", str(model), *files, "--out", str(out), "--force", "--json"])
                if pl.read_parquet(out).height != rows:
                    raise RuntimeError(json.dumps({"rows": rows, "predicted": pl.read_parquet(out).height}))
                shutil.rmtree(folder)
                yield [f"{rows:,}", suffix, f"{seconds:.1f}", f"{memory:.0f}", f"{rows / seconds:,.0f}"]


SECTIONS: dict[str, Section] = {
    "predicting": (
        "Predicting from tables",
        table,
        """Two silos of 25 columns in one file each, without labels, MLPs of 64, text IDs in another order in each silo.
Python, torch and polars take 265 MB of the memory; files that are mapped count as long as they are in it.""",
    )
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small sizes, to try whether it runs")
    write_sections(SECTIONS, list(SECTIONS), parser.parse_args())
