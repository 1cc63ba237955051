"""``export_model``: a trained model written as a directory of files that need no tdcd."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, get_args

from tdcd.data.arrays import fingerprint
from tdcd.data.tables.preparation import Preparation
from tdcd.data.tables.settings import TableSettings
from tdcd.errors import JobError, ModelError, RunError, nearest
from tdcd.files import replace_directory, write_atomically
from tdcd.jobs.schema import TableJob
from tdcd.runs.layout import EXPORT
from tdcd.runs.tensors import flatten
from tdcd.serving.export.inputs import BATCHES, SiloInput
from tdcd.serving.export.modules import said_of
from tdcd.serving.export.readme import write_readme
from tdcd.serving.model import Model
from tdcd.training.result import dtype_of

Format = Literal["onnx", "torch"]
SUFFIXES: Mapping[Format, str] = {"onnx": "onnx", "torch": "pt2"}
README = "README.md"


@dataclass(frozen=True)
class Export:
    """An exported model."""

    path: Path
    files: tuple[str, ...]
    """The models among its files."""
    rows: int
    """On which it was compared with what tdcd computes."""
    difference: float
    """The largest difference."""


def export_model(
    model: Model,
    directory: Path | str,
    format: Format = "onnx",  # noqa: A002
    *,
    prepared: bool = False,
    force: bool = False,
) -> Export:
    """Write a trained model as files that need no tdcd: one of the whole model, and one of each silo's embedding.

    Before anything is in place, the files are computed on random rows and compared with what tdcd computes itself.

    Args:
        model: What ``load_model`` returns.
        directory: Where to write; there must be nothing yet.
        format: "onnx", or "torch" for programs of torch.export.
        prepared: Take the numbers that tables are prepared as, rather than their cells.
        force: Replace an earlier export.

    Raises:
        JobError: the directory is taken, or what the format needs is not installed.
        ModelError: a network or a preparation cannot be exported, or what was exported computes something else.
    """
    path = Path(directory)
    if format not in get_args(Format):
        raise JobError(f"--format {format}: not known{nearest(format, get_args(Format))}")
    _check_free(path, force=force)
    if format == "onnx":
        _check_installed()
    inputs = _read_inputs(model, format, prepared=prepared)
    metadata = _describe(model)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
    try:
        (staged / "silos").mkdir()
        suffix = SUFFIXES[format]
        whole, files = f"model.{suffix}", {own.silo: f"silos/{own.silo}.{suffix}" for own in inputs}
        difference = _write(model, inputs, format, staged / whole, {s: staged / f for s, f in files.items()}, metadata)
        names = (whole, *files.values())
        record = {
            "format": format,
            **metadata,
            "inputs": {own.silo: {"file": files[own.silo]} | _describe_input(own) for own in inputs},
            "outputs": _describe_outputs(model, inputs, format),
            "checked": {"rows": sum(BATCHES), "largest difference": difference},
            "files": {name: sha256((staged / name).read_bytes()).hexdigest() for name in names},
        }
        write_atomically(staged / EXPORT, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        write_atomically(staged / README, write_readme(record, inputs))
        staged.chmod(0o755)
        replace_directory(staged, path)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Export(path, names, sum(BATCHES), difference)


def _check_installed() -> None:
    """Check that the packages for ONNX are there.

    Raises:
        JobError: one is not.
    """
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(name)
        except ImportError as error:
            raise JobError(
                f"exporting to ONNX needs {name}, which is not installed: pip install 'tdcd[export]'"
            ) from error


def _check_free(path: Path, *, force: bool) -> None:
    """Check that a directory may be written: it is new or empty, or an export that may be replaced.

    Raises:
        JobError: it may not.
    """
    if path.is_symlink():
        raise JobError(f"{path} is a link; name the directory that it leads to, or another")
    if path.is_file():
        raise JobError(f"{path} is a file; name a directory")
    there = (
        sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()) if path.exists() else []
    )
    if not there:
        return
    if not force:
        raise JobError(f"{path} is not empty and is left as it is; choose another, or replace an export with --force")
    try:
        known = {EXPORT, README, *json.loads((path / EXPORT).read_text(encoding="utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path} is no export, and --force replaces nothing else; choose another") from error
    if strange := [name for name in there if name not in known]:
        raise JobError(f"{path} holds files that are not of an export, such as {strange[0]}; move them")


def _read_inputs(model: Model, format_: Format, *, prepared: bool) -> list[SiloInput]:
    """Return what the model takes of each silo.

    Raises:
        ModelError: cells of a table are to go in, and the format cannot prepare them.
    """
    result, problems, inputs = model.result, list[str](), list[SiloInput]()
    reserved = {"scores", "class_name", *said_of(result.objective)}
    records = {silo.name: silo for silo in result.description.silos}
    for silo in result.networks:
        if silo in reserved:
            raise ModelError(f"silo '{silo}': an output of exported models has this name; give the silo another")
        record, preparation = records[silo], model.preparations.get(silo)
        shape, kind = tuple(record.row_shape), dtype_of(record.row_type)
        if preparation is None or not isinstance(model.job, TableJob):
            inputs.append(SiloInput(silo, "rows", shape, shape, kind, tuple(record.frame_columns)))
            continue
        if prepared:
            names = tuple(preparation.outputs)
            inputs.append(SiloInput(silo, "prepared", shape, shape, kind, names, preparation))
            continue
        settings = model.job.silos[silo]
        if why := _why_not(preparation, settings, format_):
            problems.append(f"silo '{silo}': its cells cannot be prepared in the exported model: {why}")
        columns = tuple(column.name for column in preparation.columns)
        inputs.append(SiloInput(silo, "cells", (len(columns),), shape, kind, columns, preparation, settings))
    if problems:
        advice = "With --prepared the model takes the prepared numbers in their place"
        raise ModelError("\n".join([*problems, advice]))
    if prepared and not any(own.kind == "prepared" for own in inputs):
        raise JobError(f"--prepared is for runs over tables; {model.path} was trained on other data")
    return inputs


def _why_not(preparation: Preparation, settings: TableSettings, format_: Format) -> str:
    """Tell what of a preparation a format cannot do, or nothing."""
    if format_ == "torch":
        return "torch has no texts"
    from tdcd.serving.export.preparation_graph import why_not

    return why_not(preparation, settings)


def _write(
    model: Model,
    inputs: Sequence[SiloInput],
    format_: Format,
    whole: Path,
    files: Mapping[str, Path],
    metadata: Mapping[str, Any],
) -> float:
    """Write the models, and return how far they are from what tdcd computes."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in metadata.items()
    }
    if format_ == "torch":
        from tdcd.serving.export.torch_programs import write_programs

        return write_programs(model, inputs, whole, files, texts)
    from tdcd.serving.export.onnx_files import write_graphs

    return write_graphs(model, inputs, whole, files, texts)


