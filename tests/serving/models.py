"""Models to put to use: of three silos over tables, and runs as hubs write them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tdcd
from jobs.three_silos import write_tables
from tdcd.jobs.load import parse_job
from tdcd.runs.layout import FEDERATION, RESULT, preparation_file
from tdcd.runs.reader import read_history
from tdcd.runs.records import FederationRecord, Outcome, read_record
from tdcd.runs.store import RunDirectory, load_blocks
from tdcd.runs.stored_job import stored_job

FILES = {"bank/north": ["north.csv"], "bank/sea": ["sea.parquet"], "bank/south": ["south.csv"],
         "ward": ["ward1.csv", "ward2.csv"], "shop": ["shop.parquet"]}  # fmt: skip


def train_tables(folder: Path, **training: Any) -> Path:
    """Train a job over the tables of three silos; return its run."""
    table = write_tables(folder)
    table["training"] |= training
    tdcd.run_job(parse_job(table, "three"), folder / "run")
    return folder / "run"


def new_tables(folder: Path) -> dict[str, list[Path | str]]:
    """Return the files of all silos."""
    return {silo: [folder / file for file in files] for silo, files in FILES.items()}


def as_hub_runs(run: Path, folder: Path, changes: Mapping[str, Mapping[str, Any]] = {}) -> list[Path]:
    """Write the run of each hub that would have come of a deployment; ``changes`` are to records of some silos."""
    record, outcome = read_record(run / FEDERATION, FederationRecord), read_record(run / RESULT, Outcome)
    job, blocks, history = stored_job(run), load_blocks(run), read_history(run)
    paths = []
    for silo in record.silos:
        path = folder / silo.name
        others = tuple(other.name for other in record.silos if other is not silo)
        own = replace(record, silos=(silo,), peers=others)
        own = replace(own, **(changes or {}).get(silo.name, {}))
        with RunDirectory.open(path, job, resume=False, is_hub=True) as directory:
            directory.begin_run(own.run)
            directory.begin(own, history)
            if preparation_file(run, silo.name).exists():
                directory.save_preparation(silo.name, preparation_file(run, silo.name).read_text())
            directory.finish(outcome, {silo.name: blocks[silo.name]})
        paths.append(path)
    return paths
