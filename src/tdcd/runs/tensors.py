"""Tensors in safetensors files, each with a record and a digest of both: a flipped bit is noticed when it is read."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tdcd.core.network import Block
from tdcd.errors import DamagedError, RunError
from tdcd.files import write_atomically
from tdcd.runs.digests import Content, check_content, describe_content


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], *, private: bool = False
) -> None:
    """Write tensors, and a record as JSON with them, atomically; ``private``: nobody else may read them."""
    packed: Block = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.contiguous()
        shared = tensor.untyped_storage().data_ptr() in places  # safetensors refuses memory that two names share
        packed[name] = tensor.clone() if shared else tensor
        places.add(packed[name].untyped_storage().data_ptr())
    text = json.dumps(dict(record))
    write_atomically(path, safetensors.torch.save(packed, describe_content(text, _content(packed))), private=private)


def read_tensors(path: Path) -> tuple[Block, dict[str, Any]]:
    """Read all tensors of a file and the record beside them, and verify both.

    Raises:
        DamagedError: it cannot be read, or is not what was written.
        RunError: it is not a file of tdcd.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise RunError(f"{path}: missing") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise DamagedError(f"{path}: damaged, cannot be read: {error}") from error
    return tensors, check_content(path, metadata, _content(tensors))


def _content(tensors: Mapping[str, Tensor]) -> Content:
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        data = whole.view(torch.uint8).numpy().data if tensor.numel() else b""
        yield name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data


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
