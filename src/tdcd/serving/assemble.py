"""One model from a simulation's run, or from the runs of all hubs: at the end, or from a checkpoint on the way.

The runs of hubs may be copied to one place only if their owners allow it: weights tell of the rows that they were
trained on, and preparations hold means and categories. Nothing here reads rows.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tdcd.core.network import Block
from tdcd.errors import DamagedError, RunError, join_names
from tdcd.files import replace_directory, write_atomically
from tdcd.runs.digests import digest_file
from tdcd.runs.environment import describe_session
from tdcd.runs.layout import BLOCKS, PREPARATION, QUALITY, hub_runs, preparation_file
from tdcd.runs.records import FederationRecord, write_record
from tdcd.runs.store import save_blocks
from tdcd.runs.stored_job import differences, without_rounds
from tdcd.serving.card import model_card
from tdcd.serving.part import TRIES, Part, Run
from tdcd.serving.record import CARD, FORMAT, MODEL, ModelRecord, holds_model


def assemble(runs: Iterable[Path | str], out: Path | str, *, force: bool = False) -> Path:
    """Make one model of a simulation's run, or of the runs of all hubs of a training; return its directory.

    Args:
        runs: One run of a simulation, or one of each hub, or the folder of a local deployment. Where they are under
            way, the newest checkpoint that all of them have is taken.
        out: The directory of the model.
        force: Replace a model that is there.

    Raises:
        RunError: the runs do not belong together, one is missing or damaged, or the directory is taken.
    """
    given = [Path(run) for run in runs]
    read = [Run.read(run) for path in given for run in (hub_runs(path) or [path])]
    if not read:
        raise RunError("name a run, or the runs of all hubs")
    check_together([(str(run.path), run.job, run.federation) for run in read])
    check_free(Path(out), force=force)
    for attempt in range(TRIES):
        round_ = _common_round(read)
        try:
            parts = [run.part(round_) for run in read]
            break
        except DamagedError:  # a run under way has written another checkpoint
            if attempt == TRIES - 1:
                raise
            read = [Run.read(run.path) for run in read]
    return write_model(parts, Path(out), force=force)


def write_model(parts: Sequence[Part], out: Path, *, force: bool = False) -> Path:
    """Make one model of the parts of all silos, which belong together; return its directory.

    Raises:
        RunError: it cannot be written there.
    """
    check_free(out, force=force)
    federation = _joined([part.federation for part in parts])
    best = max(parts, key=lambda part: sum(len(e.train) + len(e.validation) + len(e.test) for e in part.history))
    job, round_ = portable(parts[0].job), parts[0].round
    record = ModelRecord(
        format=FORMAT,
        name=str(job.get("name", "model")),
        run=federation.run,
        round=round_,
        rounds=int(job["training"]["rounds"]),
        ended=all(part.finished for part in parts),
        assembled=datetime.now(UTC).isoformat(timespec="seconds"),
        sources={silo: part.source for part in parts for silo in part.silos},
        versions=_versions(),
        job=job,
        federation=federation,
        history=tuple(evaluation for evaluation in best.history if evaluation.round <= round_),
        findings=best.findings,
        files={},
    )
    _write(out, record, parts)
    return out


def check_free(out: Path, *, force: bool) -> None:
    """Check that a directory is free for a model.

    Raises:
        RunError: something is there that must not be replaced.
    """
    if out.is_symlink():
        raise RunError(f"{out} is a link; name the directory that it leads to, or another")
    if holds_model(out) and force:
        own = {MODEL, CARD, QUALITY, BLOCKS, PREPARATION}
        if strange := sorted(entry.name for entry in out.iterdir() if entry.name not in own):
            raise RunError(f"{out} holds what is not of a model, such as {strange[0]}; move it, or choose another")
        return
    if holds_model(out):
        raise RunError(f"{out} holds a model already; replace it with --force, or choose another directory")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} exists already and is no model; choose another directory")


def check_together(runs: Sequence[tuple[str, Mapping[str, Any], FederationRecord]]) -> None:
    """Check that runs, each with its name, job and description, are the parts of one model.

    Raises:
        RunError: they are not.
    """
    first, job, federation = runs[0]
    seen: dict[str, str] = {}
    for name, own_job, own in runs:
        if changed := differences(without_rounds(job), without_rounds(own_job)):
            raise RunError(f"{first} and {name} are runs of different jobs: {'; '.join(changed[:3])}")
        if own.run != federation.run:
            raise RunError(
                f"{first} and {name} are of different trainings of the same job (run IDs {federation.run} and "
                f"{own.run}); their weights make no model together"
            )
        for silo in own.silos:
            if silo.name in seen:
                raise RunError(f"{seen[silo.name]} and {name} both have the weights of silo '{silo.name}'; name one")
            seen[silo.name] = name
    every = {*seen, *(peer for _, _, own in runs for peer in own.peers)}
    if missing := sorted(every - set(seen)):
        raise RunError(
            f"a model needs the weights of every silo; no run of silo {join_names(missing)} is named. Name the run "
            "directories of all hubs"
        )
    for key in ("embedding", "loss", "classes"):
        if len({str(getattr(own, key)) for _, _, own in runs}) > 1:
            names = join_names(name for name, _, _ in runs)
            raise RunError(f"these runs do not agree on the {key} of the model: {names}")


def _common_round(runs: Sequence[Run]) -> int:
    """Return the newest round of one training that all runs have weights of."""
    under_way = [run.path for run in runs if run.under_way]
    if under_way and len(under_way) < len(runs):
        ended = next(run.path for run in runs if not run.under_way)
        raise RunError(f"{ended} has ended and {under_way[0]} is under way; wait until all have ended")
    common = frozenset.intersection(*(run.rounds for run in runs))
    if not common:
        text = "; ".join(f"{run.path}: {join_names(str(n) for n, _ in sorted(run.rounds))}" for run in runs)
        raise RunError(f"these runs have no round in common that all of them have weights of ({text}); try again later")
    return max(common)[0]


def _joined(records: Sequence[FederationRecord]) -> FederationRecord:
    """Return one record of all silos."""
    silos = {silo.name: silo for record in records for silo in record.silos}
    notes = dict.fromkeys(note for record in records for note in record.notes)
    ordered = silos if len(records) == 1 else dict(sorted(silos.items()))
    return replace(records[0], silos=tuple(ordered.values()), notes=tuple(notes), peers=())


def portable(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job without where files were on the machine that trained: their names alone."""
    table: dict[str, Any] = {key: value for key, value in job.items() if key not in ("address", "workers", "baselines")}
    if "data" in job:
        table["data"] = {k: v for k, v in job["data"].items() if k not in ("directory", "alignment")}
    silos: dict[str, Any] = {}
    for name, silo in job.get("silos", {}).items():
        own = dict(silo)
        if "file" in own:
            own["file"] = Path(own["file"]).name
        if isinstance(own.get("clients"), Mapping):
            own["clients"] = {client: _name_of(file) for client, file in own["clients"].items()}
        silos[name] = own
    return table | ({"silos": silos} if silos else {})


