"""The training loop."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from tdcd.compute import ComputeName, cores
from tdcd.core.ledger import Ledger, Traffic
from tdcd.core.network import Blocks
from tdcd.core.round import Round
from tdcd.core.sampling import draw_batch
from tdcd.core.topology import Samples
from tdcd.data.arrays import ArrayLike, IDs, fingerprint, shown
from tdcd.data.federation import Federation
from tdcd.engines import Engine, LocalEngine, OracleEngine
from tdcd.errors import DataError, DivergedError, JobError, RunError, listed, nearest
from tdcd.training.directory import BEST, Kept, RunDirectory
from tdcd.training.metrics import measure
from tdcd.training.result import Evaluation, Result
from tdcd.training.settings import Settings
from tdcd.training.setup import Models, Setup, check_finite, fitted, prepare, starting_blocks

EngineName = Literal["local", "oracle"]
GROWTH = 1e6
"""A training loss that many times the first, and 1, is as good as infinite."""


class Observer:
    """Is told how a training goes. Override what you want to see."""

    def started(self, done: int, rounds: int, paths: Mapping[str, str]) -> None:
        """Training starts after round ``done``; ``paths`` says how each silo is computed."""

    def advanced(self, done: int) -> None:
        """Round ``done`` is over."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """The global model was evaluated."""


@dataclass(frozen=True)
class _State:
    """Everything that changes from round to round."""

    done: int
    blocks: Blocks


def train(
    federation: Federation,
    models: Models,
    settings: Settings,
    *,
    validation: Samples | None = None,
    test: Samples | None = None,
    initial: Mapping[str, Mapping[str, ArrayLike]] | None = None,
    batches: Sequence[IDs] | None = None,
    engine: EngineName = "local",
    compute: ComputeName = "auto",
    workers: int | None = None,
    device: str = "cpu",
    directory: Path | str | None = None,
    resume: bool = False,
    job: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
) -> Result:
    """Train a federation.

    Args:
        federation: The training data.
        models: A model specification for all silos, or a specification or ``nn.Module`` for each by name.
        settings: Loss, rounds, local steps, batch size, rate …
        validation: Held-out samples to choose settings by.
        test: Held-out samples to judge the outcome by.
        initial: First weights for every silo by name; default: those of the modules, or drawn from the seed.
        batches: The IDs of every round's mini-batch; default: drawn from the seed.
        engine: "local", or "oracle" for the slow pseudocode.
        compute: How the local engine computes clients: "auto", "one-step", "kernel", "layers", "stacked", "loop".
        workers: Threads that may share the work; default: one for each core. The numbers do not depend on it.
        device: Where to compute: "cpu", or "cuda", "cuda:1" … for a graphics card.
        directory: Where to write history, checkpoints and blocks; default: nowhere.
        resume: Go on with the run in ``directory`` if it has begun.
        job: What to record as the run's job; default: the settings.
        observer: Is told of every round and evaluation.

    Raises:
        TdcdError: something does not fit, or training diverged; the message says what.
        KeyboardInterrupt: passed on, after a checkpoint was written.
    """
    _check_arguments(federation, settings, validation, test, directory, resume, observer, workers)
    setup = prepare(federation, models, settings, validation, test, _device(device))
    training = _Training(
        setup=setup,
        settings=settings,
        engine=_engine(engine, setup, compute, workers or cores()),
        batch_of=_batches(federation, settings, batches),
        ledger=_ledger(federation, setup, settings),
        observer=observer or Observer(),
        state=_State(0, starting_blocks(setup.networks, initial)),
    )
    with ExitStack() as stack:
        if directory is not None:
            given = {"engine": engine, "compute": compute, "device": device}
            job = job or given | {"training": settings.model_dump(exclude_none=True)}
            training.directory = stack.enter_context(RunDirectory.opened(Path(directory), job, resume=resume))
            training.inputs = _fingerprints(federation, training, batches)
            training.go_on(description(federation, setup, settings, training.engine, training.ledger))
            given_batches = [training.batch_of(number) for number in range(1, settings.rounds + 1)] if batches else []
            training.directory.keep_rosters(federation.rosters, given_batches)
            for silo, made in federation.preparations.items():
                training.directory.attach(f"preparation/{silo}.json", made.to_json())
        return training.run()


@dataclass
class _Training:
    """A training under way."""

    setup: Setup
    settings: Settings
    engine: Engine
    batch_of: Callable[[int], Tensor]
    """The mini-batch of a round."""
    ledger: Ledger
    observer: Observer
    state: _State
    traffic: Traffic = field(default_factory=Traffic)
    """What the rounds so far have sent."""
    history: list[Evaluation] = field(default_factory=list)
    directory: RunDirectory | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of what it was given; going on needs the same."""
    best: Kept | None = None
    """The weights with the lowest validation loss so far, where they are to be kept."""
    before: float = 0.0
    """Seconds spent in earlier sessions."""
    started: float = field(default_factory=time.perf_counter)

    def go_on(self, description: Mapping[str, Any]) -> None:
        """Take up what the directory holds of an earlier session, if anything, once all of it was checked."""
        assert self.directory  # noqa: S101
        checkpoint, where = self.directory.load(), self.directory.path
        if checkpoint:
            changed = [name for name, digest in self.inputs.items() if checkpoint.inputs.get(name) != digest]
            changed += sorted(set(checkpoint.inputs) - set(self.inputs))
            if changed:
                raise RunError(f"{where}: not what it was started with: {listed(changed)}; start a new run")
            file = str(where / "checkpoint.safetensors")
            blocks = fitted(checkpoint.blocks, self.state.blocks, file)
            check_finite(blocks, self.setup.networks, f"{file}: ")
            self.state = _State(checkpoint.round, blocks)
            self.before = checkpoint.seconds
            self.traffic = sum((self._sent(self.batch_of(n)) for n in range(1, checkpoint.round + 1)), Traffic())
            best = self.directory.load_best()
            if best and best.round <= checkpoint.round:  # a later one will be found again
                self.best = replace(best, blocks=fitted(best.blocks, self.state.blocks, str(where / BEST)))
        due = [number for number in range(self.state.done) if self._due(number)] if checkpoint else []
        self.history = self.directory.begin(description, up_to=self.state.done if checkpoint else -1, due=due)

    def run(self) -> Result:
        """Train to the end."""
        settings = self.settings
        self.started = time.perf_counter()
        try:
            self.observer.started(self.state.done, settings.rounds, self.engine.paths)
            if self._due(self.state.done) and not (self.history and self.history[-1].round == self.state.done):
                self._evaluate()  # round 0, or a round after which an earlier session was stopped
                self._save()
            while self.state.done < settings.rounds and not self._stalled():
                self._round()
                done = self.state.done
                if self._due(done):
                    self._evaluate()
                if done == settings.rounds or done % settings.checkpoint_every == 0 or self._stalled():
                    self._save()
                self.observer.advanced(done)
        except KeyboardInterrupt:
            self._save()
            self._finish("interrupted")
            raise
        except DivergedError:
            if self.directory and (good := self.directory.load()):
                self.state = _State(good.round, fitted(good.blocks, self.state.blocks, "checkpoint"))
                self._finish("diverged")
            raise
        self._finish("finished")
        types = {silo: rows.dtype for silo, rows in self.setup.train.features.items()}
        kept, blocks = self._kept()
        return Result(settings, self.setup.networks, blocks, kept, tuple(self.history), types)

    def _kept(self) -> tuple[int, Blocks]:
        """Return the weights that the training ends with, and their round."""
        return (self.best.round, self.best.blocks) if self.best else (self.state.done, self.state.blocks)

    def _stalled(self) -> bool:
        """Tell whether the validation loss has not fallen for too long."""
        patience = self.settings.patience
        if patience is None or not self.history:
            return False
        losses = [line.validation["loss"] for line in self.history]
        return len(losses) - 1 - losses.index(min(losses)) >= patience

    def _due(self, number: int) -> bool:
        """Tell whether a round is one to evaluate after."""
        return number == self.settings.rounds or number % self.settings.evaluate_every == 0

    def _round(self) -> None:
        number = self.state.done + 1
        round_ = Round(number, self.batch_of(number), self.settings.rate_of(number))
        blocks = self.engine.round(self.state.blocks, round_)
        broken = self._not_finite(blocks)
        if broken:
            raise self._diverged(f"the weights of silo '{broken}' are no longer finite", number)
        self.state = _State(number, blocks)
        self.traffic += self._sent(round_.batch)

    def _sent(self, batch: Tensor) -> Traffic:
        """Return what a round with this mini-batch sends."""
        return self.ledger.traffic(self.ledger.rows(batch.numpy()))

    def _not_finite(self, blocks: Blocks) -> str:
        """Return the name of a silo whose numbers left the finite ones, if any did."""
        for silo, block in blocks.items():
            for name, tensor in block.items():
                if not tensor.isfinite().all() and self.state.blocks[silo][name].isfinite().all():
                    return silo  # what was not finite before is a constant, such as a mask of -inf
        return ""

    def _evaluate(self) -> None:
        found = Evaluation(
            round=self.state.done,
            iteration=self.state.done * self.settings.local_steps,
            seconds=round(self._seconds(), 3),
            traffic=self.traffic,
            train=self._measured(self.setup.train),
            validation=self._measured(self.setup.validation) if self.setup.validation else {},
            test=self._measured(self.setup.test) if self.setup.test else {},
        )
        for name, measures in (("training", found.train), ("validation", found.validation), ("test", found.test)):
            if not isfinite(measures.get("loss", 0.0)):
                raise self._diverged(f"the {name} loss is {measures['loss']}", self.state.done)
        first, loss = (self.history or [found])[0].train["loss"], found.train["loss"]
        if loss > GROWTH * max(first, 1.0):
            raise self._diverged(f"the training loss grew from {first:.4g} to {loss:.4g}", self.state.done)
        self.history.append(found)
        if self.directory:
            self.directory.record(found)
        if self.settings.keep == "best" and (not self.best or found.validation["loss"] < self.best.loss):
            self.best = Kept(self.state.done, self.state.blocks, found.validation["loss"])
            if self.directory:
                self.directory.save_best(self.best)
        self.observer.evaluated(found)

    def _measured(self, samples: Samples) -> dict[str, float]:
        found = self.engine.scores(self.state.blocks, samples.features)
        if not torch.isfinite(found).all():
            return {"loss": float("nan")}
        return measure(self.settings.objective, found, samples.labels)

    def _seconds(self) -> float:
        return self.before + time.perf_counter() - self.started

    def _save(self) -> None:
        if self.directory:
            self.directory.save(self.state.done, self.state.blocks, self._seconds(), self.inputs)

    def _finish(self, status: str) -> None:
        if self.directory:
            kept, blocks = self._kept()
            evaluated = [line for line in self.history if line.round <= kept]
            summary = {
                "status": status,
                "round": self.state.done,
                "rounds": self.settings.rounds,
                "kept": kept,
                "iteration": self.state.done * self.settings.local_steps,
                "seconds": round(self._seconds(), 3),
                "evaluated": evaluated[-1].as_dict() if evaluated else None,
            }
            self.directory.finish(summary, blocks)

    def _diverged(self, what: str, number: int) -> DivergedError:
        if number == 0:
            return DivergedError(f"{what} before training: check the scale of the features and the first weights")
        kept, rate = "", self.settings.rate
        if self.directory and (good := self.directory.load()):
            kept = f" The checkpoint of round {good.round} is kept in {self.directory.path}."
        return DivergedError(
            f"training diverged: {what} after round {number} of {self.settings.rounds}.{kept} "
            f"Try a smaller rate, such as {rate / 10:g} instead of {rate:g}"
        )


