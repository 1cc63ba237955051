"""What time things take in a simulation: the paper's t_comm and t_comp, and more."""

from typing import Annotated

from pydantic import Field, model_validator

from tdcd.strict import Strict

Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


T_COMM = (10.0, 100.0)
"""The paper's latencies, in local steps."""


class Costs(Strict):
    """Times in units of your choice: local steps, as in the paper, or seconds.

    The defaults are the paper's formula: a round takes 3·t_comm + Q·t_comp.
    """

    t_comm: Time = 10.0
    """The time of a round trip, which the latencies of both tiers are multiples of."""
    client_latency: Time = 1.0
    """A round trip between a hub and a client, in t_comm; there are two in a round."""
    hub_latency: Time = 1.0
    """A round trip between two hubs, in t_comm; there is one in a round, where there are several silos."""
    step: Time = 1.0
    """t_comp, one local step."""
    client_bandwidth: Positive | None = None
    """Bytes a unit of time on every client's line; default: no limit."""
    hub_bandwidth: Positive | None = None
    """Bytes a unit of time on every hub's line to the other hubs; default: no limit."""
    slow_clients: Annotated[float, Field(ge=0, le=1)] = 0.0
    """About this part of the clients are slow."""
    slowdown: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """How many times as long a step takes a slow client."""
    speeds: dict[str, Positive] = {}
    """Speeds of single clients by "SILO/CLIENT": 0.5 takes twice as long for a step."""
    seed: Annotated[int, Field(ge=0)] = 2021
    """Chooses who is slow."""

    @model_validator(mode="after")
    def _slow(self) -> "Costs":
        if self.slowdown > 1 and not self.slow_clients:
            raise ValueError("slowdown goes with slow_clients, the part of the clients that are slow")
        return self

    def at(self, t_comm: float) -> "Costs":
        """Return the same for another t_comm."""
        return Costs(**(self.model_dump() | {"t_comm": t_comm}))

    def under(self, others: "Costs | None") -> "Costs":
        """Return the same with those that ``others`` sets in place of its own."""
        return (
            self if others is None else self.model_copy(update={k: getattr(others, k) for k in others.model_fields_set})
        )
