"""Training a federation in this process."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tdcd.compute import ComputeName
from tdcd.core.aggregators import Aggregator
from tdcd.core.codecs import Codec, row_size
from tdcd.core.modules import module_digest
from tdcd.core.network import Block, Blocks, Network, named_tensors
from tdcd.core.objectives import Objective
from tdcd.core.optimizers import Optimizer
from tdcd.core.state import SiloState
from tdcd.core.topology import Roster
from tdcd.data.arrays import ArrayLike, IDs, describe_value, fingerprint
from tdcd.data.federation import Federation, samples_fingerprint
from tdcd.data.frames import Columns
from tdcd.data.samples import Samples
from tdcd.engines.base import block_bytes
from tdcd.engines.local import OnGradients
from tdcd.engines.simulation import SimulationEngine
from tdcd.errors import JobError
from tdcd.models import ModelSpec
from tdcd.runs.history import History
from tdcd.runs.layout import FEDERATED
from tdcd.runs.records import ClientRecord, ColumnRecord, FederationRecord, SiloRecord
from tdcd.runs.store import RunDirectory
from tdcd.training.callbacks import Callback, EarlyStopping
from tdcd.training.labels import Labels
from tdcd.training.loop import Loop
from tdcd.training.result import Result
from tdcd.training.settings import Settings, SiloSettings
from tdcd.training.setup import Models, Setup
from tdcd.training.simulation import EngineName, Simulation

if TYPE_CHECKING:
    from tdcd.data.tables.preparation import Preparation


def train(
    federation: Federation,
    models: Models,
    settings: Settings,
    *,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    aggregator: Aggregator | None = None,
    codec: Codec | None = None,
    silos: Mapping[str, SiloSettings] | None = None,
    labels: Labels | None = None,
    validation: Samples | None = None,
    test: Samples | None = None,
    initial: Mapping[str, Mapping[str, ArrayLike]] | None = None,
    batches: Sequence[IDs] | None = None,
    engine: EngineName = "local",
    compute: ComputeName = "auto",
    workers: int | None = None,
    device: str = "cpu",
    address: str | None = None,
    directory: Path | str | None = None,
    resume: bool = False,
    job: Mapping[str, Any] | None = None,
    variant: str = FEDERATED,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train a federation.

    Args:
        federation: The training data.
        models: A model specification for all silos, or a specification or ``nn.Module`` for each by name.
        settings: Loss, rounds, local steps, batch size, rate …
        objective: What to minimise, in place of the loss of the settings.
        optimizer: How a client's weights move by its gradient, in place of that of the settings.
        aggregator: What a hub makes of its clients' weights, in place of that of the settings.
        codec: What travels in place of the numbers of a message, in place of that of the settings.
        silos: Local steps and rates of silos that have their own.
        labels: Who keeps the labels, and how the others learn what they must; default: every silo has them.
        validation: Held-out samples to choose settings by.
        test: Held-out samples to judge the outcome by.
        initial: First weights for every silo by name; default: those of the modules, or drawn from the seed.
        batches: The IDs of every round's mini-batch; default: drawn from the seed.
        engine: "local" in this process, "ray" on a cluster of Ray, or "oracle" for the slow pseudocode.
        compute: How clients are computed: "auto", "one-step", "kernel", "layers", "stacked", "loop".
        workers: Threads that may share the work, on a cluster at each node; default: one for each core. The numbers do
            not depend on it.
        device: Where to compute: "cpu", or "cuda", "cuda:1" … for a graphics card.
        address: Of the Ray cluster to join, "HOST:PORT" or "auto"; default: one is started on this machine.
        directory: Where to write history, checkpoints and blocks; default: nowhere.
        resume: Go on with the run in ``directory`` if it has begun.
        job: What to record as the run's job; default: the settings.
        variant: What of its job this is: "federation", or a baseline that it is compared with.
        callbacks: Are called after every round and evaluation, in this order, and may stop the training.

    Raises:
        TdcdError: something does not fit, or training diverged; the message says what.
        KeyboardInterrupt: passed on, after a checkpoint was written.
    """
    _check_arguments(callbacks, settings, validation, directory, resume)

    def tell(note: str) -> None:
        for callback in callbacks:
            callback.noted(note)

    simulation = Simulation(
        federation,
        models,
        settings,
        objective=objective,
        optimizer=optimizer,
        aggregator=aggregator,
        codec=codec,
        silos=silos,
        labels=labels,
        validation=validation,
        test=test,
        initial=initial,
        batches=batches,
        engine=engine,
        compute=compute,
        workers=workers,
        device=device,
        address=address,
        on_gradients=_listeners(callbacks),
    )
    settings, labels, setup, computing = simulation.settings, simulation.labels, simulation.setup, simulation.engine
    computing.note = tell
    description = describe_federation(federation, setup, settings, computing, variant)
    loop = Loop(computing, settings, setup.networks, callbacks, lambda: simulation.first, simulation, description)
    try:
        if variant == FEDERATED:  # once: baselines have the same reasons
            for note in (*setup.notes, *computing.notes):
                tell(note)
        with ExitStack() as stack:
            if directory is not None:
                given = {"engine": engine, "compute": compute, "device": device}
                record: dict[str, Any] = {"labels": labels.model_dump(exclude_none=True)} if labels != Labels() else {}
                if silos:
                    record["silos"] = {silo: own.model_dump(exclude_none=True) for silo, own in silos.items()}
                job = job or given | record | {"training": settings.as_table()}
                loop.directory = stack.enter_context(RunDirectory.open(Path(directory), job, resume=resume))
                batch_of = simulation.training.batch
                given_batches = [batch_of(number) for number in range(1, settings.rounds + 1)] if batches else []
                loop.inputs = fingerprints(federation, setup, simulation.first, given_batches)
                loop.begin()
                loop.directory.save_rosters(federation.rosters, given_batches)
                for silo, made in federation.preparations.items():
                    loop.directory.save_preparation(silo, made.to_json())
            selected, blocks = loop.run()
    except BaseException as error:
        loop.end(error)  # before its first round it has not said so
        raise
    finally:
        simulation.close()
    findings = loop.outcome.findings if loop.outcome else ()
    return Result(settings, setup.networks, blocks, selected, History(loop.history), description, findings)


