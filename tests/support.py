"""Small federations for tests: one place that makes them, from a seed or drawn by hypothesis."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import assume, currently_in_test_context
from hypothesis import strategies as st
from torch import Tensor, nn

from tdcd.cli.main import main
from tdcd.core.aggregators import Aggregator, Average, HubMomentum, HubStep, Median, TrimmedMean
from tdcd.core.average import Averaging
from tdcd.core.codecs import BFloat16, Codecs, Float16
from tdcd.core.gradients import PrivateLabels
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Blocks, Network
from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, Huber, Objective, Poisson, SquaredError
from tdcd.core.optimizers import SGD, Adam, Optimizer
from tdcd.core.sampling import Holders, Mask, draw_batch, draw_participants
from tdcd.core.script import Diverged
from tdcd.core.silo_dropout import SiloDropout
from tdcd.core.state import SiloState, States
from tdcd.core.task import Round, SiloTask
from tdcd.core.topology import Roster
from tdcd.engines import LocalEngine, OracleEngine, Training
from tdcd.engines.local import OnGradients
from tdcd.engines.simulation import SimulationEngine
from tdcd.models import CNN, LSTM, MLP, Linear, ModelSpec, ResNet18
from tdcd.runs.records import ClientRecord, FederationRecord, SiloRecord
from tdcd.training.callbacks import Callback, FinishedRound

SHAPES: dict[str, tuple[int, ...]] = {
    "linear": (5,),
    "mlp": (4,),
    "mlp-tanh": (4,),
    "mlp-gelu": (4,),
    "lstm": (6, 3),
    "cnn": (1, 4, 3),
    "cnn-batchnorm": (2, 5, 4),
    "resnet18": (1, 16, 9),
    "dropout": (5,),
    "odd": (3,),
    "tied": (4,),
    "shared": (4,),
    "remembers": (4,),
    "fixed": (4,),
    "dense": (19,),
    "images": (2, 9, 8),
}
MODELS: dict[str, ModelSpec] = {
    "linear": Linear(),
    "mlp": MLP(hidden=[6, 5]),
    "mlp-tanh": MLP(hidden=[6, 5], activation="tanh"),
    "mlp-gelu": MLP(hidden=[6, 5], activation="gelu"),
    "lstm": LSTM(hidden=3),
    "cnn": CNN(channels=[3]),
    "cnn-batchnorm": CNN(channels=[2, 3], batch_norm=True),
    "resnet18": ResNet18(width=2),
}


class Odd(nn.Module):
    """A user's module: a branch on the data, a frozen weight, an unused one, and rows that see each other."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, outputs)
        self.frozen = nn.Parameter(torch.ones(outputs), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.full((1,), 2.0), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        calls = self.get_buffer("calls")
        calls.add_(1)
        embedding: Tensor = self.first(rows - rows.mean(0)) * self.frozen * self.get_buffer("scale")
        return embedding.tanh() if embedding.sum().item() > 0 else embedding


class Remembers(nn.Module):
    """Replaces its buffer in the forward pass, rather than changing it, and has a mask that is not finite."""

    mean: Tensor

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, outputs)
        self.register_buffer("mean", torch.zeros(outputs))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, rows: Tensor) -> Tensor:
        embedding: Tensor = self.linear(rows)
        self.mean = 0.9 * self.mean + 0.1 * embedding.detach().mean(0)
        return embedding - self.mean


def shared(features: int, outputs: int) -> nn.Module:
    """Use one layer twice."""
    layer = nn.Linear(features, features)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(features, outputs))


def tied(features: int, outputs: int) -> nn.Module:
    """Give two layers one weight."""
    one, two = nn.Linear(features, features), nn.Linear(features, features)
    two.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), two, nn.Linear(features, outputs))


def fixed(features: int, outputs: int) -> nn.Module:
    """Train nothing."""
    return nn.Linear(features, outputs).requires_grad_(False)


