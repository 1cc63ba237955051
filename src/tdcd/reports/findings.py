"""What runs show together: which line is first at which latency, and which of the paper's claims hold."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf, isclose
from typing import Any, Literal

import numpy as np

from tdcd.costs import Costs
from tdcd.files import flat
from tdcd.reports.frame import LOSS, Measure
from tdcd.reports.lines import Line, setting
from tdcd.reports.study import Panel, Study
from tdcd.reports.words import about, count, mean

Verdict = Literal["yes", "partly", "unclear", "no"]
"""Unclear is what the seeds do not agree on."""
FREE = ("name", "training.rounds", "training.evaluate_every", "training.checkpoint_every", "training.rate")
"""Settings that may differ between lines that are compared: the rest of a sweep's bookkeeping, and the chosen rate."""
PIECES = 64
"""Straight pieces of a line's time, at most."""
VARIED = {
    "Q": ("training.local_steps",),
    "K": ("data.clients", "silos"),
    "N": ("data.features", "model", "silos"),
}
"""Settings that stand for each of the paper's letters. With N the networks differ, as in the paper."""


TENTH = 0.1
ENDINGS = {
    "falling": "still falls",
    "rising": "has risen again",
    "higher": "is no lower in the end than at the beginning",
}
"""How a training loss ends that has not settled."""
SETTLED = (
    "Settled: at the last evaluation it is within a tenth of its descent of its lowest value, and the last quarter of "
    "the local steps brought at most a tenth of the descent"
)


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


@dataclass(frozen=True)
class TimeTo:
    """A line's mean time to a target, for every t_comm: straight between some latencies, and after the last.

    Hubs and clients wait for whoever is last, so time grows ever faster with t_comm, in straight pieces: between two
    of them something else is waited for.
    """

    at: tuple[float, ...]
    """Latencies, from 0, between which it is straight."""
    times: tuple[float, ...]
    """The time at each."""
    slope: float
    """Time by t_comm after the last."""

    def __call__(self, t_comm: float) -> float:
        """Return the time at a latency."""
        if t_comm >= self.at[-1]:
            return self.times[-1] + self.slope * (t_comm - self.at[-1])
        return float(np.interp(t_comm, self.at, self.times))


def time_to(line: Line, measure: Measure, target: float, costs: Costs) -> TimeTo | None:
    """Return a line's mean time to the target, for every t_comm; nothing if some run does not reach it."""
    if not line.times_to(measure, target, costs.at(0.0)):
        return None

    def spent(t_comm: float) -> float:
        return mean(line.times_to(measure, target, costs.at(t_comm)) or [])

    free = spent(0.0)
    least = min([latency for latency in (costs.client_latency, costs.hub_latency) if latency] or [1.0])
    far = 2 * (free + 1) / min(1.0, least)  # here a trip takes longer than all computation
    last, slope = spent(far), (spent(2 * far) - spent(far)) / far
    record = {0.0: free, far: last}
    _bend(spent, (0.0, free, _slope(spent, 0.0, free)), (far, last, slope), record, PIECES)
    at = sorted(record)
    if isclose(free + slope * far, last, rel_tol=1e-9):  # one straight line
        at = [0.0]
    return TimeTo(tuple(at), tuple(record[t] for t in at), slope)


Tangent = tuple[float, float, float]
"""A latency, the time there, and the time by t_comm just after it."""


def _bend(spent: Callable[[float], float], one: Tangent, two: Tangent, found: dict[float, float], most: int) -> None:
    """Find the bends between two latencies: where the straight lines of both meet, or between there and either."""
    (a, there, up), (b, then, down) = one, two
    if len(found) > most or isclose(there + up * (b - a), then, rel_tol=1e-9) or down <= up:
        return
    t = min(max((there - then + down * b - up * a) / (down - up), a), b)
    if min(t - a, b - t) <= 1e-9 * b:
        return
    value = found[t] = spent(t)
    if not isclose(there + up * (t - a), value, rel_tol=1e-9):
        middle = (t, value, _slope(spent, t, value))
        _bend(spent, one, middle, found, most)
        _bend(spent, middle, two, found, most)


def _slope(spent: Callable[[float], float], t_comm: float, value: float) -> float:
    step = 1e-4 * max(1.0, t_comm)
    return (spent(t_comm + step) - value) / step


