"""Every message between sites.

A hub asks its clients, each request has its reply; hubs send each other messages of one kind at a time. What bounds the
size of each is known to whoever expects it: the tensors of the network, the rows of the mini-batch, the table's length.
"""

from typing import Literal

from torch import Tensor

from tdcd.sites.messages.packing import Column, message

# From a client to its hub, before anything else


@message("join")
class Join:
    """Who dials, with which job."""

    protocol: int
    version: str
    job: str
    """What all sites share of it, as JSON."""
    silo: str
    client: str
    serves: bool
    """Whether it stays when the training is finished, for predictions."""


@message("failed")
class Failed:
    """The reply of a client that cannot do what it was asked."""

    why: str


FINISHED, STOPPED, ABSENT = "finished", "stopped", "absent"
"""How a hub ends: with the training; to be started again soon; because others were away for too long."""


@message("farewell")
class Farewell:
    """The hub's last word."""

    status: str
    """``FINISHED``, ``STOPPED`` or ``ABSENT``."""
    why: str
    """Who was away."""


# A hub's requests before the first round, and their replies


@message("resume")
class Resume:
    """Asks a client that comes again whether it is still ready."""

    setup: str
    """The fingerprint of what it was sent to begin with."""


@message("resumed")
class Resumed:
    """Whether the client has all of it, and its table has not changed."""

    ready: bool


@message("request keys")
class RequestKeys:
    """Asks for the IDs of a client's rows."""

    known: str
    """The digest of those that the hub has heard before; empty if it has not."""


@message("keys")
class ClientKeys:
    """A client's IDs, and labels and parts where they are handed over."""

    digest: str
    unchanged: bool
    """Whether they are those that the hub knows, and are not sent again."""
    csv: bool
    columns: tuple[str, ...]
    file: str
    named: tuple[str, ...]
    """The columns whose values are sent."""
    ids: Column
    facts: tuple[Column, ...]


@message("request survey")
class RequestSurvey:
    """Asks what columns hold in training rows."""

    columns: tuple[str, ...]
    kind: str
    """Whether IDs are whole numbers or texts."""
    common: Tensor
    """Which of the client's rows have common IDs, (rows,)."""
    parts: Tensor
    """What these are for, in ascending order of IDs."""


@message("survey")
class SurveyReply:
    """Sums and counts, no values. See SurveyReport."""

    report: bytes


@message("begin")
class Begin:
    """All that a client needs to take part."""

    setup: str
    """The fingerprint of all the rest."""
    population: int
    """Training samples of the whole federation."""
    shape: tuple[int, ...] | None
    """Of a row; none in a silo that has labels only."""
    outputs: int
    width: int
    """E."""
    parts: tuple[str, ...]
    numbers: tuple[Tensor, ...]
    """The client's samples of each part, ascending."""
    labels: Tensor | None
    """Of its training samples, where they are shared."""
    kind: str
    common: Tensor | None
    places: Tensor | None
    """For tables, as in RequestSurvey."""
    preparation: bytes


@message("begun")
class Begun:
    """The client is ready."""


# A hub's requests in a round


@message("embed")
class Embed:
    """θ_j: embed the rows of the mini-batch."""

    version: int
    """Names the weights, for evaluations."""
    weights: tuple[Tensor, ...]
    samples: Tensor
    """The client's samples in the mini-batch where not all clients take part: then it cannot draw it by itself."""
    without: Tensor
    """The client's samples that have left the mini-batch."""


@message("embeddings")
class Embeddings:
    """Φ of a client's rows."""

    rows: Tensor


@message("first gradients")
class FirstGradients:
    """Φ_{-j}: return ∂ℓ/∂z of the rows of the mini-batch, at the exchanged embeddings."""

    others: Tensor
    samples: Tensor
    """As in Embed, where the round begins with this for the client."""
    without: Tensor


@message("later gradients")
class LaterGradients:
    """Return ∂ℓ/∂z at the newest scores of each silo that requests gradients."""

    scores: tuple[Tensor, ...]


@message("logit gradients")
class LogitGradients:
    """∂ℓ/∂z of a client's rows, one tensor for each of the scores."""

    rows: tuple[Tensor, ...]


@message("step")
class Step:
    """∂ℓ/∂z: take one local step, return the new embeddings."""

    gradients: Tensor


@message("descend")
class Descend:
    """Φ_{-j} or ∂ℓ/∂z: take the local steps that are left; nothing if the client has Φ_{-j} already."""

    rows: Tensor | None


