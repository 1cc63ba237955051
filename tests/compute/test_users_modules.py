"""Modules that do what few do. Whichever path takes them, the numbers are the oracle's and nothing given is changed."""

import copy
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from support import Problem, distance, problem, same
from tdcd.compute import choose
from tdcd.compute.layers import Layers
from tdcd.core.local_steps import LocalSteps
from tdcd.core.network import Network
from tdcd.core.optimizers import SGD


class Halves(nn.Module):
    """Writes to its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        rows /= 2
        embedding: Tensor = self.linear(rows)
        return embedding


class Slowed(nn.Module):
    """Changes its own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        hidden: Tensor = self.first(rows).tanh()
        if hidden.requires_grad:
            hidden.register_hook(lambda g: g / 2)  # type: ignore[no-untyped-call]
        embedding: Tensor = self.last(hidden)
        return embedding


class Words(nn.Module):
    """Writes to its weights: an embedding that keeps its norms small."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 3, max_norm=0.5)

    def forward(self, rows: Tensor) -> Tensor:
        embedding: Tensor = self.words(rows.abs().long() % 7).sum(1)
        return embedding


class TiedBuffers(nn.Module):
    """Two layers share a buffer: one writes to it, the other reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.reader = nn.Linear(5, 3), nn.Module()
        self.register_buffer("level", torch.ones(3))
        self.reader.register_buffer("level", self.get_buffer("level"))

    def forward(self, rows: Tensor) -> Tensor:
        self.get_buffer("level").add_(0.5)
        embedding: Tensor = self.linear(rows) * self.reader.get_buffer("level")
        return embedding


def hooked(*, before: bool) -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    if before:
        module[0].register_forward_pre_hook(lambda _, inputs: (inputs[0] - inputs[0].mean(0),))
    else:
        module[2].register_forward_hook(lambda _m, _i, output: 2 * output)
    return module


def backward_hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    module[1].register_full_backward_hook(lambda _m, inputs, _o: (inputs[0] / 2,))  # type: ignore[index]
    return module


def with_buffer() -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 3))
    module.register_buffer("scale", torch.full((2,), 3.0))
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "hook": lambda: hooked(before=False),
    "pre-hook": lambda: hooked(before=True),
    "backward hook": backward_hooked,
    "gradient hook": Slowed,
    "writes to rows": Halves,
    "in place first": lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 4), nn.Dropout(0.2), nn.Linear(4, 3)),
    "writes to weights": Words,
    "tied buffers": TiedBuffers,
    "extra buffer": with_buffer,
    "names against the order": lambda: nn.Sequential(OrderedDict([("1", nn.Linear(5, 5)), ("0", nn.Linear(5, 3))])),
    "named": lambda: nn.Sequential(OrderedDict(first=nn.Linear(5, 4), act=nn.ReLU(), last=nn.Linear(4, 3))),
}


def with_module(made: Problem, module: nn.Module) -> Problem:
    task = replace(made.tasks["silo-0"], network=Network(module, torch.float64))
    return replace(made, tasks={**made.tasks, "silo-0": task})


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", MODULES)
def test_the_numbers_are_the_oracles(kind: str, steps: int) -> None:
    torch.manual_seed(0)
    made = problem(["linear", "linear"], [6, 2], samples=40, batch=30, outputs=3, steps=LocalSteps(steps))
    made = with_module(made, MODULES[kind]())
    features = made.tasks["silo-0"].features.clone()
    expected = made.run(made.engine("oracle"), 2)
    engine = made.engine("auto")
    assert distance(made.run(engine, 2), expected) < 1e-9
    everything = {silo: task.features for silo, task in made.tasks.items()}
    kept = copy.deepcopy(expected)
    first = engine.scores(expected, everything)
    assert torch.equal(engine.scores(expected, everything), first)
    assert same(expected, kept)
    assert torch.equal(made.tasks["silo-0"].features, features)


def test_named_layers_are_as_fast_as_numbered_ones() -> None:
    made = problem(["linear"], [3], outputs=3, steps=LocalSteps(2, optimizer=SGD(0.5)))
    assert choose(with_module(made, MODULES["named"]()).tasks["silo-0"])[0] == "layers"


def test_a_pool_comes_first() -> None:
    made = problem(["images"], [3], samples=60, batch=50, outputs=3)
    module = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 3))
    made = with_module(made, module)
    assert distance(made.run(made.engine("auto"), 2), made.run(made.engine("oracle"), 2)) < 1e-9


def test_numbers_that_are_not_stay_so() -> None:
    """Every path lets NaN through to the scores, so that a training that runs away is seen."""
    torch.manual_seed(0)
    made = problem(["images"], [3], samples=60, batch=50, outputs=3)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3))
    made = with_module(made, module)
    blocks = made.initial()
    blocks["silo-0"]["0.bias"][1] = torch.nan
    features = {"silo-0": made.tasks["silo-0"].features}
    assert made.engine("auto").scores(blocks, features).isnan().all()


def test_chunks_of_very_unequal_clients_stay_in_the_cache() -> None:
    task = problem(["linear"], [3], steps=LocalSteps(2, optimizer=SGD(0.9))).tasks["silo-0"]
    path = Layers(task)
    counts = torch.cat([torch.full((999,), 10), torch.tensor([100_000])])
    bounds = list(path._bounds(counts))
    assert bounds[0][0] == 0
    assert [last for _, last in bounds[:-1]] == [first for first, _ in bounds[1:]]
    assert bounds[-1] == (999, 1000)
    for first, last in bounds:
        padded = (last - first) * (path._client_bytes + int(counts[last - 1]) * path._row_bytes)
        assert padded <= path.cache or last - first == 1


