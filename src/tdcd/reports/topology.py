"""The federation drawn as in the paper: hubs joined with each other, every hub with its clients around it."""

from collections.abc import Sequence
from html import escape
from math import cos, pi, sin, sqrt

from tdcd.runs.records import ClientRecord, SiloRecord

SHOWN = 12
"""Clients drawn for a silo; a larger one is described in words."""

Point = tuple[float, float]


def topology(silos: Sequence[SiloRecord], label_holder: str | None = None) -> str:
    """Draw silos as an ``<svg>`` element.

    Where one keeps the labels, only its hub talks to the others.
    """
    largest = max(client.rows for silo in silos for client in silo.clients)
    crowded = len(silos) > 7
    hubs = [_hub(index, len(silos)) for index in range(len(silos))]
    edges, dots, words = [], [], []
    points = [(x, y + 45) for x, y in hubs]
    names = [silo.name for silo in silos]
    for index, hub in enumerate(hubs):
        for number, other in enumerate(hubs[index + 1 :], start=index + 1):
            if label_holder is None or label_holder in (names[index], names[number]):
                edges.append(_edge("peer", hub, other))
    for index, (silo, hub) in enumerate(zip(silos, hubs, strict=True)):
        clients = silo.clients[:SHOWN]
        places = _fan(index, len(silos), len(clients), hub)
        points += places
        for place, client in zip(places, clients, strict=True):
            edges.append(_edge("spoke", hub, place))
            dots.append(_dot("client", place, 4 + 7 * sqrt(client.rows / largest), _describe_client(client)))
        dots.append(_dot("hub", hub, 15, silo.name))
        count = len(silo.clients)
        if crowded:
            words.append(_word("small", hub, 5, silo.name))
        else:
            words.append(_word("small", hub, 46, f"{count} client{'s' if count != 1 else ''}"))
            words.append(_word("", hub, 31, silo.name))
    total = sum(len(silo.clients) for silo in silos)
    hubs_ = "1 hub" if len(silos) == 1 else f"{len(silos)} hubs joined with each other"
    text = f"{hubs_}, {total} client{'s' if total != 1 else ''} around {'it' if len(silos) == 1 else 'them'}"
    return (
        f'<svg class="topology" viewBox="{_box(points)}" role="img" aria-label="{text}">'
        f"{''.join(edges)}{''.join(dots)}{''.join(words)}</svg>"
    )


def _hub(index: int, silos: int) -> Point:
    ring = 0.0 if silos == 1 else 100.0 if silos < 8 else 130.0
    angle = _angle(index, silos)
    return ring * cos(angle), ring * sin(angle)


def _angle(index: int, silos: int) -> float:
    """Two silos lie side by side; more go round from the top."""
    return pi + pi * index if silos == 2 else -pi / 2 + 2 * pi * index / silos


def _fan(index: int, silos: int, clients: int, hub: Point) -> list[Point]:
    """Place clients on an arc outside their hub, all around a hub that has no peers."""
    x, y = hub
    reach = 110.0 if silos < 8 else 85.0
    if silos == 1:
        angles = [2 * pi * k / clients - pi / 2 for k in range(clients)]
    else:
        spread = min(pi, 2 * pi / silos * 1.5)
        steps = [0.0] if clients == 1 else [k / (clients - 1) - 0.5 for k in range(clients)]
        angles = [_angle(index, silos) + step * spread for step in steps]
    return [(x + reach * cos(angle), y + reach * sin(angle)) for angle in angles]


def _box(points: Sequence[Point], margin: float = 45.0) -> str:
    """Return the view box around all points, with room for names at the sides."""
    left, right = min(x for x, _ in points) - margin, max(x for x, _ in points) + margin
    top, bottom = min(y for _, y in points) - margin / 2, max(y for _, y in points) + margin / 2
    return f"{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}"


def _edge(kind: str, start: Point, end: Point) -> str:
    return f'<path class="{kind}" d="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"/>'


def _dot(kind: str, place: Point, radius: float, log: str) -> str:
    title = f"<title>{escape(log)}</title>"
    return f'<circle class="{kind}" cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{radius:.1f}">{title}</circle>'


def _word(kind: str, place: Point, below: float, text: str) -> str:
    return f'<text class="{kind}" x="{place[0]:.1f}" y="{place[1] + below:.1f}">{escape(text)}</text>'


def _describe_client(client: ClientRecord) -> str:
    return f"{client.name}: {client.rows} rows"