def winners(panel: Panel, measure: Measure, target: float, costs: Costs) -> list[Win]:
    """Return which line is first at the target, for every t_comm from 0 up; lines that are first together share it."""
    record = {line.label: time_to(line, measure, target, costs) for line in panel.lines}
    times = {label: time for label, time in record.items() if time is not None}
    if len(times) < 2:
        return []
    bends = sorted({t for time in times.values() for t in time.at})
    crossings = {0.0, inf}
    for one, two in combinations(times.values(), 2):
        for start, end in pairwise([*bends, inf]):
            other = end if end < inf else 2 * start + 1
            a, b = one(start) - two(start), one(other) - two(other)
            crossing = start + (other - start) * a / (a - b) if a != b else 0.0
            if 0 < crossing < inf and start <= crossing <= end:
                crossings.add(crossing)
    wins: list[Win] = []
    for start, end in pairwise(sorted(crossings)):
        middle = (start + end) / 2 if end < inf else start * 2 + 1
        spent = {label: time(middle) for label, time in times.items()}
        least = min(spent.values())
        first = " and ".join(label for label, value in spent.items() if isclose(value, least, rel_tol=1e-9))
        if wins and wins[-1].label == first:
            wins[-1] = Win(wins[-1].start, end, first)
        else:
            wins.append(Win(start, end, first))
    return wins


def describe_win(win: Win) -> str:
    """Write a range of latencies and who is first there."""
    if win.end == inf:
        return f"{win.label} for t_comm above {win.start:.3g}" if win.start else f"{win.label} for every t_comm"
    return f"{win.label} for t_comm from {win.start:.3g} to {win.end:.3g}"


def speedups(study: Study) -> list[str]:
    """Tell, for lines that differ in Q only, how much faster the fastest is: from the times to the study's target."""
    lines, target, result = [line for line in study.lines if line.variant == "federation"], study.target, []
    for group in same_but(lines, "Q") if target is not None else ():
        wins = winners(Panel("", tuple(group), ()), study.measure, target or 0.0, study.costs)
        if gains := _gains(study, group, target or 0.0):
            result.append(f"{_where(group[0], 'Q')}: {'; '.join(gains)}. First: {'; '.join(map(describe_win, wins))}")
    return result


def _gains(study: Study, lines: Sequence[Line], target: float) -> list[str]:
    """Tell, at each latency, how much faster than the first of some lines that differ in Q the fastest is."""
    gains, first = [], lines[0].steps
    for t in study.t_comm:
        record = {line.steps: line.times_to(study.measure, target, study.costs.at(t)) for line in lines}
        spent = {q: mean(values) for q, values in record.items() if values}
        fastest = min(spent, key=lambda q: spent[q]) if spent else first
        if first in spent and len(spent) > 1 and spent[fastest] > 0:
            faster = spent[first] / spent[fastest]
            gains.append(f"at t_comm {t:g}, Q = {fastest} is {faster:.1f} times as fast as Q = {first}")
    return gains


def claims(study: Study) -> list[Claim]:
    """Return those of the paper's claims that a sweep can speak to; runs that somebody listed prove nothing."""
    lines = [line for line in study.lines if line.variant == "federation"]
    if not study.sweep or not lines:
        return []
    result = [_converge(lines)]
    for group in same_but(lines, "Q"):
        result += _more_steps(study, group)
    result += [_larger("K", "Larger K is slightly worse", group, study.measure) for group in same_but(lines, "K")]
    result += [_larger("N", "Larger N is worse", group, study.measure) for group in same_but(lines, "N")]
    return result


def _converge(lines: Sequence[Line]) -> Claim:
    """Judge the whole curve of every run's training loss, whichever weights the run keeps."""
    runs = [run for line in lines for run in line.measured(LOSS).partition_by("run", maintain_order=True)]
    ends = Counter(_ending(run["iteration"].to_list(), run["value"].to_list()) for run in runs)
    diverged, hopeless = sum(line.diverged for line in lines), [line.full for line in lines if not line.runs]
    total = len(runs) + diverged
    words = f"the training loss has settled in {ends['settled']} of {count(total, 'run')}"
    words += "".join(f", {text} in {ends[how]}" for how, text in ENDINGS.items() if ends[how])
    words += f"; {diverged} diverged" if diverged else ""
    if hopeless:
        words += f"; every rate diverged for {', '.join(hopeless)}"
    if runs:
        first, last = ([run["value"][place] for run in runs] for place in (0, -1))
        words += f". From {min(first):.3f} … {max(first):.3f} to {min(last):.3f} … {max(last):.3f} (all runs)"
    failed = diverged or hopeless or ends["higher"]
    verdict: Verdict = "no" if failed else "yes" if ends["settled"] == total else "partly"
    return Claim("All settings converge", "", verdict, f"{words}. {SETTLED}")


