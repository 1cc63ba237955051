"""Reading a job file."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any, get_args

from pydantic import ValidationError

from tdcd.data.sets import SETS
from tdcd.errors import JobError, nearest
from tdcd.files import quoted_key, read_settings, split_key
from tdcd.jobs.deployment import Deployment
from tdcd.jobs.schema import EMBEDDED, TABLES, FunctionJob, Job, SetJob, TableJob
from tdcd.runs.layout import JOB, holds_job_only, holds_run
from tdcd.strict import problems
from tdcd.training.labels import Labels
from tdcd.training.settings import Settings, part_options


def load_job(path: Path | str, overrides: Mapping[str, Any] | None = None, clients: int | None = None) -> Job:
    """Read a job file.

    Args:
        path: A TOML file, or the name of an embedded job such as "digits".
        overrides: Settings that replace the file's, by their dotted names: ``{"training.rounds": 10}``.
        clients: K for every silo, also for those that have a number of their own in the file.

    Paths in a job file are relative to it, paths in ``overrides`` to the current directory.

    Raises:
        JobError: it cannot be read or is not a valid job; names every problem by its key.
    """
    where, text = _text(path)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"{where}: not TOML: {error}") from error
    if {"iterations", "grid", "cases"} & table.keys():
        raise JobError(f"{where}: this is a sweep file; run it with: tdcd sweep {quote(str(path))}")
    if {"hub", "listen", "tls"} & table.keys():
        raise JobError(f"{where}: this is a site file, for --site; name the job file, which all sites share")
    resolve_paths(table, Path(path).parent)
    for key, value in (overrides or {}).items():
        _set(table, key, value)
    resolve_paths(table, Path())
    if clients is not None:
        _set(table, "data.clients", clients)
        silos = table.get("silos", {})
        for silo, own in silos.items() if isinstance(silos, dict) else ():
            if isinstance(own, dict) and isinstance(own.get("clients"), dict):
                raise JobError(f"{where}: the number of clients cannot be set: those of silo '{silo}' have files")
            _set(table, f"silos.{quoted_key(silo)}.clients", clients)
    return parse_job(table, where)


def parse_job(table: Mapping[str, Any], where: str) -> Job:
    """Check a job given as nested tables; ``where`` names it in errors."""
    data = table.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    function = isinstance(source, str) and ":" in source
    if isinstance(source, str) and not function and source not in (*SETS, TABLES):
        raise JobError(f"{where}: data.source: '{source}' is not known{nearest(source, (*SETS, TABLES))}")
    if isinstance(data, Mapping) and source is None:
        raise JobError(
            f'{where}: data.source: say where the rows come from: "tables", a set of tdcd data list, or a function of '
            'your own, "package.module:function"'
        )
    kind = TableJob if source == TABLES else FunctionJob if function else SetJob
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        result = problems(error, table, _homes(kind))
        raise JobError("\n".join(f"{where}: {problem}" for problem in result)) from error


def _homes(kind: type[Job]) -> dict[str, str]:
    """Return where each key of a job belongs; of two places the one that users mean more often."""
    data, silos = (kind.model_fields[key].annotation for key in ("data", "silos"))
    silo = get_args(silos)[1]
    tables: dict[str, Any] = {
        "silos.NAME": silo,
        "deployment": Deployment,
        "labels": Labels,
        "data": data,
        "training": Settings,
    }
    homes = {key: f"'training.{part}.{key}'" for part, keys in part_options().items() for key in keys}
    homes |= {key: f"'{name}.{key}'" for name, own in tables.items() for key in own.model_fields}
    return homes | {key: f"'{key}', at the top of the file" for key in kind.model_fields}


def embedded_job_text(name: str) -> str:
    """Return the text of a job that comes with tdcd."""
    return files("tdcd.jobs").joinpath(f"{name}.toml").read_text(encoding="utf-8")


def known_silos(names: Iterable[str], silos: Iterable[str], where: str) -> None:
    """Check the names of ``[silos.NAME]`` tables against the silos that the data has."""
    silos = list(silos)
    for name in names:
        if name not in silos:
            raise JobError(f"{where}: silos.{name}: the data has no such silo{nearest(name, silos)}")


def resolve_paths(table: Mapping[str, Any], beside: Path) -> None:
    """Make the paths of a job absolute; they are relative to the job file."""

    def resolve(where: Any, *keys: str) -> None:
        for key in keys if isinstance(where, dict) else ():
            if isinstance(where.get(key), str) and where[key]:
                where[key] = str(_absolute(beside, where[key]))

    resolve(table.get("data"), "directory", "alignment")
    silos = table.get("silos")
    for silo in silos.values() if isinstance(silos, dict) else ():
        resolve(silo, "file")
        if isinstance(silo, dict) and isinstance(silo.get("clients"), str):
            silo["clients"] = _matching(beside, silo["clients"])
        if isinstance(silo, dict) and isinstance(silo.get("clients"), dict):
            resolve(silo["clients"], *silo["clients"])
            for own in silo["clients"].values():
                resolve(own, "file")


def _absolute(beside: Path, path: str) -> Path:
    try:
        return (beside / Path(path).expanduser()).resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise JobError(f"{path!r} is not a path: {error}") from error


def _matching(beside: Path, pattern: str) -> dict[str, str]:
    """Return the files that a pattern such as ``bank/*.csv`` names, by their stems."""
    folder, name = _absolute(beside, pattern).parent, Path(pattern).name
    result = sorted(path for path in folder.glob(name) if path.is_file()) if name and folder.is_dir() else []
    if not result:
        raise JobError(f'clients = "{pattern}": no matching file in {folder.resolve()}')
    stems = [path.stem for path in result]
    if len(set(stems)) < len(stems):
        raise JobError(f'clients = "{pattern}": two files name the same client; name clients and files one by one')
    return dict(zip(stems, map(str, result), strict=True))


def _text(path: Path | str) -> tuple[str, str]:
    if str(path) in EMBEDDED:
        return f"{path} (embedded job)", embedded_job_text(str(path))
    file = Path(path)
    try:
        return str(file), read_settings(file, JobError, (FileNotFoundError, IsADirectoryError))
    except FileNotFoundError as error:
        known: dict[str, Path | str] = {name: name for name in EMBEDDED}
        known |= {p.stem: p for p in file.parent.glob("*.toml")} if file.parent.is_dir() else {}
        close = difflib.get_close_matches(file.stem, known, n=1) or [*{file.stem.lower()} & known.keys()]
        hint = f"did you mean '{known[close[0]]}'?" if close else "make one with: tdcd init digits"
        raise JobError(f"{file}: no such job file; {hint}") from error
    except IsADirectoryError as error:
        hint = ""
        if holds_job_only(file):
            hint = f"; did you mean '{file / JOB}'?"
        elif holds_run(file):
            hint = f"; to go on with a run: tdcd train --resume {quote(str(file))}"
        raise JobError(f"{file}: a directory, not a job file{hint}") from error


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *above, last = split_key(key)
    for part in above:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise JobError(f"{key}: '{part}' is a value in the job, not a table")
    table[last] = value
