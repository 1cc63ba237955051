"""Measure both sides of Theorem 1, and draw what docs/theory.md shows.

    python benchmarks/theory.py [--only squares network slope terms steps] [--figures docs]

squares both sides over N, K and Q at the largest admissible rate, for least squares
network the same for a small network
slope   the left-hand side over R with η = c / (Q·√R)
terms   the terms of the bound over η beside what is measured
steps   the largest rate that trains, the rounds and the simulated time to a target, over Q

Data is made up from a seed; everything is printed as Markdown tables. Takes about twenty minutes on two busy cores.
"""

import argparse
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from math import inf, sqrt
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

import tdcd
from tdcd.reports.figures import Curve, Drawing, Picture
from tdcd.runs.environment import describe_session
from tdcd.runs.theory import TheoryRecord
from tdcd.training.landscape import Landscape, squared_norm

ROWS, FEATURES, BATCH = 960, 16, 192
SEEDS = (1, 2, 3)
ROUNDS = 200
CAREFUL = 0.9
"""The part of the largest admissible rate to train with: its constants are estimated again along the way."""
LABELS = {"squared-error": "least squares", "cross-entropy": "network"}


@dataclass(frozen=True)
class Problem:
    """What to train, apart from the settings of a training."""

    loss: str
    model: tdcd.models.ModelSpec
    silos: int
    clients: int

    def simulation(self, **settings: Any) -> tdcd.Simulation:
        """Return a simulation of it."""
        seed = settings.get("seed", SEEDS[0])
        draw = np.random.default_rng(seed)
        x = draw.normal(size=(ROWS, FEATURES)) * draw.permutation(np.geomspace(1, 0.2, FEATURES))
        if self.loss == "squared-error":
            labels = x @ draw.normal(size=FEATURES) / sqrt(FEATURES) + draw.normal(size=ROWS)
        else:  # three classes that no linear model tells apart
            hidden = np.tanh(x @ draw.normal(size=(FEATURES, 6)) / 2) @ draw.normal(size=(6, 3))
            labels = (hidden + 0.5 * draw.normal(size=hidden.shape)).argmax(1)
        width = FEATURES // self.silos
        owners = draw.permutation(ROWS) % self.clients
        clients = [np.flatnonzero(owners == k) for k in range(self.clients)]
        silos = [tdcd.Silo(f"s{j}", x[:, j * width : (j + 1) * width], clients) for j in range(self.silos)]
        federation = tdcd.Federation.from_silos(silos, labels)
        chosen = {"loss": self.loss, "rounds": ROUNDS, "batch_size": BATCH, "precision": "float64"} | settings
        return tdcd.Simulation(federation, self.model, tdcd.Settings.model_validate(chosen), workers=1)


def convex(silos: int = 2, clients: int = 4) -> Problem:
    """Return least squares of linear models, which are strongly convex but for the silos' common bias."""
    return Problem("squared-error", tdcd.models.Linear(), silos, clients)


def network(silos: int = 2, clients: int = 4) -> Problem:
    """Return a small network, which is not convex; tanh has Lipschitz gradients."""
    return Problem("cross-entropy", tdcd.models.MLP(hidden=[8], activation="tanh"), silos, clients)


def measure_admissible(problem: Problem, steps: int, seed: int) -> TheoryRecord:
    """Measure a training with the largest rate that is admissible along all of it."""
    known = tdcd.estimate_constants(problem.simulation(rate=1.0, seed=seed), clients=2, batches=5, iterations=40)
    rate = CAREFUL * tdcd.theory.largest_rate(steps, known.smoothness, known.client_smoothness)
    while True:
        made = problem.simulation(rate=rate, local_steps=steps, seed=seed)
        record = tdcd.measure_theory(made, evaluations=41, clients=2, batches=5, iterations=40)
        if record.admissible:
            return record
        rate = CAREFUL * record.largest_rate


def measure_grid(problem: Callable[[int, int], Problem]) -> None:
    """Print both sides of the theorem over N, K and Q."""
    ratios = []
    label = LABELS[problem(1, 1).loss]
    print(f"\n### Both sides, {label}\n\n| N | K | Q = 1 | Q = 5 | Q = 20 |\n|---|---|---|---|---|")
    for silos, clients in product((1, 2, 4), (1, 4, 16)):
        cells = []
        for steps in (1, 5, 20):
            record = measure_admissible(problem(silos, clients), steps, SEEDS[0])
            left, right = record.measured, record.bound
            ratios.append(right / left)
            cells.append(f"{left:.3g} ≤ {right:.3g}" if left <= right else f"**{left:.3g} > {right:.3g}**")
        print(f"| {silos} | {clients} | {' | '.join(cells)} |", flush=True)
    print(f"\nbound / measured: {min(ratios):.1f} to {max(ratios):.1f}, median {median(ratios):.1f}")


