"""One communication round of TDCD, as one hub runs it: Algorithm 1, and Remark 2 where labels are private.

This is the only statement of the round besides the oracle. It knows no transport and computes nothing but Σ_l Φ_l: it
awaits its clients and the other hubs through two small protocols, which drivers implement: in one process, over a
network, or without any numbers to count bytes or time.

    shared   every client has the labels of its rows            with_labels
    exact    the label holder replies to every local step       without_labels, holding_labels
    stale    the label holder replies once in a round           without_labels, holding_labels

Lost clients follow one rule. A call to the clients returns a value or raises ``LostClients``; the hub puts either into
its next message. So all hubs leave a meeting with a result, or all with the same lost samples, and begin the round
again without these. A finished round is always exactly Algorithm 1 on a mini-batch that all hubs agree on. A silo
without finite numbers has diverged: it says so in the same way, and all hubs stop.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import add
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

Sharing = Literal["shared", "exact", "stale"]
"""``shared``: every silo has the labels. ``exact`` and ``stale``: they stay in one, which sends logit gradients."""


class Rows(Protocol):
    """A vector of width E for each row of the mini-batch: a tensor (B, E) or, where only sizes count, a stand-in."""

    def __add__(self, other: Any, /) -> Self: ...


T = TypeVar("T")
R = TypeVar("R", bound=Rows)
W = TypeVar("W")
"""What a silo carries from round to round, opaque to the script: its weights θ_j and whatever else it remembers."""

Lost = frozenset[int]
"""Sample numbers of a mini-batch."""
NOTHING: Lost = frozenset()


class LostClients(Exception):  # noqa: N818 - news for the other hubs, not a fault
    """Clients of this silo failed. Any call to the clients may raise it."""

    def __init__(self, samples: Iterable[int], *, diverged: bool = False) -> None:
        self.samples: Lost = frozenset(samples)
        """The samples of the mini-batch that these clients hold; never empty."""
        self.diverged = diverged
        """Whether it was all of them, since their numbers are not finite."""
        super().__init__(f"lost the clients that hold {len(self.samples)} samples")


class LostSamples(Exception):  # noqa: N818
    """All hubs have agreed to begin the round again without these samples."""

    def __init__(self, samples: Lost) -> None:
        super().__init__(f"lost {len(samples)} samples")
        self.samples = samples


class EmptyBatch(Exception):  # noqa: N818
    """Every sample of the mini-batch is lost, at all hubs alike. Such a round is never finished: wait for clients."""

    def __init__(self, lost: Lost, attempt: int) -> None:
        super().__init__("every sample of the mini-batch is lost")
        self.lost, self.attempt = lost, attempt


class Diverged(Exception):  # noqa: N818
    """The weights of some silos are no longer finite."""

    def __init__(self, silos: Collection[str]) -> None:
        super().__init__(f"the weights of {', '.join(sorted(silos))} are no longer finite")
        self.silos = tuple(sorted(silos))


@dataclass(frozen=True)
class Plan:
    """The role of each silo in every round; the same at all hubs."""

    silos: tuple[str, ...]
    features: frozenset[str]
    """The silos that have features, and so a network. Any other silo has labels only."""
    label_holder: str | None = None
    """The only silo with labels, if others request logit gradients from it."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """For each silo without labels, its gradient requests in a round: Q, or 1."""

    @cached_property
    def others(self) -> Mapping[str, tuple[str, ...]]:
        """For each silo, all others."""
        return {silo: tuple(other for other in self.silos if other != silo) for silo in self.silos}

    @property
    def active(self) -> frozenset[str]:
        """The silos whose clients take part in rounds: they have features, or labels that others need."""
        return self.features | ({self.label_holder} if self.label_holder else set())

    @property
    def most_requests(self) -> int:
        """How many meetings with the label holder a round has."""
        return max(self.requests.values(), default=0)


def plan_rounds(
    steps: Mapping[str, int],
    sharing: Sharing = "shared",
    label_silo: str | None = None,
    label_only: Collection[str] = (),
) -> Plan:
    """Plan the rounds of a federation.

    Args:
        steps: Q for each silo that has features.
        sharing: How labels are shared.
        label_silo: The silo that holds private labels.
        label_only: Silos without features.

    Raises:
        ValueError: a silo has no part in a round.
    """
    silos = tuple(sorted({*steps, *label_only}))
    without = sorted(set(steps) - {label_silo})
    if sharing == "shared" or not without:  # where nobody requests gradients, private labels make no difference
        return Plan(silos, frozenset(steps))
    if idle := set(label_only) - {label_silo}:
        raise ValueError(f"silo '{min(idle)}' has neither features nor the labels")
    requests = {silo: steps[silo] if sharing == "exact" else 1 for silo in without}
    return Plan(silos, frozenset(steps), label_silo, requests)


class Topic(NamedTuple):
    """The subject of a message between hubs."""

    kind: Literal["embeddings", "gradients", "end"]
    step: int = 0


class Message(NamedTuple, Generic[R]):
    """What one hub sends another."""

    rows: R | None = None
    """Embeddings or logit gradients, if any."""
    lost: Lost = NOTHING
    diverged: frozenset[str] = frozenset()
    """Silos whose numbers are no longer finite, as far as the sender knows."""
    away: Lost = NOTHING
    """Samples of the next mini-batch whose clients are known to be away."""


class Clients(Protocol[R, W]):
    """The clients of one hub in one attempt at a round. Rows are those of the attempt's mini-batch, in its order."""

    async def embed(self, state: W, /) -> R:
        """Send θ_j to the clients; return their embeddings Φ_j. It is the forward pass of their first step, too."""

    async def step(self, gradients: R, /) -> R:
        """Let the clients take one local step with these logit gradients; return their new embeddings."""

    async def descend(self, rows: R | Literal[0] | None, /) -> W:
        """Let the clients take their remaining local steps; return the silo's new state.

        ``rows`` are Φ_{-j} for clients with labels and logit gradients for clients without; ``None`` if the clients
        have received Φ_{-j} before.
        """

    async def first_gradients(self, others: R | Literal[0], /) -> R:
        """Send Φ_{-j} to clients with labels, which add their own embeddings; return ∂ℓ/∂z at these scores."""

    async def gradients(self, scores: Mapping[str, R], step: int, /) -> Mapping[str, R]:
        """Return ∂ℓ/∂z at the scores of each silo after ``step`` local steps."""

    def away(self) -> Lost:
        """Return the samples of the next mini-batch whose clients are known to be away."""

    def diverged(self, state: W, /) -> bool:
        """Tell whether a silo's weights are no longer finite."""