def _ending(steps: Sequence[int], losses: Sequence[float]) -> str:
    """Tell how a curve of losses ends: "settled", or one of ``ENDINGS``."""
    first, lowest, last = losses[0], min(losses), losses[-1]
    if not last < first:
        return "higher"
    if last - lowest > TENTH * (first - lowest):
        return "rising"
    before = max(number for number, step in enumerate(steps) if step <= 0.75 * steps[-1])
    return "falling" if losses[before] - last > TENTH * (first - last) else "settled"


def _more_steps(study: Study, lines: Sequence[Line]) -> Iterator[Claim]:
    """Yield what lines that differ in Q say."""
    ends = ", ".join(f"Q = {line.steps}: {about(line.finals(LOSS))}" for line in lines)
    where = _where(lines[0], "Q")
    rising = _rising([line.by_seed(LOSS) for line in lines])
    yield Claim("Per iteration, larger Q converges worse", where, rising, f"training loss at the end {ends}")
    panel, target = Panel("", tuple(lines), ()), study.target
    wins = winners(panel, study.measure, target, study.costs) if target is not None else []
    if target is None or not wins:
        return
    steps = {line.label: line.steps for line in lines}
    order = [max(steps[label] for label in win.label.split(" and ")) for win in wins]
    larger = order[-1] > lines[0].steps
    verdict: Verdict = "yes" if larger and all(a < b for a, b in pairwise(order)) else "partly" if larger else "no"
    words = f"first at {study.measure.label} {target:g}: {'; '.join(map(describe_win, wins))}. "
    words += "; ".join(_gains(study, lines, target))
    yield Claim("Larger Q wins in time units as t_comm / t_comp grows", where, verdict, words)


def _larger(what: str, text: str, lines: Sequence[Line], measure: Measure) -> Claim:
    """Judge lines that differ in K or N only, in ascending order."""
    words = "; ".join(
        f"{_letter(line, what)}: training loss {about(line.finals(LOSS))}, "
        f"{measure.label} {about(line.finals(measure))}"
        for line in lines
    )
    return Claim(text, _where(lines[0], what), _rising([line.by_seed(LOSS) for line in lines]), words)


def same_but(lines: Sequence[Line], what: str) -> Iterator[list[Line]]:
    """Yield lines that have all in common but Q, K or N, in its order."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line.visible_runs:
            groups.setdefault(repr(_others(line, what)), []).append(line)
    for group in groups.values():
        sizes = [_size(line, what) for line in group]
        if len(set(sizes)) == len(group) > 1:
            yield sorted(group, key=lambda line: _size(line, what))


def _others(line: Line, what: str) -> list[tuple[str, Any]]:
    """Return the settings of a line but for one of the paper's letters, and for the seed."""
    free = (*FREE, "training.seed", *VARIED[what])
    settings = flat(line.runs[0].job)
    return [(key, value) for key, value in settings if not any(f"{key}.".startswith(f"{own}.") for own in free)]


def _where(line: Line, what: str) -> str:
    """Tell the other letters of lines that differ in one, and what else the sweep varies."""
    letters = [_letter(line, letter) for letter in VARIED if letter != what]
    others = [setting(axis, value) for axis, value in line.values.items() if axis not in (*VARIED, "case")]
    return ", ".join([*letters, *others])


def _size(line: Line, what: str) -> int:
    """Return Q, N, or the clients of all silos: silos may have different K."""
    silos = line.runs[0].federation.silos
    if what == "Q":
        return line.steps
    return len(silos) if what == "N" else sum(len(silo.clients) for silo in silos)


def _letter(line: Line, what: str) -> str:
    """Write one of the paper's letters and its value; of unequal silos, the K of each, or the least and the most."""
    if what != "K":
        return f"{what} = {_size(line, what)}"
    clients = [len(silo.clients) for silo in line.runs[0].federation.silos]
    if len(set(clients)) == 1:
        return f"K = {clients[0]}"
    return f"K = {', '.join(map(str, clients))}" if len(clients) <= 4 else f"K = {min(clients)} to {max(clients)}"


def _rising(losses: Sequence[dict[str, float]]) -> Verdict:
    """Tell whether losses rise all along, or at least from the first line to the last.

    Runs with the same seed share first weights and mini-batches, so they are compared with each other.
    """
    seeds = [seed for seed in losses[0] if seed in losses[-1]]
    up = [losses[0][seed] < losses[-1][seed] for seed in seeds]
    if not seeds or any(up) != all(up):
        return "unclear"
    means = [mean(list(own.values())) for own in losses]
    if not up[0]:
        return "no"
    return "yes" if all(a < b for a, b in pairwise(means)) else "partly"
