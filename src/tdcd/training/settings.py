"""The settings of a training: one class for the job file's ``[training]`` table and for Python."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator
from torch import Tensor

from tdcd.core.aggregators import AGGREGATORS, Aggregator, Average
from tdcd.core.average import Averaging
from tdcd.core.codecs import CODECS, Codec, Codecs, Plain
from tdcd.core.local_steps import LocalSteps
from tdcd.core.objectives import OBJECTIVES, Objective
from tdcd.core.optimizers import OPTIMIZERS, SGD, Optimizer
from tdcd.core.sampling import Holders, draw_batch, draw_participants
from tdcd.core.silo_dropout import SiloDropout
from tdcd.errors import JobError, nearest
from tdcd.registry import Imported, Registry
from tdcd.strict import Strict, problems
from tdcd.training.schedules import Constant, Schedule


def _plain(value: Any) -> Any:
    """Take numpy's whole numbers as Python's."""
    return int(value) if isinstance(value, np.integer) else value


def _size(value: Any) -> Any:
    value = _plain(value)
    if value != "full" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f'should be a whole number above 0 or "full" (is {value!r})')
    return value


Count = Annotated[int, Field(gt=0), BeforeValidator(_plain)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


OBJECTIVE = Registry[Objective]("loss", Objective, OBJECTIVES)
OPTIMIZER = Registry[Optimizer]("optimizer", Optimizer, OPTIMIZERS)
AGGREGATOR = Registry[Aggregator]("aggregator", Aggregator, AGGREGATORS)
CODEC = Registry[Codec]("codec", Codec, CODECS)


Given = Imported | str | Mapping[str, Any]
"""A part that is named: once it is read, an import path if it is not one of the package."""


class SiloSettings(Strict):
    """What one silo does in its own way."""

    local_steps: Count | None = None
    """Q of its clients, when it is not training.local_steps."""
    rate: Positive | None = None
    """η of its clients, when it is not training.rate; the schedule is the same."""


class Settings(Strict):
    """How to train. The defaults are the paper's algorithm without extras."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    loss: Annotated[Objective | Given, BeforeValidator(OBJECTIVE.read), PlainSerializer(OBJECTIVE.write)]
    """What to minimise over the summed embeddings."""
    rounds: Count
    """R, the number of communication rounds."""
    local_steps: Count = 1
    """Q, gradient steps at every client between two exchanges; T = Q·R iterations in all."""
    batch_size: Annotated[int | Literal["full"], BeforeValidator(_size)] = "full"
    """Samples in a round's mini-batch over all clients of a silo; "full" takes every sample in every round."""
    rate: Positive
    """η, the learning rate."""
    schedule: Schedule = Constant()
    """How the rate changes over the rounds."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The part of each silo's clients that is drawn for a round; mini-batches are of rows whose clients take part in
    all silos."""
    silo_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability that a silo's embedding of a sample is left out of the other silos' sums in a round, so that the
    model learns to predict without a silo."""
    averaging: Averaging = "uniform"
    """"uniform": every client counts the same, as in the paper. "samples": by its rows in the batch."""
    aggregator: Annotated[Aggregator | Given, BeforeValidator(AGGREGATOR.read), PlainSerializer(AGGREGATOR.write)] = (
        Average()
    )
    """What a hub makes of its clients' weights. "average" is the paper's rule."""
    optimizer: Annotated[Optimizer | Given, BeforeValidator(OPTIMIZER.read), PlainSerializer(OPTIMIZER.write)] = SGD()
    """How a client's weights move by its gradient. Plain SGD is the paper's."""
    carry_optimizer: bool = False
    """Carry what optimizers remember from round to round, averaged by the hub; default: they start afresh in each."""
    proximal: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """μ of FedProx: a term μ/2·‖θ − θ_j‖² in a client's loss keeps it near the weights that it began with."""
    codec: Annotated[Codec | Given, BeforeValidator(CODEC.read), PlainSerializer(CODEC.write)] = Plain()
    """What travels in place of the numbers of a message. "plain" is the paper's: the numbers as they are."""
    codec_for: Literal["all", "weights", "embeddings"] = "all"
    """Which messages the codec is for: "weights", "embeddings" (and logit gradients), or both."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip_norm: Positive | None = None
    """Largest norm of a client's gradient."""
    precision: Literal["float32", "float64"] = "float32"
    seed: Annotated[int, Field(ge=0)] = 2021
    """Draws the first weights and every mini-batch."""
    evaluate_every: Count = 10
    """Rounds between two evaluations on all training and test rows; the first and last are always evaluated."""
    select: Literal["last", "best"] = "last"
    """Which weights a training ends with: those of the last round, or the best on the validation samples."""
    select_by: str = "loss"
    """The validation measure that tells which weights are best: "loss", "auroc", "accuracy" …"""
    patience: Count | None = None
    """Stop after so many evaluations without better weights; default: never."""
    checkpoint_every: Count = 50
    """Rounds between two checkpoints."""

    @model_validator(mode="after")
    def _consistent(self) -> "Settings":
        remembers = self.optimizer != SGD()
        if isinstance(self.optimizer, SGD) and remembers and self.local_steps == 1 and not self.carry_optimizer:
            raise ValueError(
                "momentum starts afresh in each round, so that with local_steps = 1 it does nothing; let the hub carry "
                f'it: aggregator = {{ kind = "momentum", momentum = {self.optimizer.momentum:g} }}'
            )
        if self.carry_optimizer and not remembers:
            raise ValueError(
                "carry_optimizer: plain SGD remembers nothing; give it momentum, or take another optimizer"
            )
        if self.proximal and self.local_steps == 1:
            raise ValueError("proximal: with local_steps = 1 clients never leave the weights that they begin with")
        if self.averaging == "samples" and isinstance(self.aggregator, Aggregator) and not self.aggregator.linear:
            raise ValueError(
                'averaging = "samples" goes with aggregators of the clients\' mean; to others all clients count alike'
            )
        if self.select_by != "loss":
            if self.select == "last" and self.patience is None:
                raise ValueError(
                    f'select_by = "{self.select_by}": nothing is selected; write select = "best", or set patience'
                )
            if isinstance(self.loss, Objective) and self.select_by not in self.loss.metrics:
                raise ValueError(
                    f"select_by: '{self.select_by}' is not measured{nearest(self.select_by, self.loss.metrics)}"
                )
        if self.codec_for != "all" and type(self.codec) is Plain:
            raise ValueError(f'codec_for = "{self.codec_for}": no codec is named; write codec = "float16", for example')
        return self

    @property
    def objective(self) -> Objective:
        """The loss itself; one that is named by an import path is imported."""
        return OBJECTIVE.make(self.loss)

    @property
    def loss_kind(self) -> str:
        """The loss as a job names it."""
        return OBJECTIVE.kind_of(self.loss)

    @property
    def steps(self) -> LocalSteps:
        """What a client does in a round."""
        return LocalSteps(
            self.local_steps,
            OPTIMIZER.make(self.optimizer),
            self.weight_decay,
            self.clip_norm,
            self.proximal,
            self.carry_optimizer,
        )

    @property
    def imports(self) -> dict[str, str]:
        """The import paths of parts that a user has written, each under what it is."""
        parts = {"loss": self.loss, "aggregator": self.aggregator, "optimizer": self.optimizer, "codec": self.codec}
        return {what: part.kind for what, part in parts.items() if isinstance(part, Imported)}

    def replace(self, **changes: Any) -> "Settings":
        """Return the same settings but for some, checked like any.

        Raises:
            JobError: the changes are wrong, or do not go with the rest.
        """
        return Settings(**{**dict(self), **changes})

    def as_table(self) -> dict[str, Any]:
        """Return the ``[training]`` table from which the same settings are read.

        Raises:
            JobError: a part of the user's own could not be made again from it.
        """
        for registry, part in (
            (OBJECTIVE, self.loss),
            (OPTIMIZER, self.optimizer),
            (AGGREGATOR, self.aggregator),
            (CODEC, self.codec),
        ):
            registry.write(part)  # here, as pydantic hides which error a serializer raised
        return self.model_dump(exclude_none=True)

    def of_silo(self, silo: str, own: SiloSettings | None) -> "Settings":
        """Return the settings as they are for one silo.

        Raises:
            JobError: what it does in its own way does not go with the rest.
        """
        given = own.model_dump(include=set(SiloSettings.model_fields), exclude_none=True) if own else {}
        if not given:
            return self
        try:
            return Settings.model_validate({**dict(self), **given})
        except ValidationError as error:
            raise JobError("; ".join(f"silo '{silo}': {problem}" for problem in problems(error))) from error

    def make_aggregator(self) -> Aggregator:
        """Return what a hub makes of its clients' weights; one that is named by an import path is imported."""
        return AGGREGATOR.make(self.aggregator)

    def make_silo_dropout(self) -> SiloDropout:
        """Return what leaves embeddings out of other silos' sums."""
        return SiloDropout(self.silo_dropout, self.seed)

    @property
    def codecs(self) -> Codecs:
        """What messages go through; a codec that is named by an import path is imported."""
        codec = CODEC.make(self.codec)
        return Codecs(
            rows=Plain() if self.codec_for == "weights" else codec,
            weights=Plain() if self.codec_for == "embeddings" else codec,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The type of all weights and features."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def rate_of(self, number: int) -> float:
        """Return the learning rate of round ``number`` of 1 … R."""
        return self.schedule.rate(self.rate, number, self.rounds, self.local_steps)

    def sample_batch(
        self, number: int, samples: int, holders: Mapping[str, Holders] | None = None, again: int = 0
    ) -> Tensor:
        """Return the mini-batch of round ``number``, drawn from the seed out of so many samples.

        ``holders`` of every silo that takes part in rounds say which samples are there where not all clients are. Other
        clients are drawn with another number ``again``.
        """
        size = self.batch_of(samples)
        if self.participation == 1:
            return draw_batch(self.seed, number, samples, size)
        if holders is None:
            raise RuntimeError("a mini-batch of some clients, without knowing who holds what")
        _, eligible = draw_participants(self.seed, number, holders, self.participation, again)
        return draw_batch(self.seed, number, samples, size, eligible, again)

    def batch_of(self, samples: int) -> int:
        """Return the batch size for a training set of so many samples."""
        if self.batch_size == "full":
            return samples
        if self.batch_size > samples:
            raise JobError(
                f"training.batch_size: {self.batch_size} is more than the {samples} training samples; "
                f'set it to {samples} or fewer, or to "full"'
            )
        return self.batch_size


def part_options() -> dict[str, list[str]]:
    """Return the options of all kinds of each part that a job names by kind."""
    return {registry.what: registry.options for registry in (AGGREGATOR, OPTIMIZER, OBJECTIVE, CODEC)}