class Peers(Protocol[R]):
    """The other hubs in one attempt at a round."""

    async def send(self, topic: Topic, messages: Mapping[str, Message[R]], /) -> None:
        """Send each of these hubs its message."""

    async def receive(self, topic: Topic, senders: Collection[str], /) -> Mapping[str, Message[R]]:
        """Wait for the message of each of these hubs."""


def keep_all(silo: str, rows: T) -> T:  # noqa: ARG001
    """Return a silo's rows as they are."""
    return rows


@dataclass(frozen=True)
class Hub(Generic[R, W]):
    """One silo's hub in one attempt at a round."""

    silo: str
    plan: Plan
    clients: Clients[R, W]
    peers: Peers[R]
    mask: Callable[[str, R], R] = keep_all
    """Returns what counts of the embeddings that another silo has sent; see silo dropout."""

    @property
    def others(self) -> tuple[str, ...]:
        """All other silos."""
        return self.plan.others[self.silo]


@dataclass(frozen=True)
class Outcome(Generic[W]):
    """The result of a round at one hub."""

    state: W
    lost: Lost
    """Samples that left this round's mini-batch."""
    away: Lost
    """Samples to leave out of the next round's mini-batch."""


async def communication_round(
    attempt: Callable[[Lost, int], Hub[R, W] | None], state: W, away: Lost = NOTHING, first: int = 0
) -> Outcome[W]:
    """Run one hub's part of a round.

    Args:
        attempt: Opens attempt number n on the mini-batch without some samples; returns nothing if none are left.
        state: What the silo carries into the round.
        away: Samples whose clients are known to be away.
        first: The number of the first attempt.

    Raises:
        EmptyBatch: every sample is lost.
        Diverged: the weights of some silo are no longer finite.
    """
    lost, number = away, first
    while True:
        hub = attempt(lost, number)
        if hub is None:
            raise EmptyBatch(lost, number)
        try:
            new, next_away = await run_attempt(hub, state)
        except LostSamples as error:
            lost |= error.samples
            number += 1
        else:
            return Outcome(new, lost, next_away)


