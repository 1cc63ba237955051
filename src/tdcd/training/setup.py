"""Before the first round: build the networks, check that everything fits together, say clearly when not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from tdcd.core.aggregators import check_room
from tdcd.core.gradients import PrivateLabels
from tdcd.core.network import Block, Blocks, Network
from tdcd.core.sampling import Holders, draw_participants
from tdcd.core.state import SiloState
from tdcd.core.streams import borrow_stream
from tdcd.core.task import SiloTask
from tdcd.core.topology import Roster
from tdcd.data.arrays import ArrayLike, describe_value, to_tensor
from tdcd.data.federation import Federation
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.engines import Training
from tdcd.engines.base import block_bytes
from tdcd.errors import DataError, JobError, ModelError, join_names, nearest
from tdcd.models import ModelSpec, build
from tdcd.training.labels import Labels
from tdcd.training.metrics import measure
from tdcd.training.settings import Settings, SiloSettings

Models = ModelSpec | nn.Module | Mapping[str, ModelSpec | nn.Module]
"""A specification for all silos, or a specification or module for each. A module brings its own weights."""


@dataclass(frozen=True)
class Setup:
    """A training that is ready to start."""

    tasks: Mapping[str, SiloTask]
    networks: Mapping[str, Network]
    train: Samples
    validation: Samples | None
    test: Samples | None
    width: int
    """E, the width of the embeddings."""
    models: Mapping[str, ModelSpec | nn.Module]
    """What each silo's network is made of."""
    private: PrivateLabels | None = None
    """The labels, if one silo keeps them and others need them."""
    label_only: tuple[str, ...] = ()
    """Silos without features: their blocks are empty."""
    own: Mapping[str, Settings] = field(default_factory=dict)
    """The settings of silos that do something in their own way."""
    silo_dropout: float = 0.0
    """How likely a silo's embedding is left out of others' sums."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of silos that train in their own way."""
        result = []
        for silo, own in self.own.items():
            steps = "1 local step" if own.local_steps == 1 else f"{own.local_steps} local steps"
            result.append(f"silo '{silo}' takes {steps} in a round, with rate = {own.rate:g}")
        some = [task for task in self.tasks.values() if task.participation < 1]
        if some and all(task.participants == len(task.roster.clients) for task in some):
            result.append(
                f"participation = {some[0].participation:g} draws all clients of every silo in each round; leave it out"
            )
        if self.silo_dropout and len(self.tasks) == 1:
            result.append(f"silo_dropout does nothing: only silo '{min(self.tasks)}' has features; leave it out")
        return tuple(result)

    def training(
        self, settings: Settings, rosters: Mapping[str, Roster], batch: Callable[[int], Tensor] | None = None
    ) -> Training:
        """Return what an engine computes; mini-batches are drawn from the seed unless they are given."""
        parts = {Part.TRAIN: self.train, Part.VALIDATION: self.validation, Part.TEST: self.test}
        training = Training(
            tasks=self.tasks,
            batch=batch or (lambda number: settings.sample_batch(number, len(self.train))),
            rate=settings.rate_of,
            rates={silo: own.rate_of for silo, own in self.own.items()},
            rosters=rosters,
            private=self.private,
            parts={part: samples for part, samples in parts.items() if samples is not None},
            measure=partial(measure, settings.objective),
            codecs=settings.codecs,
            silo_dropout=settings.make_silo_dropout(),
        )
        if settings.participation == 1:
            return training
        silos = {silo: rosters[silo] for silo in training.plan.active}
        holders = {silo: Holders(roster.owner.numpy(), len(roster.clients)) for silo, roster in silos.items()}
        return replace(
            training,
            batch=lambda number: settings.sample_batch(number, len(self.train), holders),
            drawn=lambda number: draw_participants(settings.seed, number, holders, settings.participation)[0],
        )


