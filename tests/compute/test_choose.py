from pathlib import Path

import pytest
from torch import Tensor, nn

from support import distance, one_round, problem, same
from tdcd.compute import choose, footprint, kernels, loop, one_step
from tdcd.compute.fallback import FACTORS, fallback, join_fallbacks
from tdcd.compute.layers import Layers, dense_layers
from tdcd.compute.modules import rows_are_independent
from tdcd.compute.stacked import Stacked
from tdcd.core.local_steps import LocalSteps
from tdcd.core.optimizers import SGD
from tdcd.errors import ModelError


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("remembers", "stacked"),
        ("tied", "stacked"),
        ("cnn-batchnorm", "loop (convolutions"),
        ("resnet18", "loop (convolutions"),
        ("dropout", "loop (the network does not stack: RuntimeError"),
        ("odd", "loop (the network does not stack: RuntimeError"),
    ],
)
def test_what_auto_chooses(kind: str, path: str) -> None:
    made = problem([kind], [3])
    assert choose(made.tasks["silo-0"])[1].startswith(path)


def test_small_images_of_many_clients_are_stacked() -> None:
    steps = LocalSteps(2, optimizer=SGD(0.5))
    assert choose(problem(["cnn"], [24], samples=60, steps=steps).tasks["silo-0"])[0] == "stacked"
    assert choose(problem(["cnn"], [4], samples=60, steps=steps).tasks["silo-0"])[0] == "loop"


def test_dense_layers_go_to_the_kernel_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    task = problem(["mlp"], [3]).tasks["silo-0"]
    assert choose(task)[1].startswith("layers" if kernels.load("chain")[1] else "kernel")
    monkeypatch.setattr(kernels, "load", lambda _: (None, "no C++ compiler"))
    assert choose(task)[1].startswith("layers")
    with pytest.raises(ModelError, match="no C\\+\\+ compiler"):
        choose(task, "kernel")
    recurrent = problem(["lstm"], [3]).tasks["silo-0"]
    assert choose(recurrent)[1].startswith("loop (recurrent")
    clipped = problem(["mlp"], [3], steps=LocalSteps(2, clip_norm=1.0)).tasks["silo-0"]
    assert choose(clipped)[1].startswith("layers")


def test_a_kernel_that_cannot_be_built_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TDCD_KERNELS", raising=False)
    monkeypatch.setenv("CXX", "false")
    assert kernels.load.__wrapped__("chain") == (None, "false could not compile it: it says nothing")
    broken = tmp_path / "c++"
    broken.write_text(
        "#!/bin/sh\necho 'x.cpp: In function f' >&2; echo 'x.cpp:1: error: no' >&2; printf '%0999d' 0 >&2; exit 1"
    )
    broken.chmod(0o700)
    monkeypatch.setenv("CXX", str(broken))
    assert kernels.load.__wrapped__("chain") == (None, f"{broken} could not compile it: x.cpp:1: error: no")
    assert len(kernels._shorten(b"x" * 999)) == kernels.LONGEST + 2
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert kernels.load.__wrapped__("chain") == (
        None,
        "no-such-compiler could not compile it: [Errno 2] No such file or directory: 'no-such-compiler'",
    )
    monkeypatch.setenv("TDCD_KERNELS", "0")
    assert kernels.load.__wrapped__("chain") == (None, "TDCD_KERNELS=0 switches kernels off")
    assert list((tmp_path / "tdcd").iterdir()) == []