def test_networks_can_be_copied() -> None:
    network = Network(nn.Linear(4, 2))
    network(network.initial(), torch.randn(3, 4), training=True)
    twin = copy.deepcopy(network)
    assert same({"a": twin.initial()}, {"a": network.initial()})
    assert twin(twin.initial(), torch.randn(3, 4), training=False).shape == (3, 2)


class Scales(nn.Module):
    """Scales its rows, in place or not."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.linear = in_place, nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        if self.in_place:
            rows /= 4
        else:
            rows = rows / 4
        embedding: Tensor = self.linear(rows)
        return embedding


def leaky(*, in_place: bool) -> nn.Module:
    return nn.Sequential(nn.LeakyReLU(0.1, inplace=in_place), nn.Linear(5, 3))


@pytest.mark.parametrize("make", [Scales, leaky])
@pytest.mark.parametrize("path", ["auto", "loop", "stacked", "oracle"])
def test_every_step_sees_the_same_rows(path: str, make: Callable[..., nn.Module]) -> None:
    """A network that writes to its rows trains as one that copies them first."""
    made = problem(["linear", "linear"], [6, 2], samples=40, batch=30, outputs=3, steps=LocalSteps(5), rate=0.3)
    record = {}
    for in_place in (False, True):
        torch.manual_seed(0)
        own = with_module(made, make(in_place=in_place))
        record[in_place] = own.run(own.engine(path), 3)
    assert distance(record[True], record[False]) < 1e-12


class Alternates(nn.Module):
    """Uses one of its weights in every other step only."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(5, 3), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, rows: Tensor) -> Tensor:
        calls = self.get_buffer("calls")
        calls.add_(1)
        embedding: Tensor = self.always(rows)
        return embedding + self.sometimes(rows) if calls.item() % 2 else embedding


def test_momentum_outlives_a_step_that_does_not_use_a_weight() -> None:
    torch.manual_seed(0)
    steps = LocalSteps(6, optimizer=SGD(0.9))
    made = with_module(problem(["linear", "linear"], [3, 2], batch=20, outputs=3, steps=steps), Alternates())
    assert distance(made.run(made.engine("auto"), 2), made.run(made.engine("oracle"), 2)) < 1e-12


class Counts(nn.Module):
    """Counts what it has seen on an attribute that is neither a weight nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.seen, self.calls = nn.Linear(5, 3), torch.zeros(3), [0]

    def forward(self, rows: Tensor) -> Tensor:
        embedding: Tensor = self.linear(rows) + 0.01 * self.seen
        self.seen = self.seen + embedding.detach().mean(0)
        self.calls[0] += 1
        return embedding * self.calls[0]


@pytest.mark.parametrize("path", ["auto", "loop"])
def test_nothing_on_a_plain_attribute_passes_from_client_to_client(path: str) -> None:
    torch.manual_seed(0)
    module = Counts()
    made = with_module(problem(["linear", "linear"], [6, 2], samples=40, batch=30, outputs=3), module)
    engine = made.engine(path)
    everything = {silo: task.features for silo, task in made.tasks.items()}
    expected = made.run(made.engine("oracle"), 3)
    assert distance(made.run(engine, 3), expected) < 1e-12
    first = engine.scores(expected, everything)
    assert torch.equal(engine.scores(expected, everything), first)
    assert module.calls == [0]
    assert engine.compute_plan["silo-0"].startswith("loop")


class Hides(nn.Module):
    """Draws random numbers, but not for two rows."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.linear = most, nn.Linear(5, 3)

    def forward(self, rows: Tensor) -> Tensor:
        embedding: Tensor = self.linear(rows)
        return embedding * torch.rand(3, dtype=rows.dtype) if self.training and len(rows) > self.most else embedding


@pytest.mark.parametrize("most", [2, 6])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_network_that_draws_for_many_rows_only(most: int, workers: int) -> None:
    """Its clients have streams of their own, and the user's goes on as if nothing had been drawn."""
    torch.manual_seed(0)
    made = with_module(problem(["linear", "linear"], [4, 2], samples=60, batch=50, outputs=3), Hides(most))
    expected = made.run(made.engine("oracle"), 3)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    result = made.run(made.engine("auto", workers), 3)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert distance(result, expected) < 1e-12


def test_hooks_on_weights_are_refused() -> None:
    module = nn.Linear(5, 3)
    module.weight.register_hook(lambda g: g / 2)  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="the weight 'weight' has a hook"):
        Network(module)


class Remembers(nn.Module):
    """Has a whole number that no float64 holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("key", torch.tensor([2**62 + 1, -(2**60) - 3, 7]))
        self.register_buffer("flag", torch.tensor([True, False]))

    def forward(self, rows: Tensor) -> Tensor:
        self.get_buffer("key")[2] += len(rows)
        embedding: Tensor = self.linear(rows)
        return embedding


@pytest.mark.parametrize("averaging", ["uniform", "samples"])
@pytest.mark.parametrize("path", ["auto", "loop", "oracle"])
def test_large_whole_numbers_stay_what_they_are(path: str, averaging: str) -> None:
    torch.manual_seed(0)
    made = problem(["linear"], [4], samples=40, batch=30, outputs=3, averaging=averaging)  # type: ignore[arg-type]
    made = with_module(made, Remembers())
    result = made.run(made.engine(path), 2)["silo-0"]
    assert result["key"][:2].tolist() == [2**62 + 1, -(2**60) - 3]
    assert result["flag"].tolist() == [True, False]
    assert result["key"][2] == made.run(made.engine("oracle"), 2)["silo-0"]["key"][2] > 7