def prepare(
    federation: Federation,
    models: Models,
    settings: Settings,
    validation: Samples | None,
    test: Samples | None,
    device: torch.device,
    labels: Labels | None = None,
    silos: Mapping[str, SiloSettings] | None = None,
) -> Setup:
    """Fit networks, features and labels together.

    Raises:
        DataError, ModelError: they do not fit; the message names the silo and says how.
    """
    labels = labels or Labels()
    check_labels(labels, federation)
    check_silo_dropout(settings, labels)
    own = _own_settings(federation, settings, silos or {})
    chosen = _one_each(models, federation.with_features)
    train = _cast(federation.samples, settings)
    validation, test = (
        _like(train, part.arrange(federation.columns, f"{name} set") if part else None, name)
        for part, name in ((validation, "validation"), (test, "test"))
    )
    objective = settings.objective
    outputs = max(objective.width(part.labels) for part in (train, validation, test) if part is not None)
    if objective.meaning == "classes":
        outputs = max(outputs, len(labels.classes or ()))
    networks = {
        silo: build_network(silo, chosen[silo], tuple(train.features[silo].shape[1:]), outputs, settings)
        for silo in federation.with_features
    }
    widths = {silo: width_of(silo, networks[silo], train.features[silo]) for silo in networks}
    if len(set(widths.values())) > 1:
        raise ModelError(
            f"embedding widths differ between silos: {join_names((f'{s} {w}' for s, w in widths.items()), most=16)}; "
            "the embeddings are added up, so every silo's network must end in the same number of outputs"
        )
    width = next(iter(widths.values()))
    train = _prepare_labels(train, width, settings).to(device)
    validation, test = (
        _prepare_labels(part, width, settings).to(device) if part else None for part in (validation, test)
    )
    networks = {silo: Network(network.module, settings.dtype, device) for silo, network in networks.items()}
    aggregator, codecs = settings.make_aggregator(), settings.codecs
    steps = {silo: own.get(silo, settings).steps for silo in networks}
    for silo, network in networks.items():
        sent = steps[silo].sent(SiloState(network.initial()), network.trainable)
        check_room(aggregator, len(federation.rosters[silo].clients), block_bytes(sent), silo)
    tasks = {
        silo: SiloTask(
            silo=silo,
            network=networks[silo],
            features=train.features[silo],
            labels=train.labels,
            roster=federation.rosters[silo],
            objective=objective,
            steps=steps[silo],
            averaging=settings.averaging,
            aggregator=aggregator,
            updates=codecs.weights if codecs.changes else None,
            participation=settings.participation,
            seed=settings.seed,
            width=width,
        )
        for silo in federation.with_features
    }
    private = None
    if labels.label_holder and labels.sharing and set(tasks) - {labels.label_holder}:
        private = PrivateLabels(
            labels.label_holder, labels.sharing, train.labels, objective, labels.privatizer, settings.seed
        )
    label_only = tuple(silo for silo in federation.silos if silo not in tasks)
    return Setup(
        tasks, networks, train, validation, test, width, chosen, private, label_only, own, settings.silo_dropout
    )


def _own_settings(federation: Federation, settings: Settings, silos: Mapping[str, SiloSettings]) -> dict[str, Settings]:
    """Return the settings of silos that do something in their own way."""
    if not isinstance(silos, Mapping):
        raise JobError(
            f'silos: tdcd.SiloSettings by the silos\' names are wanted, {{"bank": tdcd.SiloSettings(rate=0.1)}}, not '
            f"{describe_value(silos)}"
        )
    result = {}
    for silo, given in silos.items():
        if silo not in federation.silos:
            raise JobError(f"silos: '{silo}' is no silo{nearest(silo, federation.silos)}")
        if not isinstance(given, SiloSettings):
            raise JobError(f"silos: '{silo}': make it with tdcd.SiloSettings(…), not {describe_value(given)}")
        own = settings.of_silo(silo, given)
        if own is not settings:
            if silo not in federation.with_features:
                raise JobError(no_steps(silo))
            result[silo] = own
    return result