def _check_arguments(
    federation: object,
    settings: object,
    validation: object,
    test: object,
    directory: object,
    resume: bool,
    observer: object,
    workers: int | None,
) -> None:
    """Refuse what a user of Python can easily mix up, before it turns up as something else."""
    for name, value, kind, hint in (
        ("federation", federation, Federation, "make one with Federation.from_silos"),
        ("settings", settings, Settings, "make them with tdcd.Settings(…)"),
        ("validation", validation, Samples, "make them with tdcd.samples(features, labels)"),
        ("test", test, Samples, "make them with tdcd.samples(features, labels)"),
        ("observer", observer, Observer, "make a class of your own from tdcd.Observer"),
    ):
        optional = name in ("validation", "test", "observer")
        if not isinstance(value, kind) and not (optional and value is None):
            raise JobError(f"{name}: a {kind.__name__} is wanted, not {shown(value)}; {hint}")
    if isinstance(settings, Settings) and validation is None and (settings.keep == "best" or settings.patience):
        raise JobError('keep = "best" and patience need a validation set; in a job: data.validation_fraction = 0.1')
    if directory is not None and not str(directory):
        raise JobError("directory: it is empty; name one, or leave it out to write nothing")
    if resume and directory is None:
        raise JobError("resume = True needs the directory of the run to go on with")
    if workers is not None and workers < 1:
        raise JobError(f"workers: at least 1 is wanted, not {workers}")


