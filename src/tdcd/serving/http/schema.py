"""Requests and replies, as pydantic reads them and OpenAPI describes them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import ConfigDict, FailFast, Field, TypeAdapter
from typing_extensions import TypedDict

from tdcd.errors import DataError
from tdcd.serving.http.inputs import Inputs

ID = "id"
"""The key of a row's ID."""
Values = float | list[float] | dict[str, float]
"""A number; of several targets a list; of classes by their names."""


class Identity(TypedDict):
    """Which model replies."""

    name: str
    run: str
    """The ID of its training."""
    round: int
    """The round that its weights are of."""


class Prediction(TypedDict):
    """What the model says of a row."""

    id: str | int | None
    prediction: str | float | list[float]
    """The name of a class; of a regression the value, or several."""
    probabilities: NotRequired[dict[str, float]]
    """Of each class, by its name."""
    score: NotRequired[Values]
    """The summed embeddings."""
    shares: NotRequired[dict[str, Values]]
    """What each silo adds to the score."""
    shapley: NotRequired[dict[str, Values]]
    """Each silo's Shapley value for the probabilities, or the predicted value."""


class Reply(TypedDict):
    """What the model says of all rows of a request, in their order."""

    model: Identity
    predictions: list[Prediction]
    partial: bool
    """Whether silos were left out of the sum."""
    without: list[str]
    """These silos."""
    warnings: list[str]
    """Where the rows differ from those of the training."""


class Health(TypedDict):
    """Whether the server is alive, and takes requests."""

    live: bool
    ready: bool
    model: Identity


class Measures(TypedDict):
    """How good the model is on one part of the job's data."""

    part: str
    values: dict[str, float]


class SiloInfo(TypedDict):
    """A silo of the model."""

    name: str
    network: str
    parameters: int
    row_shape: list[int]
    """Of the rows of its network."""
    columns: list[dict[str, Any]]
    """Of its rows in requests; none where these are lists of numbers."""


class ModelInfo(TypedDict):
    """What the model is."""

    model: Identity
    origin: str
    loss: str
    classes: list[str]
    samples: int
    """That it was trained on."""
    silos: list[SiloInfo]
    measures: list[Measures]


class Request(TypedDict):
    """A request, as it is read."""

    rows: list[dict[str, Any]]
    shares: NotRequired[bool]
    shapley: NotRequired[bool]
    without: NotRequired[list[str]]


def request_adapter(inputs: Mapping[str, Inputs], most: int) -> TypeAdapter[Request]:
    """Return what reads requests for a model.

    Args:
        inputs: What the rows of each silo look like.
        most: Rows of a request.

    Raises:
        DataError: a silo is called as the key of IDs is.
    """
    if ID in inputs:
        raise DataError(f"a silo is called '{ID}', which in a request is the key of a row's ID; it cannot be served")
    cells = {silo: NotRequired[own.row_type] for silo, own in inputs.items()}
    identity = NotRequired[Annotated[str | int | None, Field(description="It is handed back.")]]
    row: Any = _closed("PredictRow", {ID: identity, **cells})
    silo: Any = cast(Any, Literal).__getitem__(tuple(inputs))
    left_out: Any = list[silo]
    rows: Any = list[row]
    fields = {
        "rows": Annotated[rows, FailFast(), Field(min_length=1, max_length=most)],
        "shares": NotRequired[Annotated[bool, Field(description="Add the score, and each silo's share of it.")]],
        "shapley": NotRequired[Annotated[bool, Field(description="Add each silo's Shapley value.")]],
        "without": NotRequired[
            Annotated[
                left_out,
                Field(description="Silos that no row has: predictions are partial.", max_length=len(inputs) - 1),
            ]
        ],
    }
    return TypeAdapter(_closed("PredictRequest", fields))


def _closed(name: str, fields: Mapping[str, Any]) -> Any:
    made = cast(Any, TypedDict)(name, dict(fields))
    made.__pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    return made
