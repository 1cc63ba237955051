"""Messages of predictions across sites, once a training has finished.

A program asks the hub of its silo, that hub asks the other hubs, every hub its own clients. Each question names the run
and the round of the weights that it is about: whoever serves others refuses it.
"""

import torch
from torch import Tensor

from tdcd.data.arrays import LONGEST, Array
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.packing import fits, message

MOST_IDS = 2048
"""In a question, and so in an exchange between sites."""
QUESTION = MOST_IDS * (4 * LONGEST + 8) + 64
"""Bytes of the IDs of a question, at most."""
ANSWER = 2 << 20
"""Bytes of the embeddings or scores of an answer, at most."""


def most_ids(width: int, dtype: torch.dtype) -> int:
    """Return how many IDs an exchange may have, of embeddings of some width."""
    return max(1, min(MOST_IDS, ANSWER // (width * dtype.itemsize)))


def check_ids(ids: Array, most: int = MOST_IDS) -> None:
    """Check IDs that somebody asks about: whole numbers or texts, some, and not too many.

    Raises:
        RefusedError: they are not.
    """
    if ids.ndim != 1 or not (ids.dtype.kind == "U" or ids.dtype == "int64"):
        raise RefusedError(f"IDs of type {ids.dtype} and shape {ids.shape}")
    if not 0 < len(ids) <= most:
        raise RefusedError(f"{len(ids):,} IDs, where 1 to {most:,} are expected")


def check_present(present: Tensor, count: int) -> Tensor:
    """Check what says which IDs are there; return it as a mask (n,).

    Raises:
        RefusedError: it says something else.
    """
    mask = fits(present, (count,), torch.uint8, "which IDs are there")
    if int(mask.max()) > 1:
        raise RefusedError("which IDs are there: neither yes nor no")
    return mask.bool()


# A hub and its clients


@message("serve")
class Serve:
    """θ_j, and all that a client needs to embed the rows of its table for predictions."""

    run: str
    round: int
    shape: tuple[int, ...]
    outputs: int
    width: int
    weights: tuple[Tensor, ...]
    preparation: bytes


@message("serving")
class Serving:
    """How many rows the client has ready; −1 if its table cannot be read now, which its own log explains."""

    rows: int


@message("look up")
class LookUp:
    """Asks for the embeddings of the rows that the client has of some IDs."""

    run: str
    round: int
    ids: Array


@message("looked up")
class LookedUp:
    """Which of them it has (n,), and the embeddings of these, in their order."""

    present: Tensor
    rows: Tensor
    held: int
    """All rows that it has ready."""


@message("ping")
class Ping:
    """Asks whether the client is there, while an answer takes long."""


@message("pong")
class Pong:
    """It is."""


# Hubs


@message("silo look up")
class SiloLookUp:
    """Asks another hub for its silo's embeddings of some IDs."""

    run: str
    round: int
    ids: Array


@message("silo looked up")
class SiloLookedUp:
    """Which IDs its clients have (n,), the embeddings of these, and whose clients are away."""

    features: bool
    """A silo that has labels only adds nothing."""
    present: Tensor
    rows: Tensor
    away: tuple[str, ...]


# A program and the hub of its silo


@message("describe")
class Describe:
    """Asks what the hub serves."""


@message("described")
class Described:
    """What it serves, and how to ask."""

    job: str
    """What all sites share of it, as JSON."""
    run: str
    round: int
    classes: tuple[str, ...]
    width: int
    most: int
    """IDs that a question may have."""


@message("predict")
class Predict:
    """Asks for the scores of some IDs."""

    run: str
    round: int
    ids: Array


@message("predicted")
class Predicted:
    """Scores (n, E), and which silos they are without (n, silos), where the job allows that."""

    scores: Tensor
    silos: tuple[str, ...]
    without: Tensor
