"""What a hub serves once its training has finished: the weights of its run directory, verified."""

from dataclasses import dataclass
from pathlib import Path

import torch

from tdcd.core.network import Block
from tdcd.errors import ModelError, RunError
from tdcd.jobs.schema import TableJob
from tdcd.runs.digests import check_files
from tdcd.runs.layout import BLOCKS, FEDERATION, preparation_file
from tdcd.runs.reader import read_outcome
from tdcd.runs.records import FederationRecord, read_record
from tdcd.runs.store import load_blocks
from tdcd.sites.messages.frames import RefusedError
from tdcd.sites.messages.predictions import ANSWER, Serve, most_ids
from tdcd.training.setup import build_network, fit_blocks


@dataclass(frozen=True)
class ServedModel:
    """A silo's part of a finished model."""

    run: str
    """The run's ID: the same at all hubs."""
    round: int
    """The round that the weights are of."""
    classes: tuple[str, ...]
    width: int
    dtype: torch.dtype
    serve: Serve | None
    """What clients are sent; nothing in a silo that has labels only."""

    @property
    def most(self) -> int:
        """IDs of an exchange."""
        return most_ids(self.width, self.dtype)

    def check(self, run: str, round_: int) -> None:
        """Check that a question is about these weights.

        Raises:
            RefusedError: it is about others.
        """
        if (run, round_) != (self.run, self.round):
            raise RefusedError(
                f"this hub serves the weights of round {self.round} of run {self.run}; those of round {round_} of run "
                f"{run[:40]} are asked for. All hubs must serve what they trained together"
            )


def load_served(job: TableJob, silo: str, directory: Path) -> ServedModel:
    """Read what a hub has trained.

    Raises:
        RunError: it has not ended, or a file is missing or not what was written.
    """
    outcome = read_outcome(directory)
    if outcome is None:
        raise RunError(f"{directory}: the training has not ended there")
    check_files(directory, outcome.files)
    record = read_record(directory / FEDERATION, FederationRecord)
    own = next((one for one in record.silos if one.name == silo), None)
    if own is None:
        raise RunError(f"{directory}: it is not the run of the hub of silo '{silo}'")
    settings = job.settings_of(silo)
    if record.embedding * settings.dtype.itemsize > ANSWER:
        raise ModelError(f"{directory}: embeddings of {record.embedding:,} numbers are too wide to be served")
    serve = None
    if own.features:
        network = build_network(silo, job.model_of(silo), own.row_shape, record.embedding, settings)
        first = {silo: network.release_weights()}
        blocks = load_blocks(directory)
        block: Block = fit_blocks({silo: blocks[silo]} if silo in blocks else {}, first, str(directory / BLOCKS))[silo]
        preparation = preparation_file(directory, silo)
        try:
            text = preparation.read_bytes()
        except OSError as error:
            raise RunError(f"{preparation}: cannot be read: {error.strerror}") from error
        serve = Serve(
            record.run, outcome.selected, own.row_shape, record.embedding, record.embedding, tuple(block.values()), text
        )
    return ServedModel(record.run, outcome.selected, record.classes, record.embedding, settings.dtype, serve)
