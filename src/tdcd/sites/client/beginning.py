"""What a hub sends a client to begin with, checked in full before anything is built from it."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tdcd.core.objectives import Objective
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.errors import TdcdError
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.packing import check_numbers, fits
from tdcd.sites.messages.types import Begin

MOST_SAMPLES = 1 << 28
"""Of a federation: every client draws mini-batches from so many numbers."""
MOST_OUTPUTS = 1 << 20
"""Of a network, and inputs: what is larger is made up."""


def check_sizes(request: Begin) -> None:
    """Check how large the training is said to be.

    Raises:
        RefusedError: a size is impossible.
    """
    if not 0 < request.population <= MOST_SAMPLES:
        raise RefusedError(f"the hub speaks of {request.population:,} training samples")
    check_network_sizes(request.shape, request.outputs, request.width)


def check_network_sizes(shape: tuple[int, ...] | None, outputs: int, width: int) -> None:
    """Check how large a network is said to be.

    Raises:
        RefusedError: a size is impossible.
    """
    for what, size in (("outputs", outputs), ("an embedding width", width)):
        if not 0 < size <= MOST_OUTPUTS:
            raise RefusedError(f"the hub speaks of {what} of {size:,}")
    if shape is not None and not all(0 < size <= MOST_OUTPUTS for size in shape):
        raise RefusedError(f"the hub speaks of rows of the shape {shape}")


def sample_numbers(request: Begin, known: Mapping[Part, int] | None) -> dict[Part, Array]:
    """Return the numbers of the client's samples of each part: ascending, and none that cannot be.

    Args:
        request: What the hub sends.
        known: How many samples each part has in all, where the client knows that.

    Raises:
        RefusedError: they are no such numbers.
    """
    words = {part.word: part for part in Part}
    if len(request.parts) != len(request.numbers) or len(set(request.parts)) != len(request.parts):
        raise RefusedError(f"{len(request.numbers)} lists of samples for {len(request.parts)} parts")
    found: dict[Part, Array] = {}
    for word, numbers in zip(request.parts, request.numbers, strict=True):
        if word not in words:
            raise RefusedError(f"there is no part '{word[:20]}'")
        part = words[word]
        end = known.get(part, 0) if known is not None else MOST_SAMPLES
        end = min(end, request.population) if part is Part.TRAIN else end
        checked = fits(numbers, (numbers.numel(),), torch.int64, f"the client's {word} samples").numpy()
        if len(checked) and (checked[0] < 0 or checked[-1] >= end or (np.diff(checked) <= 0).any()):
            raise RefusedError(f"the client's {word} samples are not ascending numbers below {end:,}")
        found[part] = checked
    return found


def shared_labels(labels: Tensor | None, rows: int, width: int, objective: Objective, dtype: torch.dtype) -> Tensor:
    """Check the labels of a client's training rows: as many as rows, and as the loss wants them.

    Raises:
        RefusedError: they are not.
    """
    if labels is None or not len(labels) == rows:
        raise RefusedError(f"the hub sends {'no' if labels is None else len(labels)} labels for {rows} training rows")
    try:
        wanted = objective.prepare(labels, width, dtype)
    except TdcdError as error:
        raise RefusedError(f"labels that do not fit the job: {error}") from error
    return check_numbers(labels, tuple(wanted.shape), wanted.dtype, "labels")


def check_places(parts: Tensor) -> None:
    """Check what common IDs are said to be for.

    Raises:
        RefusedError: it is no part.
    """
    if len(parts) and not bool(torch.isin(parts, torch.tensor(list(Part), dtype=parts.dtype)).all()):
        raise RefusedError("common IDs that are neither for training nor for validation nor testing")


def check_together(numbers: Mapping[Part, Array], rows: Mapping[Part, int]) -> None:
    """Check that there is a number for each of the client's rows of each part.

    Raises:
        RefusedError: there is not.
    """
    for part in Part:
        if len(numbers.get(part, ())) != rows.get(part, 0):
            raise RefusedError(
                f"the hub sends numbers of {len(numbers.get(part, ()))} {part.word} samples, and "
                f"{rows.get(part, 0)} rows here are of them"
            )
