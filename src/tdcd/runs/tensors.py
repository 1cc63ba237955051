"""Tensors in safetensors files."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.errors import RunError
from tdcd.files import write_atomically

_KEY = "tdcd"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write tensors, and a record as JSON with them, atomically."""
    packed: Block = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        shared = tensor.untyped_storage().data_ptr() in places  # safetensors refuses memory that two names share
        packed[name] = tensor.clone() if shared else tensor
        places.add(packed[name].untyped_storage().data_ptr())
    write_atomically(path, safetensors.torch.save(packed, {_KEY: json.dumps(dict(record))}))


def read_tensors(path: Path) -> Block:
    """Read all tensors of a file.

    Raises:
        RunError: it cannot be read.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged, cannot be read: {error}") from error


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the record beside the tensors, which may be large and stay on the disk.

    Raises:
        RunError: it cannot be read, or is not a file of tdcd.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {})[_KEY])
    except (safetensors.SafetensorError, OSError) as error:
        raise RunError(f"{path}: damaged, cannot be read: {error}") from error
    except (KeyError, ValueError) as error:
        raise RunError(f"{path}: not written by tdcd ({error})") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}: not written by tdcd")
    return record


def flatten(what: str, blocks: Mapping[str, Mapping[str, Tensor]]) -> Block:
    """Name the tensors of all silos: ``what/SILO/NAME``."""
    return {f"{what}/{silo}/{name}": t for silo, block in blocks.items() for name, t in block.items()}


def nest(what: str, tensors: Block, silos: Iterable[str]) -> dict[str, Block]:
    """Return tensors that ``flatten`` named, by silo."""
    blocks: dict[str, dict[str, Tensor]] = {silo: {} for silo in silos}
    for key, tensor in tensors.items():
        kind, silo, name = key.split("/", 2)
        if kind == what:
            blocks[silo][name] = tensor
    return dict(blocks)
