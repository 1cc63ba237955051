"""The training loop."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tdcd.compute import Path as ComputePath
from tdcd.core.network import Blocks
from tdcd.core.round import Round
from tdcd.core.sampling import draw_batch
from tdcd.core.topology import Samples
from tdcd.data.federation import ArrayLike, Federation, IDs
from tdcd.engines import Engine, LocalEngine, OracleEngine
from tdcd.errors import DataError, DivergedError, JobError, RunError
from tdcd.training.directory import RunDirectory
from tdcd.training.evaluation import scores
from tdcd.training.metrics import measure
from tdcd.training.result import Evaluation, Result
from tdcd.training.settings import Settings
from tdcd.training.setup import Models, Setup, fitted, prepare, starting_blocks

EngineName = Literal["local", "oracle"]


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
    test: Samples | None = None,
    initial: Mapping[str, Mapping[str, ArrayLike]] | None = None,
    batches: Sequence[IDs] | None = None,
    engine: EngineName = "local",
    compute: ComputePath = "auto",
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
        test: Held-out samples to evaluate on.
        initial: First weights for every silo by name; default: those of the modules, or drawn from the seed.
        batches: The IDs of every round's mini-batch; default: drawn from the seed.
        engine: "local", or "oracle" for the slow pseudocode.
        compute: How the local engine computes clients: "auto", "loop" or "stacked".
        directory: Where to write history, checkpoints and blocks; default: nowhere.
        resume: Go on with the run in ``directory`` if it has begun.
        job: What to record as the run's job; default: the settings.
        observer: Is told of every round and evaluation.

    Raises:
        TdcdError: something does not fit, or training diverged; the message says what.
        KeyboardInterrupt: passed on, after a checkpoint was written.
    """
    observer = observer or Observer()
    setup = prepare(federation, models, settings, test)
    size = settings.batch_of(len(federation))
    numbers = None if batches is None else _given_batches(federation, batches, settings.rounds)
    runner = _engine(engine, setup, compute)
    state = _State(0, starting_blocks(setup.networks, initial))
    run, fingerprint, before, history = None, "", 0.0, list[Evaluation]()
    if directory is not None:
        fingerprint = federation.fingerprint()
        job = job or {"training": settings.model_dump(exclude_none=True)}
        path = Path(directory)
        again = resume and (path / "job.toml").exists()
        run = RunDirectory.again(path, job) if again else RunDirectory.new(path, job)
        run.describe(description(federation, setup, settings, runner))
        checkpoint = run.load() if again else None
        if checkpoint:
            if checkpoint.data != fingerprint:
                raise RunError(f"{path}: its training data has changed since the checkpoint; start a new run")
            where = f"{path / 'checkpoint.safetensors'}"
            state = _State(checkpoint.round, fitted(checkpoint.blocks, state.blocks, where))
            before = checkpoint.seconds
        history = run.history(up_to=state.done if checkpoint else -1)
    started = time.perf_counter()

    def seconds() -> float:
        return before + time.perf_counter() - started

    def save() -> None:
        if run:
            run.save(state.done, state.blocks, seconds(), fingerprint)

    def evaluate() -> None:
        found = Evaluation(
            round=state.done,
            iteration=state.done * settings.local_steps,
            seconds=round(seconds(), 3),
            train=_measured(setup, state.blocks, setup.train, settings),
            test=_measured(setup, state.blocks, setup.test, settings) if setup.test else {},
        )
        for name, measures in (("training", found.train), ("test", found.test)):
            if not isfinite(measures.get("loss", 0.0)):
                raise _diverged(f"the {name} loss is {measures['loss']}", state.done, run, settings)
        history.append(found)
        if run:
            run.record(found)
        observer.evaluated(found)

    def finish(status: str) -> None:
        if run:
            run.finish(_summary(status, state.done, seconds(), settings, history), state.blocks)

    try:
        observer.started(state.done, settings.rounds, runner.paths)
        if not history:
            evaluate()
            save()
        while state.done < settings.rounds:
            number = state.done + 1
            batch = numbers[number - 1] if numbers else draw_batch(settings.seed, number, len(federation), size)
            blocks = runner.round(state.blocks, Round(number, batch, settings.rate_of(number)))
            broken = _not_finite(blocks)
            if broken:
                raise _diverged(f"the weights of silo '{broken}' are no longer finite", number, run, settings)
            state = _State(number, blocks)
            last = number == settings.rounds
            if last or number % settings.evaluate_every == 0:
                evaluate()
            if last or number % settings.checkpoint_every == 0:
                save()
            observer.advanced(number)
    except KeyboardInterrupt:
        save()
        finish("interrupted")
        raise
    except DivergedError:
        if run and (good := run.load()):
            state = _State(good.round, fitted(good.blocks, state.blocks, "checkpoint"))
            finish("diverged")
        raise
    finish("finished")
    return Result(settings, setup.networks, state.blocks, tuple(history))