def no_steps(silo: str) -> str:
    """Return what is wrong with local steps or a rate of a silo that has labels only."""
    return f"silo '{silo}' has no features, so it takes no local steps; leave out its own local_steps and rate"


def check_labels(labels: Labels, federation: Federation) -> None:
    """Check that the silo that is said to have the labels is there, and that every other one has features.

    Raises:
        DataError: not so.
    """
    if labels.silo is not None and labels.silo not in federation.silos:
        raise DataError(f"labels.silo: '{labels.silo}' is no silo{nearest(labels.silo, federation.silos)}")
    for silo in federation.silos:
        if silo not in federation.samples.features and silo != labels.silo:
            raise DataError(
                f"silo '{silo}' has no features. If it has the labels, say so: labels = {{ silo = \"{silo}\" }}"
            )


def check_silo_dropout(settings: Settings, labels: Labels) -> None:
    """Check that no embeddings are left out of sums where labels are private.

    Raises:
        JobError: they would be.
    """
    if settings.silo_dropout and labels.private:
        raise JobError(
            f'training.silo_dropout goes with shared labels: with labels.sharing = "{labels.sharing}" silo '
            f"'{labels.silo}' replies to the sum of all embeddings; leave one of the two out"
        )


def starting_blocks(
    networks: Mapping[str, Network],
    given: Mapping[str, Mapping[str, ArrayLike]] | None,
    label_only: Sequence[str] = (),
) -> Blocks:
    """Return every hub's first block θ_j⁰: the networks' own weights, or those given; empty without features."""
    blocks: Blocks = {silo: network.initial() for silo, network in networks.items()} | {silo: {} for silo in label_only}
    if given is not None:
        tensors = {
            silo: {name: _weights(value, f"initial weights, silo '{silo}', '{name}'") for name, value in block.items()}
            for silo, block in given.items()
        }
        for silo in label_only:
            tensors.setdefault(silo, {})
        blocks = fit_blocks(tensors, blocks, "initial weights")
    check_finite(blocks, networks, "")
    return blocks


def check_finite(blocks: Blocks, networks: Mapping[str, Network], where: str) -> None:
    """Check that weights to start from are numbers."""
    for silo, network in networks.items():
        for name in network.trainable:
            if not blocks[silo][name].isfinite().all():
                raise ModelError(f"{where}silo '{silo}': the weights '{name}' to start from are not finite numbers")


def _weights(value: ArrayLike, what: str) -> Tensor:
    return to_tensor(np.atleast_1d(value), what).reshape(np.shape(value)) if not isinstance(value, Tensor) else value


def fit_blocks(blocks: Mapping[str, Mapping[str, Tensor]], like: Blocks, what: str) -> Blocks:
    """Check that blocks have the silos, names and shapes of ``like`` and return them in its types."""
    if set(blocks) != set(like):
        raise ModelError(f"{what}: they are for the silos {join_names(blocks)}, the federation has {join_names(like)}")
    result: dict[str, Block] = {}
    for silo, own in like.items():
        strange = sorted(set(blocks[silo]) ^ set(own))
        if strange:
            raise ModelError(f"{what}, silo '{silo}': these weights are not in both: {join_names(strange)}")
        for name, tensor in own.items():
            if blocks[silo][name].shape != tensor.shape:
                raise ModelError(
                    f"{what}, silo '{silo}': '{name}' has shape {tuple(blocks[silo][name].shape)}, "
                    f"the network's has {tuple(tensor.shape)}"
                )
        result[silo] = {
            name: blocks[silo][name].detach().to(tensor).clone(memory_format=torch.contiguous_format)
            for name, tensor in own.items()
        }
    return result


def _one_each(models: Models, silos: tuple[str, ...]) -> Mapping[str, ModelSpec | nn.Module]:
    if not isinstance(models, Mapping):
        models = dict.fromkeys(silos, models)
    for name in models:
        if name not in silos:
            raise ModelError(f"a model is given for '{name}', which is no silo{nearest(name, silos)}")
    missing = [silo for silo in silos if silo not in models]
    if missing:
        raise ModelError(f"no model is given for silo {join_names(missing)}")
    for silo, model in models.items():
        if not isinstance(model, ModelSpec | nn.Module):
            raise ModelError(
                f"silo '{silo}': a model is an nn.Module or a specification such as tdcd.models.MLP(hidden=[64]), "
                f"not {describe_value(model)}"
            )
    return models


