"""Successive halving: try much for a short while, the better ones for longer, and a few to the end.

The search trains nothing itself: it yields batches of trials and is sent what came of them, so that a test can stand in
for trainings, and a resumed search takes the same way again.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from tdcd.experiments.tuning.space import FACTOR, KEPT, Point, Space

EDGES = 5
"""How often the range of rates is extended at one edge, at most."""
BACK_OFF = 0.5
"""What a rate is multiplied with that turned out to be too large in the end."""
RETREATS = 3
SHORTEST = 1 / 8
"""The shortest part of a whole training over which a rate falls where a target is to be reached early."""
RACED = 3
"""The best that are trained with further seeds, at most."""


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
    """How long each runs, in all; one whose rate falls over a part of a whole training takes that part."""
    seed: int = 0
    """0: the job's seed; 1: the one after it, and so on."""


@dataclass(frozen=True)
class Chosen:
    """What the search has come to."""

    point: Point | None
    """None where nothing held to the end."""
    log: tuple[str, ...]
    """Why, step by step."""


Results = dict[Point, Score]


@dataclass
class Spending:
    """What trials have cost, in whole trainings; those that go on cost what they add."""

    horizon: float
    budget: float
    _times: dict[tuple[Point, int], float] = field(default_factory=dict)

    def add(self, trials: Trials) -> None:
        """Count what is about to run."""
        for point in trials.points:
            self._times[point, trials.seed] = trials.time * point.span / self.horizon

    @property
    def left(self) -> float:
        """What may still be spent."""
        return self.budget - sum(self._times.values())


def search(
    space: Space, rungs: Sequence[float], start: float, budget: float, *, target: bool = False
) -> Generator[Trials, Results, Chosen]:
    """Search for the best settings.

    Args:
        space: What to search.
        rungs: The simulated time of the trials of each rung, the whole training's last.
        start: The rate that a single local step begins with; the range is extended where it does not hold the best.
        budget: How many whole trainings it may cost, about.
        target: Whether a target is to be reached early, rather than the best to be reached in the end.
    """
    spending = Spending(space.horizon, budget)
    steps = _search(space, rungs, start, spending, target=target)
    try:
        trials = next(steps)
        while True:
            spending.add(trials)
            results = yield trials
            trials = steps.send(results)
    except StopIteration as end:
        chosen: Chosen = end.value
        return chosen


def _search(
    space: Space, rungs: Sequence[float], start: float, spending: Spending, *, target: bool
) -> Generator[Trials, Results, Chosen]:
    log: list[str] = []
    first = yield from _first_rung(space, rungs[0], start)
    alive = _ranked(first, first)
    log.append(
        f"{len(first)} settings were tried for {rungs[0]:,.0f} units of time; {len(first) - len(alive)} diverged"
    )
    for rung, time in enumerate(rungs[1:-1], start=1):
        alive = _survivors(alive, space)
        if not alive:
            break
        results = yield Trials("the better ones, for longer", rung, tuple(alive), time)
        before = len(alive)
        alive = _ranked(alive, results)
        log.append(f"{before} went on to {time:,.0f}; the best so far: {alive[0].name if alive else 'none'}")
    retreats = RETREATS if space.rate is None else 0
    others = [point for point in alive if point.local_steps != alive[0].local_steps] or alive[1:]
    chosen = yield from _decide([*alive[:1], *others[:1]], rungs, log, retreats, spending, target=target)
    return Chosen(chosen, tuple(log))


