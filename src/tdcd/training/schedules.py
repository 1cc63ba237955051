"""Learning-rate schedules: the rate of a round's local steps."""

from math import cos, pi, sqrt
from typing import Annotated, Literal

from pydantic import Field

from tdcd.strict import Strict

Rounds = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]


class Constant(Strict):
    """The same rate in every round."""

    kind: Literal["constant"] = "constant"

    def rate(self, base: float, number: int, rounds: int, local_steps: int) -> float:  # noqa: ARG002
        """Return the rate of round ``number`` of 1 … ``rounds``."""
        return base


class Step(Strict):
    """Multiply the rate by ``factor`` after every ``every`` rounds."""

    kind: Literal["step"] = "step"
    every: Annotated[int, Field(gt=0)]
    factor: Fraction = 0.1

    def rate(self, base: float, number: int, rounds: int, local_steps: int) -> float:  # noqa: ARG002
        """Return the rate of round ``number`` of 1 … ``rounds``."""
        return base * float(self.factor ** ((number - 1) // self.every))


class Cosine(Strict):
    """From the full rate in the first round down a half cosine to ``final`` of it in the last."""

    kind: Literal["cosine"] = "cosine"
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    over: Rounds | None = None
    """The rounds that the way down takes, when these are not all rounds of the training."""

    def rate(self, base: float, number: int, rounds: int, local_steps: int) -> float:  # noqa: ARG002
        """Return the rate of round ``number`` of 1 … ``rounds``."""
        done = min(1.0, (number - 1) / max(1, (self.over or rounds) - 1))
        return base * (self.final + (1 - self.final) * (1 + cos(pi * done)) / 2)


class Theory(Strict):
    """rate / (Q·√R) in every round: the choice for which the paper proves convergence as O(1/√R)."""

    kind: Literal["theory"] = "theory"
    over: Rounds | None = None
    """R, when it is not that of the training."""

    def rate(self, base: float, number: int, rounds: int, local_steps: int) -> float:  # noqa: ARG002
        """Return the rate of round ``number`` of 1 … ``rounds``."""
        return base / (local_steps * sqrt(self.over or rounds))


def cut(schedule: "Schedule", rounds: int) -> "Schedule":
    """Return a schedule with the rates that it has in a training of so many rounds, in one of any other number."""
    if isinstance(schedule, Cosine | Theory) and schedule.over is None:
        return schedule.model_copy(update={"over": rounds})
    return schedule


Schedule = Annotated[Constant | Step | Cosine | Theory, Field(discriminator="kind")]
SCHEDULE_TAGS = frozenset({"constant", "step", "cosine", "theory"})