def test_a_path_without_a_kernel_says_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, recurrent = (problem([kind], [3]).tasks["silo-0"] for kind in ("mlp", "lstm"))
    if not kernels.load("chain")[1]:
        assert fallback(dense, "auto", "kernel") == ""
    monkeypatch.setattr(kernels, "load", lambda _: (None, "there is no C++ compiler"))
    text = "no compiled kernel: there is no C++ compiler. With one, a round is about {} times as fast"
    assert fallback(dense, "auto", "layers").startswith(text.format("4 to 5"))
    assert fallback(recurrent, "auto", "loop").startswith(text.format("5 to 6"))
    assert fallback(dense, "layers", "layers") == "", "it was asked for"
    own = problem(["odd"], [3]).tasks["silo-0"]
    assert "there is none for this network" in fallback(own, "auto", choose(own)[0])
    monkeypatch.setattr("tdcd.compute.fallback.SMALL", 0)
    assert fallback(dense, "auto", "loop") == "", "a large network gains nothing by a kernel"
    assert join_fallbacks({"a": "x", "b": "", "c": "x"}) == ["silo 'a', 'c': x"]


def test_factors_are_those_that_were_measured() -> None:
    """From the table of every path: the kernel's ratio by that of the path that is taken without it."""
    results = (Path(__file__).parents[2] / "benchmarks" / "RESULTS.md").read_text()
    table = results.split("## Every path")[1].split("## Any other")[0]
    rows = {line.split("|")[1].strip(): line.split("|")[2:7] for line in table.splitlines() if "×" in line}
    ratios = {
        name: dict(zip(("one-step", "kernel", "layers", "stacked", "loop"), map(str.strip, cells), strict=True))
        for name, cells in rows.items()
    }
    taken = {"linear": "layers", "mlp 2×128": "layers", "lstm, K=50": "loop", "cnn on 8×8": "stacked",
             "linear, Q=1": "one-step", "lstm, Q=1": "one-step"}  # fmt: skip
    for name, path in taken.items():
        factor = float(ratios[name]["kernel"].rstrip("×")) / float(ratios[name][path].rstrip("×"))
        low, _, high = FACTORS[path].partition(" to ")  # type: ignore[index]
        assert float(low) - 0.5 <= factor <= float(high or low) + 0.5, (name, factor)


def test_a_path_by_name() -> None:
    assert choose(problem(["mlp"], [2]).tasks["silo-0"], "loop")[1] == "loop (as asked)"
    assert choose(problem(["cnn"], [2]).tasks["silo-0"], "stacked")[1] == "stacked (as asked)"
    for kind, path, says in (
        ("odd", "stacked", "does not stack"),
        ("cnn", "layers", "not a chain of linear layers"),
        ("linear", "one-step", "it needs Q = 1"),
    ):
        with pytest.raises(ModelError, match=f"silo 'silo-0': compute = \"{path}\" is not available: .*{says}.*; use"):
            choose(problem([kind], [2]).tasks["silo-0"], path)  # type: ignore[arg-type]
    coupled = problem(["cnn-batchnorm"], [2], steps=LocalSteps(1)).tasks["silo-0"]
    with pytest.raises(ModelError, match="its rows may influence each other"):
        choose(coupled, "one-step")


class Hidden(nn.Sequential):
    """Looks like a chain of layers, but its forward pass couples rows."""

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows) - rows.mean()  # type: ignore[no-untyped-call, no-any-return]