def _name_of(file: Any) -> Any:
    return {**file, "file": Path(file["file"]).name} if isinstance(file, Mapping) else Path(str(file)).name


def _versions() -> dict[str, str]:
    session = describe_session()
    return {"python": session.python, **{name: session.packages[name] for name in ("tdcd", "torch")}}


def _write(out: Path, record: ModelRecord, parts: Sequence[Part]) -> None:
    """Write a model beside its place, and put it there once it is whole."""
    blocks: dict[str, Block] = {}
    texts = {Path(CARD): model_card(record)}
    for part in parts:
        blocks |= part.blocks
        texts |= {preparation_file(Path(), silo): text for silo, text in part.preparations.items()}
        texts |= {} if part.quality is None else {Path(QUALITY): part.quality}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}") from error
    try:
        made.chmod(0o755)
        save_blocks(made / BLOCKS, {silo.name: blocks[silo.name] for silo in record.federation.silos}, record.run)
        for name, text in texts.items():
            (made / name).parent.mkdir(exist_ok=True)
            write_atomically(made / name, text)
        files = sorted(file for file in made.rglob("*") if file.is_file())
        digests = {file.relative_to(made).as_posix(): digest_file(file) for file in files}
        write_record(made / MODEL, replace(record, files=digests))
        replace_directory(made, out)
    except OSError as error:
        raise RunError(f"{out}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