def _listeners(callbacks: Sequence[Callback]) -> OnGradients | None:
    """Return what gives logit gradients to the callbacks that take them, if there are any."""
    listeners = [callback.received for callback in callbacks if type(callback).received is not Callback.received]

    def on_gradients(silo: str, samples: Tensor, gradients: Tensor) -> None:
        for received in listeners:
            received(silo, samples, gradients)

    return on_gradients if listeners else None


def _check_arguments(callbacks: object, settings: object, validation: object, directory: object, resume: bool) -> None:
    """Check what a simulation does not check."""
    if not isinstance(callbacks, list | tuple):
        raise JobError(f"callbacks: a list of tdcd.Callback is wanted, not {describe_value(callbacks)}")
    for callback in callbacks:
        if isinstance(callback, type):
            raise JobError(f"callbacks: {callback.__name__} is a class; give an object: {callback.__name__}(…)")
        if not isinstance(callback, Callback):
            raise JobError(
                f"callbacks: a list of tdcd.Callback is wanted, not of {describe_value(callback)}; make a class of "
                "your own from tdcd.Callback"
            )
    early = any(isinstance(callback, EarlyStopping) for callback in callbacks)
    if (
        isinstance(settings, Settings)
        and validation is None
        and (settings.select == "best" or settings.patience or early)
    ):
        raise JobError('select = "best" and patience need a validation set; in a job: data.validation_fraction = 0.1')
    if directory is not None and not str(directory):
        raise JobError("directory: it is empty; name one, or leave it out to write nothing")
    if resume and directory is None:
        raise JobError("resume = True needs the directory of the run to go on with")


def describe_federation(
    federation: Federation, setup: Setup, settings: Settings, engine: SimulationEngine, variant: str
) -> FederationRecord:
    """Describe who takes part."""
    row, message = row_size(settings.codecs.rows, setup.width, settings.dtype)
    return FederationRecord(
        samples=len(federation),
        validation_samples=len(setup.validation) if setup.validation else 0,
        test_samples=len(setup.test) if setup.test else 0,
        loss=settings.loss_kind,
        classes=federation.classes,
        notes=(*federation.notes, *setup.notes, *engine.notes),
        embedding=setup.width,
        embedding_bytes=row,
        message_bytes=message,
        silos=tuple(
            describe_silo(
                silo,
                federation.rosters[silo],
                setup.networks.get(silo),
                settings,
                row_shape=setup.tasks[silo].features.shape[1:] if silo in setup.tasks else (),
                row_type=setup.tasks[silo].features.dtype if silo in setup.tasks else settings.dtype,
                model=setup.models.get(silo),
                compute=engine.compute_plan.get(silo, "nothing"),
                preparation=federation.preparations.get(silo),
                columns=federation.columns.get(silo),
            )
            for silo in federation.silos
        ),
        variant=variant,
    )


def describe_silo(
    silo: str,
    roster: Roster,
    network: Network | None,
    settings: Settings,
    *,
    row_shape: Sequence[int],
    row_type: torch.dtype,
    model: ModelSpec | nn.Module | None,
    compute: str,
    preparation: "Preparation | None",
    columns: Columns | None = None,
) -> SiloRecord:
    """Describe a silo; one that has labels only has no network."""
    block: Block = {}
    spec = model if isinstance(model, ModelSpec) and network else None
    if network:
        state = SiloState({n: torch.zeros_like(t, device="cpu") for n, t in named_tensors(network.module)})
        sent = settings.steps.sent(state, network.trainable)
        block = settings.codecs.encode_block(sent, network.trainable)
    return SiloRecord(
        name=silo,
        features=network is not None,
        row_shape=tuple(row_shape),
        network=spec.describe() if spec else type(model).__name__ if network else "none, only labels",
        parameters=sum(p.numel() for p in network.module.parameters()) if network else 0,
        block_bytes=block_bytes(block),
        compute=compute,
        columns=tuple(
            ColumnRecord(column.name, column.describe(), len(column.outputs))
            for column in (preparation.columns if preparation else ())
        ),
        clients=tuple(
            ClientRecord(name, rows) for name, rows in sorted(zip(roster.clients, roster.counts(), strict=True))
        ),
        row_type=str(row_type).removeprefix("torch."),
        model=spec.model_dump(mode="json", exclude_none=True) if spec else {},
        frame_columns=columns.names if columns else (),
        id_column=columns.ids if columns else "",
    )


def fingerprints(federation: Federation, setup: Setup, first: Blocks, batches: Sequence[Tensor]) -> dict[str, str]:
    """Digest everything a training is given that its job does not say."""
    record = {silo: module_digest(network.module) for silo, network in setup.networks.items()}
    given = {
        "training data": federation.fingerprint(),
        "networks": hashlib.blake2b(repr(record).encode(), digest_size=16).hexdigest(),
        "first weights": fingerprint({f"{silo}/{n}": t for silo, block in first.items() for n, t in block.items()}),
    }
    for name, part in (("validation data", setup.validation), ("test data", setup.test)):
        if part:
            given[name] = samples_fingerprint(part)
    if batches:
        given["batches"] = fingerprint({str(number): batch for number, batch in enumerate(batches, start=1)})
    return given