def description(
    federation: Federation, setup: Setup, settings: Settings, engine: Engine, ledger: Ledger
) -> dict[str, Any]:
    """Describe who takes part, for federation.json."""
    return {
        "samples": len(federation),
        "validation_samples": len(setup.validation) if setup.validation else 0,
        "test_samples": len(setup.test) if setup.test else 0,
        "loss": settings.loss,
        "classes": list(federation.classes),
        "notes": list(federation.notes),
        "embedding": setup.width,
        "embedding_bytes": ledger.row,
        "silos": [
            {
                "name": silo,
                "row_shape": list(task.features.shape[1:]),
                "network": setup.told[silo],
                "parameters": sum(p.numel() for p in task.network.module.parameters()),
                "block_bytes": ledger.blocks[silo],
                "compute": engine.paths[silo],
                "columns": [
                    {"name": column.name, "holds": column.told(), "inputs": len(column.outputs)}
                    for column in (federation.preparations[silo].columns if silo in federation.preparations else ())
                ],
                "clients": [
                    {"name": name, "rows": rows}
                    for name, rows in sorted(zip(task.roster.clients, task.roster.counts(), strict=True))
                ],
            }
            for silo, task in setup.tasks.items()
        ],
    }


def _ledger(federation: Federation, setup: Setup, settings: Settings) -> Ledger:
    return Ledger(
        owners={silo: roster.owner.numpy() for silo, roster in federation.rosters.items()},
        clients={silo: len(roster.clients) for silo, roster in federation.rosters.items()},
        blocks={
            silo: sum(tensor.nbytes for tensor in network.initial().values())
            for silo, network in setup.networks.items()
        },
        row=setup.width * settings.dtype.itemsize,
    )


