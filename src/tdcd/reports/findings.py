"""What runs show together: which line is first at which latency, and which of the paper's claims hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf
from typing import Literal

import numpy as np

from tdcd.costs import Costs
from tdcd.reports.study import Line, Panel, Study
from tdcd.reports.words import label, spread

Verdict = Literal["yes", "partly", "unclear", "no"]
"""Unclear is what lies within the range of the seeds."""


@dataclass(frozen=True)
class Win:
    """A range of latencies and the line that is first at the target there."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Claim:
    """What the paper says, and what these runs say to it."""

    text: str
    where: str
    verdict: Verdict
    numbers: str


def affine(line: Line, metric: str, target: float, costs: Costs) -> tuple[float, float] | None:
    """Return a and b of a line's mean time to the target, a + b·t_comm; nothing if some run does not reach it."""
    free, one = (line.times_to(metric, target, costs.at(t)) for t in (0.0, 1.0))
    if not free or None in free or None in one:
        return None
    a, b = float(np.mean([t for t in free if t is not None])), float(np.mean([t for t in one if t is not None]))
    return a, b - a


def winners(panel: Panel, metric: str, target: float, costs: Costs) -> list[Win]:
    """Return which line is first at the target, for every t_comm from 0 up."""
    found = {line.label: affine(line, metric, target, costs) for line in panel.lines}
    times = {label: ab for label, ab in found.items() if ab is not None}
    if len(times) < 2:
        return []
    crossings = {0.0, inf}
    for (a, b), (c, d) in combinations(times.values(), 2):
        if b != d and 0 < (c - a) / (b - d) < inf:
            crossings.add((c - a) / (b - d))
    wins: list[Win] = []
    for start, end in pairwise(sorted(crossings)):
        middle = (start + end) / 2 if end < inf else start * 2 + 1
        first = min(times, key=lambda label: times[label][0] + times[label][1] * middle)
        if wins and wins[-1].label == first:
            wins[-1] = Win(wins[-1].start, end, first)
        else:
            wins.append(Win(start, end, first))
    return wins


def claims(study: Study) -> list[Claim]:
    """Return those of the paper's claims that these runs can speak to."""
    lines = [line for line in study.lines if line.variant == "federation" and any(run.history for run in line.runs)]
    found = [_converge(lines)] if lines else []
    for panel in study.panels:
        if len({line.steps for line in panel.lines}) > 1:
            found += _more_steps(study, panel)
    found += [_larger("K", "Larger K is slightly worse", group, study.metric) for group in _groups(lines, "K")]
    found += [_larger("N", "Larger N is worse", group, study.metric) for group in _groups(lines, "N")]
    return found


def _converge(lines: Sequence[Line]) -> Claim:
    falls = [
        (run.history[0]["train"]["loss"], run.final["train"]["loss"])
        for line in lines
        for run in line.runs
        if run.history and run.result.get("status") != "diverged"
    ]
    diverged = sum(line.diverged for line in lines)
    down = sum(last < first for first, last in falls)
    total = len(falls) + diverged
    told = f"{down} of {total} runs end with a lower training loss than they began with"
    if falls:
        begun, ended = [first for first, _ in falls], [last for _, last in falls]
        told += f": from {min(begun):.3f} … {max(begun):.3f} to {min(ended):.3f} … {max(ended):.3f}"
    return Claim("All settings converge", "", "yes" if down == total else "no", told)


def _more_steps(study: Study, panel: Panel) -> Iterator[Claim]:
    """Yield what a panel over Q says."""
    lines = sorted((line for line in panel.lines if any(run.history for run in line.runs)), key=lambda line: line.steps)
    if len(lines) < 2:
        return
    told = ", ".join(f"Q = {line.steps}: {spread(line.finals('train', 'loss'))}" for line in lines)
    verdict = _rising([line.finals("train", "loss") for line in lines])
    yield Claim("Per iteration, larger Q converges worse", panel.title, verdict, f"training loss at the end {told}")
    target = study.target(panel)
    wins = winners(panel, study.metric, target, study.costs) if target is not None else []
    if target is None or not wins:
        return
    steps = {line.label: line.steps for line in lines}
    order = [steps[win.label] for win in wins]
    told = ", ".join(
        f"Q = {steps[win.label]} {f'from t_comm {win.start:.3g}' if win.start else 'first'}" for win in wins
    )
    one = lines[0]
    gains = []
    for t in study.t_comm:
        spent = {line.steps: _mean(line.times_to(study.metric, target, study.costs.at(t))) for line in lines}
        fastest = min((value, q) for q, value in spent.items() if value is not None)
        first = spent[one.steps]
        if first:
            gains.append(
                f"at t_comm {t:g}, Q = {fastest[1]} is {first / fastest[0]:.1f} times as fast as Q = {one.steps}"
            )
    larger = order[-1] > one.steps
    verdict = "yes" if larger and all(a < b for a, b in pairwise(order)) else "partly" if larger else "no"
    yield Claim(
        "Larger Q wins in time units as t_comm / t_comp grows",
        panel.title,
        verdict,
        f"to test {label(study.metric)} {target:g}: {told}; {'; '.join(gains)}",
    )


def _larger(what: str, text: str, lines: Sequence[Line], metric: str) -> Claim:
    """Judge lines that differ in K or N only, in ascending order."""
    size = _K if what == "K" else _N
    told = "; ".join(
        f"{what} = {size(line)}: training loss {spread(line.finals('train', 'loss'))}, "
        f"test {label(metric)} {spread(line.finals('test', metric))}"
        for line in lines
    )
    where = f"Q = {lines[0].steps}" + (f", N = {_N(lines[0])}" if what == "K" else f", K = {_K(lines[0])}")
    return Claim(text, where, _rising([line.finals("train", "loss") for line in lines]), told)


def _groups(lines: Sequence[Line], what: str) -> Iterator[list[Line]]:
    """Yield lines that have all in common but K (or N), in its order."""
    groups: dict[tuple[int, int], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.steps, _N(line) if what == "K" else _K(line)), []).append(line)
    size = _K if what == "K" else _N
    for group in groups.values():
        if len({size(line) for line in group}) == len(group) > 1:
            yield sorted(group, key=size)


def _rising(losses: Sequence[Sequence[float]]) -> Verdict:
    """Tell whether losses, some seeds each, rise all along; at least from the first to the last; or not."""
    first, last = losses[0], losses[-1]
    if max(first) >= min(last) and max(last) >= min(first):
        return "unclear"
    means = [float(np.mean(own)) for own in losses]
    if all(a < b for a, b in pairwise(means)):
        return "yes"
    return "partly" if means[0] < means[-1] else "no"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) and known else None


def _K(line: Line) -> int:  # noqa: N802
    return max(len(silo["clients"]) for silo in line.runs[0].federation["silos"])


def _N(line: Line) -> int:  # noqa: N802
    return len(line.runs[0].federation["silos"])