def _describe(model: Model) -> dict[str, Any]:
    """Return what is known of a model."""
    result, own = model.result, model.record or model.job
    return {
        "tdcd": version("tdcd"),
        "name": own.name if own else model.path.name,
        "run": result.description.run,
        "round": result.selected,
        "loss": result.settings.loss_kind,
        "classes": list(model.classes),
        "embedding": result.description.embedding,
        "precision": result.settings.precision,
        "digest": fingerprint(flatten("block", result.blocks)),
    }


def _describe_input(own: SiloInput) -> dict[str, Any]:
    """Return what is known of an input."""
    kind = "string" if own.kind == "cells" else str(own.dtype)
    result: dict[str, Any] = {"kind": own.kind, "type": kind, "shape": ["batch", *own.shape]}
    if own.names:
        result["columns"] = list(own.names)
    if own.settings:
        result["missing"] = list(own.settings.missing)
    if own.kind == "prepared" and own.preparation:
        result["preparation"] = own.preparation.model_dump()["columns"]
    return result


def _describe_outputs(model: Model, inputs: Sequence[SiloInput], format_: Format) -> dict[str, str]:
    """Return what the whole model gives out, in words."""
    width, meaning = model.result.description.embedding, model.result.objective.meaning
    outputs = {"scores": f"(batch, {width}): the sum of all embeddings"}
    if meaning == "numbers":
        outputs["prediction"] = f"(batch, {width}): the predicted numbers"
    else:
        one = model.classes[1] if model.classes else "1"
        of = f"(batch,): of the class {one}" if meaning == "binary" else f"(batch, {width}): of the classes, in order"
        outputs["probabilities"] = of
        outputs["class"] = "(batch,): the number of the most likely class, from 0"
        if model.classes and format_ == "onnx":
            outputs["class_name"] = "(batch,): its name"
    for own in inputs:
        outputs[f"{own.silo}.embedding"] = f"(batch, {width}): what silo {own.silo} adds to the scores"
        if own.kind == "cells":
            outputs[f"{own.silo}.unreadable"] = "(batch,): the first column whose cell cannot be read, or an empty text"
    return outputs
