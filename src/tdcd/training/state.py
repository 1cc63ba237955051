"""A training after some round, and the way to the next one: what the loop and a user's own loop have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tdcd.core.codecs import Float16
from tdcd.core.ledger import Traffic
from tdcd.core.network import Block
from tdcd.core.script import Diverged
from tdcd.core.state import States
from tdcd.data.holdout import Part
from tdcd.engines.base import Engine, Measurement
from tdcd.errors import DivergedError, join_names
from tdcd.runs.records import Evaluation
from tdcd.training.settings import Settings


@dataclass(frozen=True)
class State:
    """Everything that changes from round to round."""

    done: int
    """Rounds so far."""
    silos: States
    """What each silo carries: its weights, and what its hub remembers besides."""
    traffic: Traffic = field(default_factory=Traffic)
    """What the rounds so far have sent."""

    @property
    def weights(self) -> dict[str, Block]:
        """The global model: each silo's weights."""
        return {silo: state.weights for silo, state in self.silos.items()}

    def __repr__(self) -> str:
        numbers = sum(tensor.numel() for block in self.weights.values() for tensor in block.values())
        return f"State(after round {self.done:,}: {numbers:,} weights, {self.traffic.total:,} bytes sent)"


def advance(
    engine: Engine, state: State, settings: Settings, kept: Callable[[], str] = lambda: ""
) -> tuple[State, Traffic]:
    """Return the state after the next round, and what it has sent; ``kept`` says, if it diverges, what is left.

    Raises:
        DivergedError: weights are no longer finite.
        RewoundError: all hubs go back to an earlier round.
    """
    number = state.done + 1
    try:
        silos, sent = engine.round(state.silos, number)
    except Diverged as error:
        names = join_names(f"'{silo}'" for silo in error.silos)
        raise diverged(f"the weights of silo {names} are no longer finite", number, settings, kept()) from error
    return State(number, silos, state.traffic + sent), sent


def diverged(what: str, number: int, settings: Settings, kept: str = "") -> DivergedError:
    """Return the error that says how a training diverged after some round, and what to try."""
    if number == 0:
        return DivergedError(f"{what} before training: check the scale of the features and the first weights")
    rate = settings.rate
    wider = '; or codec = "bfloat16", as float16 ends at 65,504' if isinstance(settings.codec, Float16) else ""
    return DivergedError(
        f"training diverged: {what} after round {number} of {settings.rounds}.{kept} "
        f"Try a smaller rate, such as {rate / 10:g} instead of {rate:g}{wider}"
    )


def describe_evaluation(
    measurement: Measurement, state: State, settings: Settings, *, seconds: float = 0.0, better: bool = False
) -> Evaluation:
    """Return what was measured of a state as a line of the history."""
    train, validation, test = (measurement.measures[part] for part in Part)
    return Evaluation(
        round=state.done,
        iteration=state.done * settings.local_steps,
        seconds=seconds,
        traffic=state.traffic,
        rows={part.word: measurement.rows[part] for part in Part if part in measurement.rows},
        train=train,
        validation=validation,
        test=test,
        better=better,
    )
