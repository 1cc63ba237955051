"""Successive halving: try much for a short while, the better third for longer, and a few to the end.

The search trains nothing itself: it yields batches of trials and is sent what came of them, so that a test can stand in
for trainings, and a resumed search takes the same way again.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from tdcd.experiments.tuning.space import FACTOR, Point, Space

EDGES = 5
"""How often the range of rates is extended at one edge, at most."""
BACK_OFF = 0.5
"""What a rate is multiplied with that turned out to be too large in the end."""
RETREATS = 3


@dataclass(frozen=True)
class Score:
    """What came of a trial."""

    loss: float
    """The measure that decides, the lower the better: infinite if the trial diverged."""
    reached: float = inf
    """The simulated time at which it reached the target, if there is one."""
    trouble: str = ""
    """Why it would not do, if it ran to the end: it diverged, or its loss rose again."""


@dataclass(frozen=True)
class Trials:
    """Trials to run, or to go on with."""

    why: str
    rung: int
    points: tuple[Point, ...]
    time: float
    """How long each runs, in all."""
    seed: int = 0
    """0: the job's seed; 1: the one after it."""


@dataclass(frozen=True)
class Chosen:
    """What the search has come to."""

    point: Point | None
    """None where nothing held to the end."""
    log: tuple[str, ...]
    """Why, step by step."""


Results = dict[Point, Score]


def search(space: Space, rungs: Sequence[float], start: float) -> Generator[Trials, Results, Chosen]:
    """Search for the best settings.

    Args:
        space: What to search.
        rungs: The simulated time of the trials of each rung, the whole training's last.
        start: The rate that a single local step begins with; the range is extended where it does not hold the best.

    """
    log: list[str] = []
    first = yield from _first_rung(space, rungs[0], start)
    alive = _ranked(first, first)
    log.append(
        f"{len(first)} settings were tried for {rungs[0]:,.0f} units of time; {len(first) - len(alive)} diverged"
    )
    results: Results = first
    for rung, time in enumerate(rungs[1:], start=1):
        if not alive:
            break
        last = rung == len(rungs) - 1
        alive = _survivors(alive, space, last=last)
        results = yield Trials(
            "the better third, for longer" if not last else "the best, to the end", rung, tuple(alive), time
        )
        before = len(alive)
        alive = _ranked(alive, results)
        log.append(f"{before} went on to {time:,.0f}; the best so far: {alive[0].name if alive else 'none'}")
    chosen = yield from _decide(alive, results, rungs, log, RETREATS if space.rate is None else 0)
    return Chosen(chosen, tuple(log))


def _first_rung(space: Space, time: float, start: float) -> Generator[Trials, Results, dict[Point, Score]]:
    """Try rates for every choice of the rest, until the best of them lies between two others."""
    scores: dict[Point, Score] = {}
    if space.rate is not None:
        points = tuple(replace(group, rate=space.rate) for group in space.groups)
        return (yield Trials("the rate of the job", 0, points, time))
    wanted = {
        replace(group, rate=_rounded(start / group.local_steps**0.5 * FACTOR**k))
        for group in space.groups
        for k in (-1, 0, 1)
    }
    for attempt in range(EDGES + 1):
        why = "three rates each" if not attempt else "further rates, where the best was at the edge"
        new = yield Trials(why, 0, tuple(sorted(wanted)), time)
        scores |= new
        wanted = set()
        for group in space.groups:
            own = sorted(point for point in scores if point.group == group)
            best = min(own, key=lambda point: scores[point].loss)
            if scores[best].loss == inf or best == own[0]:
                wanted.add(replace(group, rate=_rounded(own[0].rate / FACTOR)))
            elif best == own[-1]:
                wanted.add(replace(group, rate=_rounded(own[-1].rate * FACTOR)))
        if not wanted:
            break
    return scores


def _survivors(alive: Sequence[Point], space: Space, *, last: bool) -> list[Point]:
    """Return who goes on: the better third, and the best of every Q until the end, for the table of them."""
    count = max(2, ceil(len(alive) / FACTOR))
    kept = list(alive[:2] if last else alive[:count])
    for steps in () if last else space.local_steps:
        own = [point for point in alive if point.local_steps == steps]
        kept += [point for point in own[:1] if point not in kept]
    return kept


def _ranked(points: Iterable[Point], results: Results) -> list[Point]:
    """Return those that did not diverge, the best first."""
    kept = (point for point in points if results[point].loss < inf)
    return sorted(kept, key=lambda point: (results[point].reached, results[point].loss))


def _decide(
    alive: Sequence[Point], results: Results, rungs: Sequence[float], log: list[str], retreats: int
) -> Generator[Trials, Results, Point | None]:
    """Choose among those that ran to the end and the best with a decaying rate; the choice holds with another seed."""
    horizon, last = rungs[-1], len(rungs) - 1
    candidates = list(alive)
    for retreat in range(retreats + 1):
        if not candidates:
            return None
        if retreat:
            candidates = [replace(candidates[0], rate=_rounded(candidates[0].rate * BACK_OFF))]
            log.append(f"back to rate {candidates[0].rate:g}")
        decaying = (replace(candidates[0], decay=True),)
        new = (*(point for point in candidates if point not in results), *decaying)
        results |= yield Trials("the same with a rate that falls as a cosine", last, new, horizon)
        tried = _ranked([*candidates, *decaying], results)
        log += [f"{point.name}: {results[point].trouble}" for point in tried if results[point].trouble]
        sound = [point for point in tried if not results[point].trouble]
        candidates = [replace(point, decay=False) for point in (sound or tried or decaying)[:1]]
        if not sound:
            continue
        best = sound[0]
        other = yield Trials("the choice again, with another seed", last, (best,), horizon, seed=1)
        if not other[best].trouble:
            log.append(f"chosen: {best.name}; with another seed it ends at {other[best].loss:.4g}")
            return best
        log.append(f"{best.name}, with another seed: {other[best].trouble}")
    return None


def _rounded(rate: float) -> float:
    """Return a rate in two digits."""
    return float(f"{rate:.2g}")
