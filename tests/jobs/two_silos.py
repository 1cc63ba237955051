"""A small job on tables: a bank with the labels, and an insurer with one client."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

import tdcd
from tdcd.jobs.schema import TableJob


def write_job(folder: Path, bank: Mapping[str, Any], insurer_id: str) -> TableJob:
    """Write the job of a bank with these settings; return it."""
    table = {
        "labels": {"silo": "bank", "sharing": "shared"},
        "data": {"source": "tables"},
        "silos": {"bank": dict(bank), "insurer": {"id": insurer_id, "clients": {"all": "insurer.csv"}}},
        "model": {"kind": "linear"},
        "training": {"loss": "binary-cross-entropy", "rounds": 3, "local_steps": 2, "rate": 0.2},
    }
    (folder / "job.toml").write_text(tomli_w.dumps(table))
    job = tdcd.load_job(folder / "job.toml")
    assert isinstance(job, TableJob)
    return job