def test_rows_are_independent_only_where_that_is_certain() -> None:
    assert rows_are_independent(nn.Sequential(nn.Flatten(), nn.Linear(3, 2), nn.ReLU()))
    assert not rows_are_independent(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert not rows_are_independent(nn.LSTM(3, 2))
    assert not rows_are_independent(Hidden(nn.Linear(3, 2)))
    assert not rows_are_independent(nn.Sequential(Hidden(nn.Linear(3, 2))))


@pytest.mark.parametrize("cache", [1, 3000, 20_000])
@pytest.mark.parametrize("path", ["stacked", "layers"])
def test_chunks_of_any_size(path: str, cache: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stacked, "cache", cache)
    monkeypatch.setattr(Layers, "cache", cache)
    made = problem(["mlp"], [70], samples=200, batch=150)
    assert distance(made.run(made.engine(path), 2), made.run(made.engine("loop"), 2)) < 1e-12


def test_what_is_a_chain_of_linear_layers() -> None:
    def layers(*modules: nn.Module) -> bool:
        return dense_layers(nn.Sequential(*modules)) is not None

    one, two = nn.Linear(3, 4), nn.Linear(4, 2, bias=False)
    assert layers(nn.Flatten(), one, nn.ReLU(), two)
    assert layers(one, nn.Tanh(), two)
    assert layers(one, two)
    assert not layers(one, nn.ReLU())
    assert not layers(one, nn.GELU(), two)
    assert not layers(one, nn.ReLU(), nn.ReLU(), two)
    assert not layers(one, nn.BatchNorm1d(4), two)
    assert not layers(nn.Flatten(0), one)
    assert not layers(nn.Linear(3, 3).requires_grad_(False), two)
    shared = nn.Linear(3, 3)
    assert not layers(shared, nn.ReLU(), shared)
    assert dense_layers(one) is None


def test_a_failing_network_names_silo_client_and_stage() -> None:
    made = problem(["linear"], [3])
    task = made.tasks["silo-0"]
    engine = made.engine("loop")

    def broken(*_: object) -> Tensor:
        raise ZeroDivisionError("by design")

    task.network.module.forward = broken
    with pytest.raises(
        ModelError, match="silo 'silo-0', client 'c.': .*the forward pass: ZeroDivisionError: by design"
    ):
        one_round(engine, made.initial(), made.round(1))


def test_batchnorm_on_a_single_row_says_what_to_do() -> None:
    made = problem(["linear"], [5], samples=10, batch=5)
    task = made.tasks["silo-0"]
    task.network.module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
    task.network.trainable = ("0.weight",)
    with pytest.raises(ModelError, match="single row: use a larger batch_size or fewer clients"):
        made.run(made.engine("loop"), 3)


@pytest.mark.parametrize("kind", ["odd", "remembers", "fixed", "dropout", "cnn-batchnorm", "lstm"])
def test_the_forward_pass_shared_with_the_exchange_changes_no_bit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem([kind, "linear"], [3, 2], samples=60, batch=40)
    shared = made.run(made.engine("loop"), 3)
    monkeypatch.setattr(loop, "KEPT", 0)
    assert same(made.run(made.engine("loop"), 3), shared)


def test_one_step_in_pieces_and_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = LocalSteps(1, weight_decay=0.01)
    made = problem(["mlp", "cnn"], [7, 3], samples=60, batch=40, steps=steps)
    expected = made.run(made.engine("oracle"), 2)
    monkeypatch.setattr(one_step, "PIECE", 7)
    assert distance(made.run(made.engine("one-step"), 2), expected) < 1e-12
    monkeypatch.setattr(one_step, "KEPT", 5000)
    assert distance(made.run(made.engine("one-step"), 2), expected) < 1e-12


def test_users_modules_are_stacked_where_many_clients_have_equally_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = problem(["remembers"], [40], samples=120, batch=60)
    engine = made.engine("auto")
    path = engine._workers["silo-0"].compute  # type: ignore[attr-defined]
    expected = made.run(made.engine("oracle"), 2)
    assert distance(made.run(engine, 2), expected) < 1e-9
    assert isinstance(path._now, Stacked)
    few = problem(["remembers"], [4], samples=120, batch=60)
    engine = few.engine("auto")
    few.run(engine, 1)
    assert isinstance(engine._workers["silo-0"].compute._now, loop.Loop)  # type: ignore[attr-defined]


def test_bytes_of_a_row() -> None:
    """A hidden layer of six and its input of four numbers wait for the gradient, in double precision."""
    task = problem(["mlp"], [2]).tasks["silo-0"]
    assert footprint.bytes_per_row(task) == 8 * (4 + 6 + 5)
    assert footprint.bytes_per_row(problem(["fixed"], [2]).tasks["silo-0"]) == 0
