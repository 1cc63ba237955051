"""The round script without numbers: what each hub asks of its clients, and sends to other hubs, in one round.

The ledger adds up the bytes of these events, the clock their time. Nothing here restates the round: a metered pair of
``Clients`` and ``Peers`` runs the script, and notes every request.
"""

from collections.abc import Collection, Mapping
from functools import lru_cache, partial
from typing import Literal, NamedTuple

from tdcd.core.script import NOTHING, Hub, Lost, Message, Plan, Topic, communication_round
from tdcd.core.turns import Mail, run_in_turns


class Size:
    """Stands for rows of the mini-batch, which nobody computes."""

    def __add__(self, other: object) -> "Size":
        return self


SIZE = Size()


class Call(NamedTuple):
    """A hub calls its clients and waits for all of them: what each receives, computes and returns."""

    silo: str
    rows_down: int = 0
    """How often a client receives a vector for each of its rows."""
    rows_up: int = 0
    weights_down: int = 0
    weights_up: int = 0
    opens: int = 0
    """Whether it opens the round at a client, which hears then which of its rows are in the mini-batch."""
    steps: int = 0
    """Local steps that a client takes."""


class Send(NamedTuple):
    """A hub sends messages to other hubs."""

    silo: str
    topic: Topic
    messages: int
    """Those that have rows."""
    number: int
    """Of this event."""


class Receive(NamedTuple):
    """A hub waits for messages."""

    silo: str
    sends: tuple[int, ...]
    """The numbers of the events that sent them."""


Event = Call | Send | Receive


class _Clients:
    """Clients that exchange sizes in place of rows and weights."""

    def __init__(self, silo: str, plan: Plan, steps: int, events: list[Event]) -> None:
        self._call, self._events = partial(Call, silo), events
        self._trains = silo in plan.features
        self._remaining = steps - plan.requests.get(silo, 1) + 1
        """Local steps that ``descend`` takes."""

    async def embed(self, state: None) -> Size:  # noqa: ARG002
        self._events.append(self._call(rows_up=1, weights_down=1, opens=1))
        return SIZE

    async def step(self, gradients: Size) -> Size:  # noqa: ARG002
        self._events.append(self._call(rows_down=1, rows_up=1, steps=1))
        return SIZE

    async def first_gradients(self, others: Size | Literal[0]) -> Size:  # noqa: ARG002
        self._events.append(self._call(rows_down=1, rows_up=1, opens=int(not self._trains)))
        return SIZE

    async def gradients(self, scores: Mapping[str, Size], step: int) -> Mapping[str, Size]:  # noqa: ARG002
        self._events.append(self._call(rows_down=len(scores), rows_up=len(scores)))
        return scores

    async def descend(self, rows: Size | Literal[0] | None) -> None:
        self._events.append(self._call(rows_down=int(rows is not None), weights_up=1, steps=self._remaining))

    def away(self) -> Lost:
        return NOTHING

    def diverged(self, state: None) -> bool:  # noqa: ARG002
        return False


class _Peers:
    """Hubs that exchange sizes in place of rows."""

    def __init__(self, silo: str, mail: Mail[tuple[int, Message[Size]]], events: list[Event]) -> None:
        self._silo, self._mail, self._events = silo, mail, events

    async def send(self, topic: Topic, messages: Mapping[str, Message[Size]]) -> None:
        number, rows = len(self._events), sum(m.rows is not None for m in messages.values())
        self._events.append(Send(self._silo, topic, rows, number))
        for receiver, message in messages.items():
            self._mail.put(self._silo, receiver, topic, (number, message))

    async def receive(self, topic: Topic, senders: Collection[str]) -> Mapping[str, Message[Size]]:
        arrived = await self._mail.take(self._silo, topic, senders)
        self._events.append(Receive(self._silo, tuple(number for number, _ in arrived.values())))
        return {sender: message for sender, (_, message) in arrived.items()}


def round_events(plan: Plan, steps: Mapping[str, int]) -> tuple[Event, ...]:
    """Return all that happens in a round that loses nobody; ``steps`` are Q of each silo that has features."""
    return _events(plan.silos, plan.features, plan.label_holder, tuple(plan.requests.items()), tuple(steps.items()))


@lru_cache(maxsize=256)
def _events(
    silos: tuple[str, ...],
    features: frozenset[str],
    label_holder: str | None,
    requests: tuple[tuple[str, int], ...],
    steps: tuple[tuple[str, int], ...],
) -> tuple[Event, ...]:
    plan, events = Plan(silos, features, label_holder, dict(requests)), list[Event]()
    mail: Mail[tuple[int, Message[Size]]] = Mail()

    def attempt(silo: str, lost: Lost, number: int) -> Hub[Size, None]:  # noqa: ARG001
        clients = _Clients(silo, plan, dict(steps).get(silo, 0), events)
        return Hub(silo, plan, clients, _Peers(silo, mail, events))

    run_in_turns({silo: communication_round(partial(attempt, silo), None) for silo in silos}, mail)
    return tuple(events)