async def run_attempt(hub: Hub[R, W], state: W) -> tuple[W, Lost]:
    """Run Algorithm 1 on one mini-batch; return the new state, and the samples to leave out of the next one."""
    if not hub.plan.requests:
        new = await with_labels(hub, state)
    elif hub.silo == hub.plan.label_holder:
        new = await holding_labels(hub, state)
    else:
        new = await without_labels(hub, state)
    return await finish(hub, new)


async def with_labels(hub: Hub[R, W], state: W) -> W | LostClients:
    """Every client has the labels of its rows (the paper's main text)."""
    if hub.silo not in hub.plan.features:
        await exchange(hub, None)
        return state
    embeddings = await unless_lost(hub.clients.embed(state))  # lines 8-15
    others = await exchange(hub, embeddings)  # lines 16-20
    return await unless_lost(hub.clients.descend(others))  # lines 21-34


async def without_labels(hub: Hub[R, W], state: W) -> W | LostClients:
    """Another silo holds the labels, and returns ∂ℓ/∂z at the newest embeddings: once, or at every step (Remark 2)."""
    requests = hub.plan.requests[hub.silo]
    embeddings = await unless_lost(hub.clients.embed(state))
    gradients = await request_gradients(hub, 0, embeddings)
    for step in range(1, requests):
        embeddings = await unless_lost(hub.clients.step(gradients))
        gradients = await request_gradients(hub, step, embeddings)
    new = await unless_lost(hub.clients.descend(gradients))
    for step in range(requests, hub.plan.most_requests):  # silos with more steps may still lose clients
        await attend(hub, step, new)
    return new


async def holding_labels(hub: Hub[R, W], state: W) -> W | LostClients:
    """Only this silo's clients hold labels: they compute ∂ℓ/∂z for the other silos, and take steps of their own."""
    trains = hub.silo in hub.plan.features
    embedded = await unless_lost(hub.clients.embed(state)) if trains else None
    own, others = await collect(hub, 0, embedded)
    first = await unless_lost(hub.clients.first_gradients(total(others, others)))
    await reply(hub, 0, first if isinstance(first, LostClients) else dict.fromkeys(others, first))
    new = await unless_lost(hub.clients.descend(None)) if trains else state
    embeddings = others if own is None else {**others, hub.silo: own}
    for step in range(1, hub.plan.most_requests):
        new, moved = await collect(hub, step, new)
        scores = {silo: rows + total(embeddings, embeddings.keys() - {silo}) for silo, rows in moved.items()}
        await reply(hub, step, await unless_lost(hub.clients.gradients(scores, step)))
    return new


async def unless_lost(call: Awaitable[T]) -> T | LostClients:
    """Return the result of a call to the clients, or the loss, which the hub reports at its next meeting."""
    try:
        return await call
    except LostClients as lost:
        return lost


def total(embeddings: Mapping[str, R], silos: Collection[str]) -> R | Literal[0]:
    """Return Σ_l Φ_l over some silos (line 19), in the order of their names, so that all hubs agree to the bit."""
    ordered = [embeddings[silo] for silo in sorted(silos)]
    return reduce(add, ordered) if ordered else 0


# Meetings of the hubs: all leave one with a result, or all with the same LostSamples.


async def exchange(hub: Hub[R, W], own: R | LostClients | None) -> R | Literal[0]:
    """Exchange embeddings with all silos that have features; return Φ_{-j}."""
    message: Message[R] = report(hub, own) if isinstance(own, LostClients) else Message(own)
    news: Message[R] = message._replace(rows=None)
    topic, features = Topic("embeddings"), hub.plan.features
    await hub.peers.send(topic, {silo: message if silo in features else news for silo in hub.others})
    messages = await hub.peers.receive(topic, hub.others)
    agree(hub, own, messages)
    embeddings = {silo: hub.mask(silo, rows) for silo, rows in rows_of(messages).items()}
    return total(embeddings, embeddings)


