"""One model of all hubs' parts, at the hub that the job names: ``deployment.assemble``.

Every other hub brings its weights, its preparation and the description of its silo over the same links as all messages.
No rows, IDs or rosters are among them. Whatever is wrong with a part, the training goes on: there is no model then, and
the log says why.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from tdcd.core.network import Block
from tdcd.errors import AbsentError, DeploymentError, TdcdError, join_names
from tdcd.jobs.schema import Job
from tdcd.runs.layout import FEDERATION, preparation_file
from tdcd.runs.reader import read_history, read_outcome
from tdcd.runs.records import FederationRecord, pack_record, parse_record, read_record
from tdcd.serving.assemble import check_together, write_model
from tdcd.serving.part import Part
from tdcd.sites.hub.context import HubContext
from tdcd.sites.messages.frames import RefusedError, Stamp
from tdcd.sites.messages.packing import check_numbers
from tdcd.sites.messages.types import ModelPart
from tdcd.sites.site_file import HubSite

DIRECTORY = "model"
"""In the run directory of the hub that makes it."""
SLACK = 1 << 22
"""Bytes that a part may have besides its weights and its preparation."""


def check_consent(job: Job, silo: str, site: HubSite) -> None:
    """Check that this site allows what leaves it by ``deployment.assemble``.

    Raises:
        DeploymentError: it does not.
    """
    at = job.deployment.assemble
    if at is not None and at != silo and not site.send_model:
        raise DeploymentError(
            f"the job sends the weights and the preparation of silo '{silo}' to the hub of silo '{at}' "
            "(deployment.assemble); weights tell of the rows behind them, and a preparation holds means and "
            "categories. If this site agrees, say so in its site file: send_model = true"
        )


def announcement(job: Job, silo: str) -> str:
    """Say what leaves this hub, and when; nothing if nothing does."""
    deployment = job.deployment
    if deployment.assemble in (None, silo):
        return ""
    when = f", and after every {deployment.assemble_every:,} rounds" if deployment.assemble_every else ""
    return (
        f"at the end{when}, the weights and the preparation of silo '{silo}' go to the hub of silo "
        f"'{deployment.assemble}', which makes one model of all silos'"
    )


@dataclass(frozen=True)
class ModelParts:
    """A hub's side of it."""

    context: HubContext

    @property
    def at(self) -> str | None:
        """The silo whose hub makes the model."""
        return self.context.job.deployment.assemble

    def is_due(self, number: int) -> bool:
        """Tell whether a model is made after a round that is not the last."""
        deployment, rounds = self.context.job.deployment, self.context.job.training.rounds
        every = deployment.assemble_every
        return bool(deployment.assemble and every and number % every == 0 and number < rounds)

    async def gather(self, block: Block, number: int, *, finished: bool) -> None:
        """Bring this hub's part to the hub that makes the model, or make it.

        Args:
            block: This silo's weights.
            number: The round that they are of.
            finished: Whether the training has ended.
        """
        peers = self.context.peers
        stamp = Stamp("", 0, peers.now, int(finished))  # the weights may be those of an earlier round
        self.context.progress.stage = "bringing parts of the model together"
        own = self._own(block, number, finished=finished)
        if self.at is not None and self.at != self.context.silo:
            text = own.preparations.get(self.context.silo, "").encode()
            message = ModelPart(pack_record(own.federation), text, tuple(block), tuple(block.values()))
            try:
                await peers.send(self.at, message, stamp)
            except AbsentError as error:
                self.context.log(f"the hub of silo '{self.at}' did not take this silo's part of the model: {error}")
            return
        try:
            received = {silo: await peers.receive(silo, ModelPart, stamp) for silo in peers.peers}
            parts = [own, *(self._part(silo, part, own) for silo, part in sorted(received.items()))]
            check_together([(f"the part of silo '{part.source}'", part.job, part.federation) for part in parts])
            path = await asyncio.to_thread(write_model, parts, self.context.directory / DIRECTORY, force=True)
        except (AbsentError, RefusedError) as error:
            self.context.log(f"no model was made after round {number}: {error}")
        except TdcdError as error:
            self.context.log(f"no model was made after round {number}: {error}; tdcd assemble makes one of the runs")
        else:
            self.context.log(f"made a model of all silos after round {number}: {path}")

    def _own(self, block: Block, number: int, *, finished: bool) -> Part:
        directory, silo = self.context.directory, self.context.silo
        file = preparation_file(directory, silo)
        return Part(
            source=silo,
            job=self.context.job.as_table(),
            federation=read_record(directory / FEDERATION, FederationRecord),
            history=tuple(read_history(directory)),
            round=number,
            finished=finished,
            blocks={silo: block},
            preparations={silo: _text(file)} if file.exists() else {},
            findings=outcome.findings if finished and (outcome := read_outcome(directory)) else (),
        )

    def _part(self, silo: str, message: ModelPart, own: Part) -> Part:
        """Check what another hub has brought.

        Raises:
            RefusedError: it is not what a hub of this job brings.
        """
        from tdcd.data.tables.preparation import Preparation  # brings polars

        who = f"the part of silo '{silo}'"
        try:
            record = parse_record(message.description, FederationRecord, who)
            text = message.preparation.decode()
            if text:
                Preparation.model_validate_json(text)
        except (TdcdError, ValidationError, UnicodeDecodeError) as error:
            raise RefusedError(f"{who} is malformed: {error}"[:500]) from error
        if [one.name for one in record.silos] != [silo] or len(set(message.names)) < len(message.names):
            raise RefusedError(f"{who} is of silo {join_names(one.name for one in record.silos)}, or malformed")
        if len(message.names) != len(message.weights):
            raise RefusedError(f"{who} has {len(message.weights)} tensors, and {len(message.names)} names for them")
        for name, tensor in zip(message.names, message.weights, strict=True):
            check_numbers(tensor, tuple(tensor.shape), tensor.dtype, f"{who}: weights '{name[:80]}'")
        blocks = {silo: dict(zip(message.names, message.weights, strict=True))}
        return replace(
            own, source=silo, federation=record, history=(), blocks=blocks, preparations={silo: text} if text else {}
        )


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