@message("weights")
class Weights:
    """A client's weights after its local steps."""

    weights: tuple[Tensor, ...]


# A hub's requests in an evaluation

EVERY = -1
"""All columns of the preparation, which stay together."""


@message("score")
class Score:
    """θ_j: embed all rows of some parts."""

    version: int
    weights: tuple[Tensor, ...] | None
    """Nothing if the client has the weights of this version."""
    parts: tuple[str, ...]
    column: int | None
    """The column of the preparation whose values are dealt anew among the client's rows before, or ``EVERY``."""
    repeat: int
    """Which of several times it is that they are."""


@message("scores")
class Scores:
    """Embeddings of all rows of each part."""

    parts: tuple[str, ...]
    rows: tuple[Tensor, ...]


@message("judge")
class Judge:
    """Scores of the client's rows: add up how good they are."""

    parts: tuple[str, ...]
    scores: tuple[Tensor, ...]
    ranks: tuple[Tensor, ...]
    """The rank of each score among all rows."""
    present: tuple[Tensor, ...]
    """Which of the client's rows these are."""
    edges: tuple[Tensor, ...]
    """The bins of ranks to count rows in, for every class. See rank_bins."""


@message("tallies")
class Tallies:
    """Sums over a client's rows, by part. See tally."""

    tallies: dict[str, dict[str, list[float]]]


# Between hubs


@message("call")
class Call:
    """The chair calls all hubs to a meeting."""

    incarnation: str


@message("leave")
class Leave:
    """A hub ends, because others were away for too long."""

    incarnation: str
    why: str


@message("silo embeddings")
class SiloEmbeddings:
    """Φ of the mini-batch, or the samples that were lost instead, or the silos that have diverged."""

    rows: Tensor | None
    lost: Tensor
    diverged: tuple[str, ...]


@message("silo gradients")
class SiloGradients:
    """∂ℓ/∂z of the mini-batch, or the samples that were lost instead, or the silos that have diverged."""

    rows: Tensor | None
    lost: Tensor
    diverged: tuple[str, ...]


@message("end")
class End:
    """The end of an attempt at a round."""

    lost: Tensor
    away: Tensor
    diverged: tuple[str, ...]


@message("holders")
class SiloHolders:
    """Who holds which training sample in a silo, by the number of the client, where not all clients take part."""

    owner: Tensor
    clients: int


@message("waiting")
class Waiting:
    """A hub's clients that are away, where nothing of a mini-batch is left."""

    late: bool
    """Whether it has waited for too long."""
    away: Tensor


@message("silo scores")
class SiloScores:
    """A silo's embeddings of all samples of each part, and which of them it has."""

    parts: tuple[str, ...]
    rows: tuple[Tensor, ...]
    present: tuple[Tensor, ...]


@message("evaluated")
class Evaluated:
    """What the hub that holds the labels measured, as far as others may know."""

    verdict: Literal["better", "worse", "diverged"]
    missing: tuple[str, ...]
    """Parts that nothing could be measured on."""
    rows: dict[str, int]
    """How many rows of each part were measured."""
    measures: dict[str, dict[str, float]] | None


@message("fall")
class Fall:
    """What the hub that holds the labels measured where values of a silo's columns are dealt anew."""

    rows: int
    """How many were measured; none if nothing could be."""
    before: dict[str, float]
    """Loss and metrics of the same rows as they are."""
    after: dict[str, float]
    before_by_class: tuple[float, ...]
    """The area under the ROC curve of each class against all others, where there are several."""
    after_by_class: tuple[float, ...]


@message("model part")
class ModelPart:
    """What a silo brings to a model of all silos, where the job says that one hub makes it."""

    description: bytes
    """Of the silo and its network: a FederationRecord."""
    preparation: bytes
    names: tuple[str, ...]
    weights: tuple[Tensor, ...]


@message("concluded")
class Concluded:
    """A hub has written what the training ends with."""

    selected: int


# Hubs that align


@message("ids")
class AllIDs:
    """All IDs of a silo, where alignment is not private."""

    ids: Column


@message("points")
class MaskedPoints:
    """A silo's set on its way round the ring. See psi."""

    points: Tensor


@message("places")
class CommonPlaces:
    """The places of the common points, on their way back."""

    places: Tensor


@message("handed over")
class HandedOver:
    """Labels or parts of the common IDs."""

    values: Column


@message("digests")
class Digests:
    """Digests of what several silos know of the common IDs."""

    known: dict[str, str]