def build_network(
    silo: str,
    model: ModelSpec | nn.Module,
    shape: tuple[int, ...],
    outputs: int,
    settings: Settings,
    device: torch.device | str = "cpu",
) -> Network:
    """Build a silo's network for rows of some shape; a specification's first weights are drawn from the seed."""
    if isinstance(model, ModelSpec):
        model = build(model, silo, shape, outputs, settings.seed)
    try:
        return Network(model, settings.dtype, device)
    except Exception as error:
        raise ModelError(f"silo '{silo}': its network cannot be copied: {type(error).__name__}: {error}") from error


def width_of(silo: str, network: Network, rows: Tensor) -> int:
    """Embed two rows to see that the network works; return how wide its embedding is."""
    some = rows.new_zeros(rows[:2].shape, device=network.device) if rows.is_meta else rows[:2].clone()
    try:
        with torch.no_grad(), borrow_stream(some.device):
            embedding = network(network.initial(), some, training=False)
    except Exception as error:
        hint = ""
        if not rows.is_floating_point():
            hint = f". Its rows are {rows.dtype}: most layers want floating-point numbers, so convert them"
        raise ModelError(
            f"silo '{silo}': its network fails on rows of shape {tuple(rows.shape[1:])}: "
            f"{type(error).__name__}: {error}{hint}"
        ) from error
    if not isinstance(embedding, Tensor) or embedding.ndim != 2 or len(embedding) != len(some):
        shape = tuple(embedding.shape) if isinstance(embedding, Tensor) else type(embedding).__name__
        raise ModelError(
            f"silo '{silo}': its network returned {shape} for {len(some)} rows; "
            f"it must return a tensor of shape ({len(some)}, outputs)"
        )
    if not embedding.is_floating_point():
        raise ModelError(f"silo '{silo}': its network returned {embedding.dtype}; it must return real numbers")
    return embedding.shape[1]


def _like(train: Samples, part: Samples | None, name: str) -> Samples | None:
    """Check that samples to evaluate on fit the training rows, and bring them to the same types."""
    if part is None:
        return None
    missing = sorted(set(train.features) - set(part.features))
    if missing:
        raise DataError(f"{name} set: no rows for silo {join_names(missing)}")
    for silo, rows in train.features.items():
        if part.features[silo].shape[1:] != rows.shape[1:]:
            raise DataError(
                f"{name} set: rows of silo '{silo}' have shape {tuple(part.features[silo].shape[1:])}, "
                f"its training rows {tuple(rows.shape[1:])}"
            )
    return replace(part, features={silo: part.features[silo].to(x.dtype) for silo, x in train.features.items()})


def _prepare_labels(samples: Samples, width: int, settings: Settings) -> Samples:
    return replace(samples, labels=settings.objective.prepare(samples.labels, width, settings.dtype))


def _cast(samples: Samples, settings: Settings) -> Samples:
    """Bring features to the training's precision; whole numbers (such as tokens) stay what they are."""
    rows = {silo: x.to(settings.dtype) if x.is_floating_point() else x for silo, x in samples.features.items()}
    return replace(samples, features=rows)


def device_of(name: str) -> torch.device:
    """Return a device that this machine has."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise JobError(f'device: {describe_value(name)} is not known; use "cpu", "cuda" or "cuda:1"') from error
    if device.type not in ("cpu", "cuda"):
        raise JobError(f'device: "{name}" is not supported; use "cpu", "cuda" or "cuda:1"')
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= cards:
        has = f"this machine has {cards}" if cards else "torch finds no CUDA device on this machine"
        raise JobError(f'device: "{name}" is not available: {has}; use device = "cpu"')
    return device
