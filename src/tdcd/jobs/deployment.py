"""How sites work together: the table ``[deployment]`` of a job file."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tdcd.strict import Strict
from tdcd.training.settings import Count

Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
"""Of a deadline: a year at most, as clocks cannot count to infinity."""


class Deployment(Strict):
    """How sites work together; a simulation takes no notice of it."""

    client_deadline: Seconds = 60.0
    """Seconds that a client may take for its part of a stage; then the round goes on without its rows."""
    hub_deadline: Seconds = 600.0
    """Seconds that a hub waits for another hub, or for enough clients; then it stops, and can be started again."""
    start_with: Literal["all"] | Count = "all"
    """How many clients a silo needs to find the common IDs: "all", or so many, if not all come in client_deadline."""
    minimum_clients: Count = 1
    """With fewer clients than this a silo waits."""
    largest_update: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """The largest norm of what a client changes of its silo's weights in a round; one that exceeds it is left out."""
    alignment: Literal["private", "plain"] = "private"
    """How hubs find the common IDs: "private" by private set intersection; "plain" by telling each other all IDs."""
    assemble: str | None = None
    """The silo whose hub makes a model of all hubs' weights and preparations at the end: RUN/model; default: none."""
    assemble_every: Count | None = None
    """Do so after every so many rounds, too."""
    importance: Annotated[int, Field(ge=0, le=1000)] = 0
    """For tables: how often the values of each column are dealt anew at the end, to measure how much it matters; 0: not
    at all."""
    predict_at: str | None = None
    """The silo whose hub may ask for predictions across sites; default: the one that has the labels."""
    partial_predictions: bool = False
    """Whether to predict an ID without the silos that do not have it, or are away; such predictions are marked."""

    @model_validator(mode="after")
    def _assembled_somewhere(self) -> "Deployment":
        if self.assemble_every and self.assemble is None:
            raise ValueError('assemble_every: say whose hub makes the model: assemble = "SILO"')
        return self
