"""What several benchmarks of sites measure."""

from pathlib import Path

from tdcd.jobs.run import run_job
from tdcd.jobs.schema import Job
from tdcd.runs.store import load_blocks
from tdcd.sites.local_deployment import LocalFederation


def resident(process: int | str = "self") -> float:
    """Return the megabytes of memory that a process has now, by its number; by default this one."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 2**20


def distance_from_simulation(federation: LocalFederation, job: Job) -> float:
    """Return how far the weights of a deployment that has ended are from those of the simulation."""
    simulated = run_job(job).federation.blocks
    blocks = {silo: load_blocks(run)[silo] for silo, run in federation.runs.items()}
    return max(float((blocks[s][n] - t).abs().max()) for s, block in simulated.items() for n, t in block.items())
