"""What a hub knows of its silo's data: who holds which sample, and labels that are shared. No features come here."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tdcd.core.topology import Roster, roster_of
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.errors import DataError, RunError
from tdcd.jobs.data import JobData
from tdcd.jobs.schema import Job, TableJob
from tdcd.runs.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from tdcd.data.tables.alignment import Alignment, Keys

Holding = Mapping[Part, Array]
"""What one client holds: the numbers of its samples in every part, ascending."""


@dataclass(frozen=True)
class SiloPlan:
    """A silo's part of the federation, as its hub knows it."""

    counts: Mapping[Part, int]
    """Samples of every part, in the whole federation."""
    roster: Roster
    """Who holds which training sample of this silo."""
    holdings: Mapping[str, Holding]
    """By client."""
    labels: Mapping[Part, Tensor]
    """None where they are private: then they stay with the clients of one silo."""
    outputs: int
    """How wide an embedding the labels call for."""
    classes: tuple[str, ...]
    parts: Array
    """The part of every common ID, in their order."""
    fingerprint: str
    """A digest of the common IDs, and of what was handed over with them."""
    label_only: bool = False
    """Whether the silo has labels only, and no features."""
    idle: tuple[str, ...] = ()
    """Clients without any sample."""

    @property
    def parts_digest(self) -> str:
        """A digest of what is held out."""
        return hashlib.blake2b(self.parts.tobytes(), digest_size=16).hexdigest()

    def training(self, client: str) -> Array:
        """Return the training samples that a client holds."""
        return self.holdings[client][Part.TRAIN]

    def save(self, file: Path, facts: Mapping[str, Any]) -> None:
        """Keep it, and facts with it: a hub that is started again need not wait for all of its clients."""
        owner = np.full(len(self.parts), -1)
        for part in self.counts:
            places = np.flatnonzero(self.parts == part)
            for number, held in enumerate(self.holdings.values()):
                owner[places[held[part]]] = number
        tensors = {"owner": torch.from_numpy(owner), "parts": torch.from_numpy(self.parts)}
        if self.labels:
            some = next(iter(self.labels.values()))
            tensors["labels"] = some.new_empty(len(self.parts), *some.shape[1:])
            for part, values in self.labels.items():
                tensors["labels"][torch.from_numpy(np.flatnonzero(self.parts == part))] = values
        record = {
            "clients": [*self.holdings],
            "outputs": self.outputs,
            "classes": self.classes,
            "label_only": self.label_only,
            "ids": self.fingerprint,
            "facts": dict(facts),
        }
        write_tensors(file, tensors, record, private=True)

    @classmethod
    def load(cls, file: Path) -> tuple["SiloPlan", dict[str, Any]]:
        """Return what was saved.

        Raises:
            DataError: the file is damaged.
        """
        try:
            tensors, record = read_tensors(file)
            held = {name: tensor.numpy() for name, tensor in tensors.items()}
            result = _plan(
                held["owner"],
                [str(name) for name in record["clients"]],
                held["parts"],
                held.get("labels"),
                int(record["outputs"]),
                tuple(str(name) for name in record["classes"]),
                str(record["ids"]),
                label_only=bool(record["label_only"]),
            )
            return result, dict(record["facts"])
        except (RunError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{file}: damaged ({error}); remove it; it is written again when all clients are there"
            ) from error


def plan_from_tables(job: TableJob, silo: str, alignment: "Alignment", keys: "list[Keys]", where: str) -> SiloPlan:
    """Find out who holds what from the IDs that the clients sent."""
    from tdcd.data.tables.alignment import owners  # brings polars
    from tdcd.jobs.tables import encode_silo_labels, labels_of_ids, parts_of_ids, silo_features

    parts, placed = parts_of_ids(job, alignment, where), alignment.place(keys)
    names, objective = [key.table.client for key in keys], job.training.objective
    labels, outputs = None, 1
    classes: tuple[str, ...] = tuple(job.labels.classes or ())
    if not job.labels.private:
        texts = labels_of_ids(job, silo, alignment, placed)
        owner = silo if job.silos[silo].label else job.labels.silo or job.label_owners()[0]
        labels, classes = encode_silo_labels(job, owner, texts, placed)
        outputs = objective.width(torch.from_numpy(labels))
    if objective.meaning == "classes":
        outputs = max(outputs, len(job.labels.classes or ()))
    label_only = not silo_features(job, silo, [key.table for key in keys])
    fingerprint = alignment.fingerprint
    return _plan(owners(placed), names, parts, labels, outputs, classes, fingerprint, label_only=label_only)


def plan_from_set(job: Job, silo: str, data: JobData) -> SiloPlan:
    """Find out who holds what of a data set that every site has; held-out samples are dealt in turn."""
    federation = data.federation
    roster = federation.rosters[silo]
    names = list(roster.clients)
    owner, parts, labels = [roster.owner.numpy()], [np.full(len(federation), Part.TRAIN)], [federation.samples.labels]
    for part, samples in data.held_out.items():
        owner.append(np.arange(len(samples)) % len(names))
        parts.append(np.full(len(samples), part))
        labels.append(samples.labels)
    digest = hashlib.blake2b(digest_size=16)
    for part in sorted(data.ids):
        digest.update(repr(data.ids[part].tolist()).encode())
    every = torch.cat(labels)
    return _plan(
        np.concatenate(owner),
        names,
        np.concatenate(parts),
        None if job.labels.private else every.numpy(),
        job.training.objective.width(every),
        federation.classes,
        digest.hexdigest(),
        label_only=silo not in federation.samples.features,
    )


def _plan(
    owner: Array,
    names: list[str],
    parts: Array,
    labels: Array | None,
    outputs: int,
    classes: tuple[str, ...],
    fingerprint: str,
    *,
    label_only: bool,
) -> SiloPlan:
    """Sort samples by part: a sample's number is its place among those of its part."""
    present = [part for part in Part if (parts == part).any()]
    holdings = {
        name: {part: np.flatnonzero(owner[parts == part] == number) for part in present}
        for number, name in enumerate(names)
    }
    return SiloPlan(
        counts={part: int((parts == part).sum()) for part in present},
        roster=roster_of(owner[parts == Part.TRAIN], names),
        holdings=holdings,
        labels={} if labels is None else {part: torch.from_numpy(labels[parts == part]) for part in present},
        outputs=outputs,
        classes=classes,
        parts=parts.astype(np.int8),
        fingerprint=fingerprint,
        label_only=label_only,
        idle=tuple(n for n, held in holdings.items() if not any(len(numbers) for numbers in held.values())),
    )