def gradient_mean(made: tdcd.Simulation, most: int = 400) -> float:
    """Return the mean squared gradient norm over the beginnings of all rounds, of at most so many measured."""
    landscape, state = Landscape.of(made), made.init()
    places = np.unique(np.linspace(0, made.settings.rounds - 1, most).round().astype(int)).tolist()
    norms = []
    for place in places:
        while state.done < place:
            state = made.round(state)
        norms.append(squared_norm(landscape.loss_and_gradient(state.weights)[1]))
    return float(np.interp(np.arange(made.settings.rounds), places, norms).mean())


def measure_slope() -> Picture:
    """Print and draw the left-hand side over R, at η = c / (Q·√R)."""
    horizons, steps = [50 * 2**k for k in range(7)], 5
    curves = []
    print("\n### Slope, η = c / (Q·√R), Q = 5\n\n| | " + " | ".join(f"R = {r:,}" for r in horizons) + " | slope |")
    print("|---" * (len(horizons) + 2) + "|")
    for problem, factor in ((convex(), 1), (network(), 1), (network(), 8)):
        known = tdcd.estimate_constants(problem.simulation(rate=1.0), batches=20)
        first = CAREFUL * tdcd.theory.largest_rate(1, known.smoothness, known.client_smoothness)
        scale = factor * first * sqrt(horizons[0])  # admissible for all R, or only for R ≥ factor²·50
        values = []
        for rounds in horizons:
            chosen = {"rate": scale, "schedule": {"kind": "theory"}, "rounds": rounds, "local_steps": steps}
            values.append(mean(gradient_mean(problem.simulation(**chosen, seed=seed)) for seed in SEEDS))
        slope = float(np.polyfit(np.log(horizons), np.log(values), 1)[0])
        last = float(np.polyfit(np.log(horizons[-3:]), np.log(values[-3:]), 1)[0])
        label = LABELS[problem.loss] + (f", c × {factor}" if factor > 1 else "")
        cells = " | ".join(f"{value:.3g}" for value in values)
        print(f"| {label} | {cells} | {slope:.2f}, last three {last:.2f} |", flush=True)
        curves.append(Curve(f"{label}: slope {slope:.2f}", horizons, values, kind="dots"))
    start = max(curve.y[0] for curve in curves)
    curves.append(Curve("1/√R", horizons, [start * sqrt(horizons[0] / r) for r in horizons], colour="#8a93a1"))
    return Picture("theory-slope", "", "rounds R", "mean squared gradient norm", curves, "xy")


def measure_terms() -> Picture:
    """Print and draw the terms of the bound over the rate, beside what is measured."""
    problem, steps = network(), 5
    known = tdcd.measure_theory(problem.simulation(rate=0.02, local_steps=steps), evaluations=9, batches=20)
    most, sigmas = known.largest_rate, [*known.variances.values()]
    first = known.points[0].loss
    rates = [most * 2.0**k for k in range(-3, 7)]
    measured, terms = [], []
    print(f"\n### Terms over η, network, N = 2, K = 4, Q = 5, R = {ROUNDS}; largest admissible η = {most:.3g}\n")
    print("| η / largest | descent | noise | staleness | coupling | bound | measured |\n|---|---|---|---|---|---|---|")
    for rate in rates:
        made = problem.simulation(rate=rate, local_steps=steps)
        measured.append(gradient_mean(made))
        last = final_loss(made)
        bound = tdcd.theory.bound(
            rate, steps, ROUNDS, known.smoothness, known.client_smoothness, sigmas, max(0.0, first - last)
        )
        terms.append(bound)
        cells = " | ".join(f"{value:.3g}" for value in (*bound.terms().values(), bound.total, measured[-1]))
        print(f"| {rate / most:.3g} | {cells} |", flush=True)
    curves = [
        Curve("measured", rates, measured, kind="dots"),
        Curve("bound", rates, [one.total for one in terms], colour=1),
        *(Curve(name, rates, [one.terms()[name] for one in terms], kind="thin", colour=colour)
          for name, colour in (("descent", 2), ("noise", 3), ("staleness", 4), ("coupling", 5))),
        Curve("largest admissible η", [most, most], [min(measured) / 2, max(t.total for t in terms)], colour="#8a93a1"),
    ]  # fmt: skip
    return Picture("theory-terms", "", "learning rate η", "squared gradient norm", curves, "xy")


