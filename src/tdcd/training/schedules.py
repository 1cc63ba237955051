"""Learning-rate schedules: the rate of a round's local steps."""

from math import cos, pi, sqrt
from typing import Annotated, Literal

from pydantic import Field

from tdcd.strict import Strict

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

    def rate(self, base: float, number: int, rounds: int, local_steps: int) -> float:  # noqa: ARG002
        """Return the rate of round ``number`` of 1 … ``rounds``."""
        done = (number - 1) / max(1, rounds - 1)
        return base * (self.final + (1 - self.final) * (1 + cos(pi * done)) / 2)


class Theory(Strict):
    """rate / (Q·√R) in every round: the choice for which the paper proves convergence as O(1/√R)."""

    kind: Literal["theory"] = "theory"

    def rate(self, base: float, number: int, rounds: int, local_steps: int) -> float:  # noqa: ARG002
        """Return the rate of round ``number`` of 1 … ``rounds``."""
        return base / (local_steps * sqrt(rounds))


Schedule = Annotated[Constant | Step | Cosine | Theory, Field(discriminator="kind")]
SCHEDULE_TAGS = frozenset({"constant", "step", "cosine", "theory"})