def dense(features: int, outputs: int) -> nn.Module:
    """A chain with every activation, a layer without bias, and widths on both sides of a vector's."""
    return nn.Sequential(
        nn.Linear(features, 17), nn.Tanh(), nn.Linear(17, 33, bias=False), nn.Sigmoid(), nn.Linear(33, 7), nn.ReLU(),
        nn.Linear(7, 5), nn.Linear(5, outputs),
    )  # fmt: skip


def images(channels: int, outputs: int) -> nn.Module:
    """Convolutions and pools of many shapes: padded and not, uneven windows that leave an edge out."""
    return nn.Sequential(
        nn.Conv2d(channels, 5, (3, 2), padding=(1, 0)), nn.Tanh(), nn.MaxPool2d((2, 3)),
        nn.Conv2d(5, 9, 1, bias=False), nn.ReLU(), nn.Conv2d(9, 3, 2, padding=1), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, outputs),
    )  # fmt: skip


USERS = {
    "dense": dense,
    "images": images,
    "odd": Odd,
    "tied": tied,
    "shared": shared,
    "remembers": Remembers,
    "fixed": fixed,
}


def module(kind: str, outputs: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape = SHAPES[kind]
        if kind == "dropout":
            return nn.Sequential(nn.Linear(shape[0], 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, outputs))
        if kind in USERS:
            return USERS[kind](shape[0], outputs)
        return MODELS[kind].module(shape, outputs)


OBJECTIVES: dict[str, Objective] = {
    "ce": CrossEntropy(), "bce": BinaryCrossEntropy(2.5), "se": SquaredError(),
    "huber": Huber(0.7), "poisson": Poisson()
}  # fmt: skip
"""Losses to draw from."""
KERNELS = ("ce", "bce", "se")
"""Those that compiled kernels know."""


def objective_of(name: str) -> Objective:
    return OBJECTIVES[name]


def labels_for(objective: Objective, samples: int, outputs: int, generator: torch.Generator) -> Tensor:
    if isinstance(objective, CrossEntropy):
        return torch.randint(outputs, (samples,), generator=generator)
    if isinstance(objective, BinaryCrossEntropy):
        return torch.randint(2, (samples,), generator=generator).double()
    if isinstance(objective, Poisson):
        return torch.randint(5, (samples, outputs), generator=generator).double()
    return torch.randn(samples, outputs, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Problem:
    """A federation ready to run, and how its rounds go."""

    tasks: Mapping[str, SiloTask]
    samples: int
    batch: int
    rate: float
    seed: int
    objective: Objective
    codecs: Codecs = field(default_factory=Codecs)
    rates: Mapping[str, float] = field(default_factory=dict)
    """Of silos that have their own."""
    silo_dropout: float = 0.0

    def initial(self) -> Blocks:
        return {silo: task.network.initial() for silo, task in self.tasks.items()}

    def round(self, number: int) -> Round:
        some = self.drawn(number)[1] if self.participation < 1 else None
        return Round(number, draw_batch(self.seed, number, self.samples, self.batch, some), self.rate, self.rates)

    def drawn(self, number: int) -> tuple[Mapping[str, Mask], Mask]:
        """Draw the clients of a round, and the samples whose clients take part in all silos."""
        holders = {silo: Holders(t.roster.owner.numpy(), len(t.roster.clients)) for silo, t in self.tasks.items()}
        return draw_participants(self.seed, number, holders, self.participation)

    def drawn_clients(self, number: int) -> Mapping[str, Sequence[bool]]:
        """Tell which clients of each silo take part in a round."""
        if self.participation < 1:
            return {silo: mask.tolist() for silo, mask in self.drawn(number)[0].items()}
        return {silo: [True] * len(task.roster.clients) for silo, task in self.tasks.items()}

    def _rate_of(self, silo: str) -> Callable[[int], float]:
        return lambda number: self.rates[silo]

    @property
    def participation(self) -> float:
        return next(iter(self.tasks.values())).participation

    def training(self, private: PrivateLabels | None = None) -> Training:
        rosters = {silo: task.roster for silo, task in self.tasks.items()}
        if private is not None and private.silo not in rosters:  # it has labels only
            rosters[private.silo] = Roster(("clerk",), torch.zeros(self.samples, dtype=torch.int64))
        return Training(
            self.tasks,
            lambda number: self.round(number).batch,
            lambda number: self.rate,
            {silo: self._rate_of(silo) for silo in self.rates},
            rosters,
            private=private,
            codecs=self.codecs,
            drawn=(lambda number: self.drawn(number)[0]) if self.participation < 1 else None,
            silo_dropout=SiloDropout(self.silo_dropout, self.seed),
        )

    def run(self, engine: SimulationEngine, rounds: int) -> Blocks:
        states: States = engine.training.initial()
        for number in range(1, rounds + 1):
            states = next_states(engine, states, self.round(number))
        return {silo: states[silo].weights for silo in self.tasks}

    def engine(
        self,
        path: str,
        workers: int = 1,
        private: PrivateLabels | None = None,
        recorder: OnGradients | None = None,
    ) -> SimulationEngine:
        if path == "oracle":
            return OracleEngine(self.training(private))
        return LocalEngine(self.training(private), path, workers, recorder)  # type: ignore[arg-type]

    def with_steps(self, steps: LocalSteps) -> "Problem":
        return replace(self, tasks={silo: replace(task, steps=steps) for silo, task in self.tasks.items()})


def one_round(engine: SimulationEngine, blocks: Blocks, round_: Round) -> Blocks:
    """Compute a round of silos that remember their weights only."""
    states = {silo: SiloState(blocks.get(silo, {})) for silo in engine.training.plan.silos}
    return {silo: state.weights for silo, state in next_states(engine, states, round_).items() if silo in blocks}


def next_states(engine: SimulationEngine, states: States, round_: Round) -> States:
    """Compute a round; a training that runs away is no case for a comparison."""
    try:
        return engine.compute_round(states, round_)
    except Diverged:
        assume(not currently_in_test_context())
        raise


def problem(
    kinds: Sequence[str],
    clients: Sequence[int],
    *,
    samples: int = 30,
    batch: int = 12,
    loss: str = "ce",
    outputs: int = 3,
    steps: LocalSteps | None = None,
    averaging: Averaging = "uniform",
    aggregator: Aggregator | None = None,
    codecs: Codecs | None = None,
    rate: float = 0.1,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    participation: float = 1.0,
) -> Problem:
    """Make a problem with random rows, each silo dealt independently; every client holds at least one row."""
    generator = torch.Generator().manual_seed(seed)
    objective, codecs = objective_of(loss), codecs or Codecs()
    labels = objective.prepare(labels_for(objective, samples, outputs, generator), outputs, dtype)
    tasks = {}
    for index, (kind, count) in enumerate(zip(kinds, clients, strict=True)):
        silo = f"silo-{index}"
        shuffled = torch.randperm(samples, generator=generator)
        owner = torch.empty(samples, dtype=torch.long)
        owner[shuffled] = torch.cat(
            [torch.arange(count), torch.randint(count, (samples - count,), generator=generator)]
        )
        firsts = [int((owner == k).nonzero()[0]) for k in range(count)]
        rank = torch.from_numpy(np.argsort(np.argsort(firsts)))
        tasks[silo] = SiloTask(
            silo=silo,
            network=Network(module(kind, outputs, seed + index), dtype),
            features=torch.randn(samples, *SHAPES[kind], generator=generator, dtype=dtype),
            labels=labels,
            roster=Roster(tuple(f"c{k}" for k in range(count)), rank[owner]),
            objective=objective,
            steps=steps or LocalSteps(3),
            averaging=averaging,
            aggregator=aggregator or Average(),
            updates=codecs.weights if codecs.changes else None,
            participation=participation,
            seed=seed,
            width=outputs,
        )
    return Problem(tasks, samples, batch, rate, seed, objective, codecs)


MOVES: tuple[Optimizer, ...] = (SGD(), SGD(0.5), Adam(epsilon=1e-3), Adam(0.5, 0.9, 1e-3))
"""Optimizers to draw from. With a smaller ε, Adam makes steps of gradients that are nothing but rounding."""
RULES: tuple[Aggregator, ...] = (
    Average(), HubStep(), HubStep(0.3), HubMomentum(0.5), HubMomentum(0.8, "1/N"), Median(), TrimmedMean(0.25)
)  # fmt: skip
"""Aggregators to draw from."""
CODINGS: tuple[Codecs, ...] = (
    Codecs(), Codecs(rows=Float16()), Codecs(weights=BFloat16()), Codecs(BFloat16(), BFloat16()),
    Codecs(Float16(), Float16()),
)  # fmt: skip
"""Codecs to draw from."""
LINEAR = tuple(rule for rule in RULES if rule.linear)


@st.composite
def problems(
    draw: st.DrawFn,
    kinds: Sequence[str],
    rules: Sequence[Aggregator] = RULES,
    moves: Sequence[Optimizer] = MOVES,
    losses: Sequence[str] = tuple(OBJECTIVES),
    codings: Sequence[Codecs] = CODINGS,
    dropouts: Sequence[float] = (0.0,),
) -> Problem:
    """Draw N 1-5, K_j 1-7 unequal, independent splits, Q 1-6, every loss, averaging, aggregator and option.

    Silos may have a Q and a rate of their own, and clients may take turns.
    """
    silos = draw(st.integers(1, 5))
    samples = draw(st.integers(7, 40))
    loss = draw(st.sampled_from(losses))
    outputs = 1 if loss == "bce" else draw(st.integers(2, 4) if loss == "ce" else st.integers(1, 3))
    plain = draw(st.booleans())
    steps = LocalSteps(
        count=draw(st.integers(1, 6)),
        optimizer=SGD() if plain else draw(st.sampled_from(moves)),
        weight_decay=0.0 if plain else draw(st.sampled_from([0.0, 0.01])),
        clip_norm=None if plain else draw(st.sampled_from([None, 0.3])),
        proximal=0.0 if plain else draw(st.sampled_from([0.0, 0.4])),
    )
    if not plain and steps.optimizer != SGD():
        steps = replace(steps, carry=draw(st.booleans()))
    unequal = draw(st.booleans())
    aggregator = draw(st.sampled_from(rules))
    ways: tuple[Averaging, ...] = ("uniform", "samples") if aggregator.linear else ("uniform",)
    made = problem(
        [draw(st.sampled_from(kinds)) for _ in range(silos)],
        [draw(st.integers(1, 7)) for _ in range(silos)],
        samples=samples,
        batch=draw(st.integers(1, samples)),
        loss=loss,
        outputs=outputs,
        steps=steps,
        averaging=draw(st.sampled_from(ways)),
        aggregator=aggregator,
        codecs=draw(st.sampled_from(codings)),
        seed=draw(st.integers(0, 10_000)),
        participation=draw(st.sampled_from([1.0, 1.0, 0.5])),
    )
    made = replace(made, silo_dropout=draw(st.sampled_from(dropouts)))
    if not unequal:
        return made
    counts = {silo: draw(st.integers(1, 6)) for silo in made.tasks}
    own = {silo: replace(task, steps=replace(task.steps, count=counts[silo])) for silo, task in made.tasks.items()}
    return replace(made, tasks=own, rates={silo: draw(st.sampled_from([0.05, 0.2])) for silo in made.tasks})


class KilledError(BaseException):
    """The process is gone."""


class Interrupt(Callback):
    """Ends a training after a round: as Ctrl-C, unless it is another error."""

    def __init__(self, after: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.after, self.error = after, error

    def after_round(self, finished: FinishedRound) -> None:
        if finished.number == self.after:
            raise self.error


def distance(one: Blocks, two: Blocks) -> float:
    """Return the largest difference of any weight, relative to weights above 1.

    A training that hypothesis drew and that runs away is drawn anew: its numbers are those of rounding.
    """
    if currently_in_test_context():
        assume(tame(two))
    assert {silo: set(block) for silo, block in one.items()} == {silo: set(block) for silo, block in two.items()}
    largest = 0.0
    for silo, block in one.items():
        for name, tensor in block.items():
            here, there = tensor.double(), two[silo][name].double()
            apart = (here != there) & ~(here.isnan() & there.isnan())  # infinities may be equal, without a difference
            if apart.any():
                gap = (here - there).abs() / there.abs().clamp(min=1)
                largest = max(largest, float(gap[apart].nan_to_num(nan=torch.inf).max()))
    return largest


def tame(blocks: Blocks) -> bool:
    """Tell whether a training has not run away: where weights explode, so do differences by rounding."""
    numbers = [t for block in blocks.values() for t in block.values() if t.is_floating_point() and t.isfinite().any()]
    return all(bool((tensor.nan_to_num(torch.inf, 0.0, 0.0).abs() < 1e6).all()) for tensor in numbers)


def same(one: Blocks, two: Blocks) -> bool:
    """Tell whether two global models are equal to the bit."""
    return distance(one, two) == 0


def examples(count: int) -> int:
    """Return how many cases to draw where the gate draws so many; quick tests draw fewer, references.py draws more."""
    if "TDCD_QUICK" in os.environ:
        return min(count, 3)
    return count * int(os.environ.get("TDCD_EXAMPLES", "1"))


def browser() -> str | None:
    """Return a browser to look at pages with, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def drawn_in_a_browser(page: str, folder: Path, width: int) -> dict[str, int]:
    """Open a page at some width; return how wide it became and how many figures are large enough to see."""
    frame = folder / "frame.html"
    frame.write_text(
        f'<meta charset="utf-8"><iframe id="f" style="width:{width}px;height:900px;border:0" '
        f'srcdoc="{escape(page, quote=True)}"></iframe>'
        "<script>onload = () => { const d = f.contentDocument; document.body.dataset.width = "
        "d.documentElement.scrollWidth; "
        "document.body.dataset.drawn = [...d.querySelectorAll('svg')].filter("
        "s => s.getBoundingClientRect().width > 250 && s.getBoundingClientRect().height > 100).length; }</script>"
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--disable-quic",
             f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom"]  # fmt: skip
    command = [str(browser()), *flags, frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return {name: int(value) for name, value in re.findall(r'data-(width|drawn)="(\d+)"', done.stdout)}


def run_command(*words: object) -> int:
    """Run the command in this process and return its exit code."""
    old = sys.argv
    sys.argv = ["tdcd", *map(str, words)]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = old
    return 0


def federation_record(silos: Sequence[SiloRecord] = (), **more: Any) -> FederationRecord:
    """Make up who took part in a run."""
    fields: dict[str, Any] = {
        "samples": 1,
        "validation_samples": 0,
        "test_samples": 0,
        "loss": "cross-entropy",
        "classes": (),
        "notes": (),
        "embedding": 1,
        "embedding_bytes": 4,
        "variant": "federation",
    }
    return FederationRecord(silos=tuple(silos), **(fields | more))


def silo_record(name: str, rows: Sequence[int]) -> SiloRecord:
    """Make up a silo with features, whose clients have so many rows."""
    clients = tuple(ClientRecord(f"c{number}", count) for number, count in enumerate(rows))
    return SiloRecord(name, True, (1,), "linear", 1, 4, "loop", (), clients)