def _first_rung(space: Space, time: float, start: float) -> Generator[Trials, Results, dict[Point, Score]]:
    """Try rates for every choice of the rest, until the best of them lies between two others."""
    scores: dict[Point, Score] = {}
    if space.rate is not None:
        points = tuple(replace(group, rate=space.rate) for group in space.groups)
        return (yield Trials("the rate of the job", 0, points, time))
    wanted = {
        replace(group, rate=_rounded(start / group.local_steps**0.5 / (group.hub_step or 1.0) * FACTOR**k))
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


def _survivors(alive: Sequence[Point], space: Space) -> list[Point]:
    """Return who goes on to a rung: the better ones, and the best of every Q, as short trials favour large ones."""
    kept = list(alive[: max(2, ceil(len(alive) / KEPT))])
    for steps in space.local_steps:
        own = [point for point in alive if point.local_steps == steps]
        kept += [point for point in own[:1] if point not in kept]
    return kept


def _ranked(points: Iterable[Point], results: Results) -> list[Point]:
    """Return those that did not diverge, the best first."""
    kept = (point for point in points if results[point].loss < inf)
    return sorted(kept, key=lambda point: (results[point].reached, results[point].loss))


def _decide(
    best: Sequence[Point],
    rungs: Sequence[float],
    log: list[str],
    retreats: int,
    spending: Spending,
    *,
    target: bool,
) -> Generator[Trials, Results, Point | None]:
    """Choose among the best two, run to the end, and the same with rates that fall, by several seeds.

    With a target, rates that fall soon come first, and what else is tried is for those that do not reach it.
    """
    last, results, going = len(rungs) - 1, Results(), list(best)
    for retreat in range(retreats + 1):
        if not going:
            return None
        if retreat:
            going = [replace(going[0], rate=_rounded(going[0].rate * BACK_OFF))]
            log.append(f"back to rate {going[0].rate:g}")
        tried = (yield from _fall_sooner(going, results, rungs)) if target else []
        if not _reached(tried, results):
            results |= yield Trials("the best, to the end", last, tuple(going), rungs[-1])
            tried += going
        if not _reached(tried, results):
            first = min(going, key=lambda point: (results[point].reached, results[point].loss))
            tried.append(replace(first, decay=1.0))
            results |= yield Trials("the best with a rate that falls as a cosine", last, (tried[-1],), rungs[-1])
        tried = _ranked(tried, results)
        log += [f"{point.name}: {results[point].trouble}" for point in tried if results[point].trouble]
        sound = [point for point in tried if not results[point].trouble]
        going = [replace(point, decay=0.0) for point in (sound or tried or going)[:1]]
        chosen = yield from _race(sound[:RACED], results, rungs, log, spending)
        if chosen:
            log.append(f"chosen: {chosen.name}")
            return chosen
    return None


def _reached(points: Iterable[Point], results: Results) -> bool:
    """Tell whether one reaches the target, and stays sound."""
    return any(results[point].reached < inf and not results[point].trouble for point in points)


def _fall_sooner(
    candidates: Sequence[Point], results: Results, rungs: Sequence[float]
) -> Generator[Trials, Results, list[Point]]:
    """Let rates fall over half the time, over a quarter, …, for as long as that reaches the target; return all."""
    part, going, made = 0.5, list(candidates), list[Point]()
    while going and part >= SHORTEST:
        shorter = [replace(point, decay=part) for point in going]
        results |= yield Trials("the best with a rate that falls sooner", len(rungs) - 1, tuple(shorter), rungs[-1])
        made += shorter
        going = [point for point, one in zip(going, shorter, strict=True) if results[one].reached < inf]
        part /= 2
    return made


def _race(
    points: Sequence[Point], results: Results, rungs: Sequence[float], log: list[str], spending: Spending
) -> Generator[Trials, Results, Point | None]:
    """Train the one that leads with another seed, until the one that leads has had enough of them.

    Two for a whole training, three for a shorter one, whose rate may have fallen before another seed is there; two are
    enough where the budget is spent.
    """
    scores = {point: [results[point]] for point in points}
    while scores:
        best = min(scores, key=lambda point: _mean(scores[point]))
        seeds = len(scores[best])
        if seeds == (2 if best.span == 1 or spending.left < best.span else 3):
            return best
        found = yield Trials("the best again, with another seed", len(rungs) - 1, (best,), rungs[-1], seed=seeds)
        if found[best].trouble:
            log.append(f"{best.name}, with another seed: {found[best].trouble}")
            del scores[best]
        else:
            scores[best].append(found[best])
    return None


def _mean(scores: Sequence[Score]) -> tuple[float, float]:
    """Return when they reach the target on average, if all of them do, and how good they become."""
    return sum(score.reached for score in scores) / len(scores), sum(score.loss for score in scores) / len(scores)


def _rounded(rate: float) -> float:
    """Return a rate in two digits."""
    return float(f"{rate:.2g}")