async def request_gradients(hub: Hub[R, W], step: int, embeddings: R | LostClients) -> R:
    """Send the newest Φ_j to the label holder; return ∂ℓ/∂z."""
    rows = None if isinstance(embeddings, LostClients) else embeddings
    gradients = await attend(hub, step, embeddings, rows)
    if gradients is None:
        raise ValueError("the label holder replied to embeddings without logit gradients")
    return gradients


async def attend(hub: Hub[R, W], step: int, own: object, rows: R | None = None) -> R | None:
    """Meet the label holder, with or without embeddings."""
    holder = hub.plan.label_holder or ""
    message: Message[R] = report(hub, own) if isinstance(own, LostClients) else Message(rows)
    await hub.peers.send(Topic("embeddings", step), {holder: message})
    messages = await hub.peers.receive(Topic("gradients", step), [holder])
    agree(hub, None, messages)  # what was lost here is among it: the label holder sends the union
    return messages[holder].rows


async def collect(hub: Hub[R, W], step: int, own: T | LostClients) -> tuple[T, Mapping[str, R]]:
    """Receive the newest embeddings of the silos without labels; report lost samples to all of them."""
    messages = await hub.peers.receive(Topic("embeddings", step), list(hub.plan.requests))
    try:
        return agree(hub, own, messages), rows_of(messages)
    except (LostSamples, Diverged) as error:
        await reply(hub, step, error)
        raise


async def reply(hub: Hub[R, W], step: int, gradients: Mapping[str, R] | LostClients | LostSamples | Diverged) -> None:
    """Send each silo its logit gradients, or all of them the lost samples, or who has diverged."""
    topic = Topic("gradients", step)
    if isinstance(gradients, LostClients | LostSamples | Diverged):
        message = report(hub, gradients)
        await hub.peers.send(topic, dict.fromkeys(hub.plan.requests, message))
        agree(hub, None, {hub.silo: message})
    else:
        await hub.peers.send(topic, {silo: Message(gradients.get(silo)) for silo in hub.plan.requests})


async def finish(hub: Hub[R, W], new: W | LostClients) -> tuple[W, Lost]:
    """Agree with all hubs that the round is finished, and on the samples to leave out of the next mini-batch."""
    if isinstance(new, LostClients):
        own = report(hub, new)
    else:
        own = Message(diverged=frozenset([hub.silo] * hub.clients.diverged(new)), away=hub.clients.away())
    await hub.peers.send(Topic("end"), dict.fromkeys(hub.others, own))
    messages = {**await hub.peers.receive(Topic("end"), hub.others), hub.silo: own}
    return agree(hub, new, messages), NOTHING.union(*(message.away for message in messages.values()))


def report(hub: Hub[R, W], trouble: LostClients | LostSamples | Diverged) -> Message[R]:
    """Return the message that tells other hubs of lost samples, or of silos that have diverged."""
    if isinstance(trouble, Diverged):
        return Message(diverged=frozenset(trouble.silos))
    if isinstance(trouble, LostClients) and trouble.diverged:
        return Message(diverged=frozenset([hub.silo]))
    return Message(lost=trouble.samples)


def agree(hub: Hub[R, W], own: T | LostClients, messages: Mapping[str, Message[R]]) -> T:
    """Return this hub's own value, if no hub has lost clients or diverged.

    Raises:
        LostSamples: this hub or another has lost clients; who has diverged will do so again without these.
        Diverged: the numbers of some silos are no longer finite.
    """
    news: list[Message[R]] = [message for message in messages.values() if message.lost or message.diverged]
    if isinstance(own, LostClients):
        news.append(report(hub, own))
    elif not news:
        return own
    if lost := NOTHING.union(*(message.lost for message in news)):
        raise LostSamples(lost)
    raise Diverged(frozenset[str]().union(*(message.diverged for message in news)))


def rows_of(messages: Mapping[str, Message[R]]) -> dict[str, R]:
    """Return the rows in the messages that have some."""
    return {silo: message.rows for silo, message in messages.items() if message.rows is not None}