def final_loss(made: tdcd.Simulation) -> float:
    """Return the training loss that a simulation ends with."""
    state = made.init()
    for _ in range(made.settings.rounds):
        state = made.round(state)
    return made.evaluate(state).train["loss"]


def rounds_to(made: tdcd.Simulation, target: float) -> float:
    """Return after how many rounds the training loss is at most a target; infinity if it never is."""
    state = made.init()
    try:
        while state.done < made.settings.rounds:
            state = made.round(state)
            loss = made.evaluate(state).train["loss"]
            if loss <= target:
                return state.done
            if not loss < 1e3:
                return inf
    except tdcd.DivergedError:
        return inf
    return inf


def measure_steps() -> Iterator[Picture]:
    """Print and draw what Q costs and gains: rates, rounds and simulated time to a target loss."""
    counts, latencies = (1, 2, 5, 10, 20), (0, 1, 10, 100)
    rate_curves: list[Curve] = []
    round_curves: list[Curve] = []
    cases = (convex(2), 0.01, 1.0), (convex(4), 0.01, 1.0), (convex(4), 0.01, 0.25), (network(4), 0.3, 1.0)
    for problem, share, size in cases:
        label = f"{LABELS[problem.loss]}, N = {problem.silos}" + (f", β = {size:g}" if size < 1 else "")
        hub = {"aggregator": {"kind": "hub-step", "size": size}} if size < 1 else {}
        made = problem.simulation(rate=1.0)
        known, left = tdcd.estimate_constants(made, batches=20), tdcd.estimate_decrease(made)
        target = left.loss - (1 - share) * left.value
        print(f"\n### Local steps, {label}: rounds until {1 - share:.0%} of the possible decrease is reached\n")
        names = " | ".join(f"time at t_comm {t}" for t in latencies)
        print(f"| Q | admissible η | largest η that gets there | best η | rounds | {names} |")
        print("|---" * (5 + len(latencies)) + "|")
        admissible, largest, fewest = [], [], []
        for steps in counts:
            most = tdcd.theory.largest_rate(steps, known.smoothness, known.client_smoothness)
            tried = {
                rate: rounds_to(problem.simulation(rate=rate, local_steps=steps, rounds=200, **hub), target)
                for rate in (most / size * 2 ** (k / 2) for k in range(4, 15))
            }
            arrive = {rate: rounds for rate, rounds in tried.items() if rounds < inf}
            best = min(arrive, key=lambda rate: arrive[rate])
            admissible.append(most)
            largest.append(max(arrive))
            fewest.append(arrive[best])
            times = " | ".join(f"{arrive[best] * (steps + 3 * t):,.0f}" for t in latencies)
            edge = "≥ " if max(arrive) == max(tried) else ""  # the grid ends there
            cells = f"{steps} | {most:.3g} | {edge}{max(arrive):.3g} | {best:.3g} | {arrive[best]:.0f}"
            print(f"| {cells} | {times} |", flush=True)
        place = len(round_curves)
        round_curves.append(Curve(label, counts, fewest, kind="dots", colour=place))
        rate_curves.append(Curve(label, counts, largest, kind="dots", colour=place))
        if size == 1:
            rate_curves.append(Curve(f"admissible, {label}", counts, admissible, kind="thin", colour=place))
    yield Picture("theory-rates", "", "local steps Q", "largest learning rate that trains", rate_curves, "xy")
    yield Picture("theory-rounds", "", "local steps Q", "rounds to the target", round_curves)


def save(pictures: Sequence[Drawing], folder: Path) -> None:
    """Write figures as SVG."""
    for picture in pictures:
        svg = picture.svg().replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        (folder / f"{picture.name}.svg").write_text(svg if svg.count("xmlns=") == 1 else picture.svg())


def main() -> None:
    """Measure what was chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("squares", "network", "slope", "terms", "steps")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="what to measure")
    parser.add_argument("--figures", type=Path, help="the folder to write figures to")
    arguments = parser.parse_args()
    session = describe_session()
    print(f"{date.today()}, {session.processor}, {session.cores} cores, Python {platform.python_version()}")
    pictures: list[Drawing] = []
    for name in arguments.only:
        if name in ("squares", "network"):
            measure_grid(convex if name == "squares" else network)
        elif name == "slope":
            pictures.append(measure_slope())
        elif name == "terms":
            pictures.append(measure_terms())
        else:
            pictures.extend(measure_steps())
    if arguments.figures:
        save(pictures, arguments.figures)


if __name__ == "__main__":
    main()
