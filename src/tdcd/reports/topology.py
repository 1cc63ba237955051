"""The federation drawn as in the paper: hubs joined with each other, every hub with its clients around it."""

from collections.abc import Mapping, Sequence
from html import escape
from math import cos, pi, sin, sqrt
from typing import Any

SHOWN = 12
"""Clients drawn for a silo; a larger one is told in words."""
SIDE = 480.0


def topology(silos: Sequence[Mapping[str, Any]]) -> str:
    """Draw silos (as federation.json has them) as an ``<svg>`` element."""
    largest = max(client["rows"] for silo in silos for client in silo["clients"])
    ring = 0.0 if len(silos) == 1 else 105.0 if len(silos) < 8 else 130.0
    hubs = [_around(index, len(silos), ring) for index in range(len(silos))]
    lines, dots, labels = [], [], []
    for index, (x, y) in enumerate(hubs):
        for across, up in hubs[index + 1 :]:
            lines.append(f'<path class="peer" d="M{x:.1f} {y:.1f}L{across:.1f} {up:.1f}"/>')
    for silo, (x, y), index in zip(silos, hubs, range(len(silos)), strict=True):
        clients = silo["clients"][:SHOWN]
        for (cx, cy), client in zip(_fan(index, len(silos), len(clients), (x, y)), clients, strict=True):
            radius = 4 + 7 * sqrt(client["rows"] / largest)
            lines.append(f'<path class="spoke" d="M{x:.1f} {y:.1f}L{cx:.1f} {cy:.1f}"/>')
            told = escape(f"{client['name']}: {client['rows']} rows")
            dots.append(
                f'<circle class="client" cx="{cx:.1f}" cy="{cy:.1f}" r="{radius:.1f}"><title>{told}</title></circle>'
            )
        count = len(silo["clients"])
        dots.append(f'<circle class="hub" cx="{x:.1f}" cy="{y:.1f}" r="15"/>')
        name = escape(silo["name"])
        labels.append(
            f'<text x="{x:.1f}" y="{y + 31:.1f}">{name}</text>'
            f'<text class="small" x="{x:.1f}" y="{y + 46:.1f}">{count} client{"s" if count != 1 else ""}</text>'
            if len(silos) < 8
            else f'<text class="small" x="{x:.1f}" y="{y + 5:.1f}">{name}</text>'
        )
    total = sum(len(silo["clients"]) for silo in silos)
    told = f"{len(silos)} hubs joined with each other, {total} clients around them"
    return (
        f'<svg class="topology" viewBox="0 0 {SIDE:.0f} {SIDE:.0f}" role="img" aria-label="{told}">'
        f"{''.join(lines)}{''.join(dots)}{''.join(labels)}</svg>"
    )


def _around(index: int, silos: int, ring: float) -> tuple[float, float]:
    angle = _angle(index, silos)
    return SIDE / 2 + ring * cos(angle), SIDE / 2 + ring * sin(angle)


def _angle(index: int, silos: int) -> float:
    """Two silos lie side by side; more go round from the top."""
    return pi + pi * index if silos == 2 else -pi / 2 + 2 * pi * index / silos


def _fan(index: int, silos: int, clients: int, hub: tuple[float, float]) -> list[tuple[float, float]]:
    """Place clients on an arc outside their hub."""
    x, y = hub
    if silos == 1:
        angles = [2 * pi * k / clients - pi / 2 for k in range(clients)]
        return [(x + 150 * cos(a), y + 150 * sin(a)) for a in angles]
    spread = min(pi * 1.1, 2 * pi / silos * 1.5)
    middle = _angle(index, silos)
    steps = [0.0] if clients == 1 else [k / (clients - 1) - 0.5 for k in range(clients)]
    reach = 105.0 if silos < 8 else 85.0
    places = []
    for k, step in enumerate(steps):
        far = reach + (12 if k % 2 and clients > 7 else 0)
        places.append((x + far * cos(middle + step * spread), y + far * sin(middle + step * spread)))
    return places
