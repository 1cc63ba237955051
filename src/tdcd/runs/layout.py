"""Where everything is in a run directory.

job.toml                 the job with every default filled in; `tdcd train` takes it as it is
environment.json         one entry a session: versions, commits, machine, fingerprints of the data, command, date
federation.json          silos, clients, rows, networks
rosters.safetensors      which client of each silo holds which sample; with it any run can be priced again
history.jsonl            one evaluation a line
checkpoint.safetensors   the state of all silos after some round: where `--resume` goes on
earlier.safetensors      the checkpoint before that
best-ROUND.safetensors   all blocks that were best on the validation samples, with select = "best"
blocks/SILO.safetensors  each hub's block at the end
preparation/SILO.json    how its tables became numbers, where it has tables
quality.json             how good the weights that it ends with are on held-out samples: curves, thresholds, each client
importance.json          how much columns and silos matter to them, if that was measured
theory.json              its gradients beside the bound of Theorem 1, if these were measured
result.json              how it ended
report.html              all of it to look at

Every record, line and safetensors file has a digest of itself, and result.json those of what predictions rest on: what
was altered since it was written is refused when it is read.

A baseline's run directory is inside that of the run it is compared with. A sweep's directory has sweep.json, its plan,
and its runs in runs/ and trials/.
"""

from pathlib import Path
from shlex import quote

from tdcd.errors import RunError, join_names

JOB = "job.toml"
ENVIRONMENT = "environment.json"
FEDERATION = "federation.json"
ROSTERS = "rosters.safetensors"
HISTORY = "history.jsonl"
CHECKPOINT = "checkpoint.safetensors"
EARLIER = "earlier.safetensors"
BEST = "best-{}.safetensors"
BLOCKS = "blocks"
PREPARATION = "preparation"
QUALITY = "quality.json"
IMPORTANCE = "importance.json"
THEORY = "theory.json"
RESULT = "result.json"
LOCK = ".lock"
MARKER = ".cluster"
"""By which nodes of a cluster tell that they share a sweep's directory, while it is under way."""
SWEEP = "sweep.json"
EXPORT = "export.json"

FEDERATED = "federation"
"""The variant of a job that is the job itself; others are the baselines "central", "one-tier" and "SILO alone"."""


def holds_run(path: Path) -> bool:
    """Tell whether a directory is that of a run."""
    return (path / JOB).exists()


def holds_job_only(path: Path) -> bool:
    """Tell whether a directory has a job file that is a user's own, and nothing of a run."""
    return holds_run(path) and not any(
        (path / name).exists() for name in (ENVIRONMENT, FEDERATION, HISTORY, CHECKPOINT)
    )


def holds_sweep(path: Path) -> bool:
    """Tell whether a directory is that of a sweep."""
    return (path / SWEEP).exists()


def hub_runs(path: Path) -> list[Path]:
    """Return the runs of the hubs in the folder of a deployment; nothing if it is another directory."""
    return [] if (path / FEDERATION).exists() else sorted(site.parent / "run" for site in path.glob("*/hub.toml"))


def preparation_file(path: Path, silo: str) -> Path:
    """Return where a silo's preparation is."""
    return path / PREPARATION / f"{silo}.json"


def variant_directory(path: Path, variant: str) -> Path:
    """Return the directory of a variant of the job whose run is at ``path``."""
    if variant == FEDERATED:
        return path
    return path / "alone" / variant.removesuffix(" alone") if variant.endswith(" alone") else path / variant


def check_run(path: Path) -> None:
    """Check that a directory is a run.

    Raises:
        RunError: it is not.
    """
    if runs := hub_runs(path):
        raise RunError(
            f"{path} is a deployment, not a run: every hub has a run of its own, with the weights of its silo only "
            f"({join_names(runs)}). tdcd report takes one of these; predictions need all silos' weights, as one model: "
            f"tdcd assemble {quote(str(path))} --out MODEL"
        )
    if holds_job_only(path):
        raise RunError(
            f"{path} is not a run: it has a {JOB} and nothing else of a run; train that with: "
            f"tdcd train {quote(str(path / JOB))}"
        )
    if holds_run(path):
        return
    if not path.exists():
        raise RunError(f"{path}: no such directory")
    if path.is_file():
        raise RunError(f"{path} is a file; name the directory of a run")
    if holds_sweep(path):
        raise RunError(f"{path} is a sweep, not a run; its runs are in {path / 'runs'}")
    if (path / EXPORT).exists():
        raise RunError(
            f"{path} is an export for other programs; tdcd predicts from the model or run that it was made of"
        )
    inside = sorted(result.parent.name for result in path.glob(f"*/{JOB}"))
    hint = f"; there are runs in it, such as {path / inside[0]}" if inside else ""
    raise RunError(f"{path} is not a run: it has no {JOB}{hint}")


def check_no_run(path: Path) -> None:
    """Check that a directory is free for a new run.

    Raises:
        RunError: it holds one, or a sweep, or is a file.
    """
    if path.is_file():
        raise RunError(f"{path} is a file; name a directory")
    if holds_sweep(path):
        raise RunError(f"{path} already holds a sweep; choose another directory")
    if holds_job_only(path):
        raise RunError(f"{path} has a {JOB}, which that of the run would replace; choose another directory")
    if holds_run(path):
        raise RunError(
            f"{path} already holds a run; go on with it (tdcd train --resume {quote(str(path))}, or resume=True in "
            "Python), or choose another directory"
        )