def description(federation: Federation, setup: Setup, settings: Settings, engine: Engine) -> dict[str, Any]:
    """Describe who takes part, for federation.json."""
    return {
        "samples": len(federation),
        "test_samples": len(setup.test) if setup.test else 0,
        "loss": settings.loss,
        "embedding": setup.width,
        "silos": [
            {
                "name": silo,
                "row_shape": list(task.features.shape[1:]),
                "network": setup.told[silo],
                "parameters": sum(p.numel() for p in task.network.module.parameters()),
                "compute": engine.paths[silo],
                "clients": [
                    {"name": name, "rows": rows}
                    for name, rows in sorted(zip(task.roster.clients, task.roster.counts(), strict=True))
                ],
            }
            for silo, task in setup.tasks.items()
        ],
    }


def _engine(name: EngineName, setup: Setup, compute: ComputePath) -> Engine:
    if name == "oracle":
        return OracleEngine(setup.tasks)
    return LocalEngine(setup.tasks, compute)


def _given_batches(federation: Federation, batches: Sequence[IDs], rounds: int) -> list[Tensor]:
    if len(batches) < rounds:
        raise JobError(f"batches: {len(batches)} are given for {rounds} rounds")
    numbers = [federation.numbers(ids, f"batch {index}") for index, ids in enumerate(batches[:rounds])]
    for index, batch in enumerate(numbers):
        if len(batch) == 0 or bool((batch.diff() == 0).any()):
            raise DataError(f"batch {index}: it is empty or names an ID twice")
    return numbers


def _measured(setup: Setup, blocks: Blocks, samples: Samples, settings: Settings) -> dict[str, float]:
    found = scores(setup.networks, blocks, samples.features)
    if not torch.isfinite(found).all():
        return {"loss": float("nan")}
    return measure(settings.objective, found, samples.labels)


def _not_finite(blocks: Blocks) -> str:
    for silo, block in blocks.items():
        if not all(bool(t.isfinite().all()) for t in block.values() if t.is_floating_point()):
            return silo
    return ""


def _diverged(what: str, number: int, run: RunDirectory | None, settings: Settings) -> DivergedError:
    kept = ""
    if run and (good := run.load()):
        kept = f" The checkpoint of round {good.round} is kept in {run.path}."
    return DivergedError(
        f"training diverged: {what} after round {number} of {settings.rounds}.{kept} "
        f"Try a smaller rate, such as {settings.rate / 10:g} instead of {settings.rate:g}"
    )


def _summary(
    status: str, done: int, seconds: float, settings: Settings, history: Sequence[Evaluation]
) -> dict[str, Any]:
    newest = history[-1] if history else None
    return {
        "status": status,
        "round": done,
        "rounds": settings.rounds,
        "iteration": done * settings.local_steps,
        "seconds": round(seconds, 3),
        "evaluated": newest.as_dict() if newest else None,
    }
