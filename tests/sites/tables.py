"""Tables of three silos with two, three and four clients, whose people overlap in part."""

from pathlib import Path

import numpy as np
import polars as pl

from tdcd.jobs.load import load_job
from tdcd.jobs.schema import Job

SILOS = {"bank": 2, "hospital": 3, "insurer": 4}


def write_tables(folder: Path, people: int = 240, **training: object) -> Job:
    """Write every client's file and the job; return the job."""
    generator = np.random.default_rng(7)
    truth = generator.normal(size=(people, 6))
    label = (truth.sum(1) + generator.normal(size=people) > 0).astype(int)
    lines = [
        'name = "three"',
        'labels = { silo = "bank", sharing = "shared" }',
        '[data]\nsource = "tables"\nvalidation_fraction = 0.1',
        '[model]\nkind = "mlp"\nhidden = [5]',
        '[training]\nloss = "binary-cross-entropy"\nrounds = 12\nlocal_steps = 3\nbatch_size = 40\nrate = 0.1',
        "evaluate_every = 4\ncheckpoint_every = 4",
        *(f"{key} = {value}" for key, value in training.items()),
        "[deployment]\nclient_deadline = 20\nhub_deadline = 120",
    ]
    for number, (silo, count) in enumerate(SILOS.items()):
        known = generator.permutation(people)[: int(people * 0.9)]
        owner = generator.choice(count, len(known), p=np.arange(1, count + 1) / (count * (count + 1) / 2))
        lines.append(f'[silos.{silo}]\nid = "person"' + ('\nlabel = "ill"' if silo == "bank" else ""))
        lines.append(f"[silos.{silo}.clients]")
        for client in range(count):
            mine = known[owner == client]
            columns = {
                "person": [f"p{person:04d}" for person in mine],
                f"{silo}_a": truth[mine, 2 * number].round(3),
                f"{silo}_b": np.where(truth[mine, 2 * number + 1] > 0, "high", "low"),
            }
            if silo == "bank":
                columns["ill"] = label[mine]
            file = folder / f"{silo}-{client}.csv"
            pl.DataFrame(columns).write_csv(file)
            lines.append(f'part-{client} = "{file.name}"')
    (folder / "job.toml").write_text("\n".join(lines))
    return load_job(folder / "job.toml")