def _engine(name: EngineName, setup: Setup, compute: ComputeName, workers: int) -> Engine:
    for what, word, known in (("engine", name, get_args(EngineName)), ("compute", compute, get_args(ComputeName))):
        if word not in known:
            raise JobError(f"{what}: '{word}' is not known{nearest(word, known)}")
    return OracleEngine(setup.tasks) if name == "oracle" else LocalEngine(setup.tasks, compute, workers)


def _device(name: str) -> torch.device:
    """Return a device that this machine has."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise JobError(f'device: {shown(name)} is not known; use "cpu", "cuda" or "cuda:1"') from error
    if device.type not in ("cpu", "cuda"):
        raise JobError(f'device: "{name}" is not supported; use "cpu", "cuda" or "cuda:1"')
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= cards:
        has = f"this machine has {cards}" if cards else "torch finds no CUDA device on this machine"
        raise JobError(f'device: "{name}" cannot be had: {has}; use device = "cpu"')
    return device


def _batches(federation: Federation, settings: Settings, given: Sequence[IDs] | None) -> Callable[[int], Tensor]:
    """Return the function that gives round r its mini-batch: drawn from the seed, or as the user listed them."""
    if given is None:
        size = settings.batch_of(len(federation))
        return lambda number: draw_batch(settings.seed, number, len(federation), size)
    if len(given) < settings.rounds:
        raise JobError(f"batches: {len(given)} are given for {settings.rounds} rounds")
    numbers = [federation.numbers(ids, f"batch {index}") for index, ids in enumerate(given)]
    for index, batch in enumerate(numbers):
        if bool((batch.diff() == 0).any()):
            raise DataError(f"batch {index} names an ID twice")
    return lambda number: numbers[number - 1]


def _fingerprints(federation: Federation, training: _Training, batches: Sequence[IDs] | None) -> dict[str, str]:
    """Digest everything a training is given that its job does not say."""
    setup, first = training.setup, training.state.blocks
    told = {silo: repr(network.module) for silo, network in setup.networks.items()}
    given = {
        "training data": federation.fingerprint(),
        "networks": hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest(),
        "first weights": fingerprint({f"{silo}/{n}": t for silo, block in first.items() for n, t in block.items()}),
    }
    for name, part in (("validation data", setup.validation), ("test data", setup.test)):
        if part:
            given[name] = fingerprint({"labels": part.labels, **part.features})
    if batches is not None:
        rounds = range(1, training.settings.rounds + 1)
        given["batches"] = fingerprint({str(number): training.batch_of(number) for number in rounds})
    return given
