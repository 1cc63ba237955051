"""The loop over rounds: evaluations, checkpoints, where to go on. The same in a simulation and at a real site."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, Literal, Protocol

from tdcd.core.ledger import Traffic
from tdcd.core.network import Block, Blocks, Network
from tdcd.data.splits import Part
from tdcd.errors import DeploymentError, DivergedError, RunError, listed
from tdcd.training.directory import BEST, Kept, RunDirectory
from tdcd.training.result import Evaluation
from tdcd.training.settings import Settings
from tdcd.training.setup import check_finite, fitted

GROWTH = 1e6
"""A training loss that many times the first, and 1, is as good as infinite."""


Measures = Mapping[Part, Mapping[str, float]]
"""Loss and metrics on every part of the samples; none where there are none, or where they are not told."""

Verdict = Literal["better", "worse", "diverged"]
"""What an evaluation shows: the lowest validation loss so far, or not, or that there is nothing left to train."""


class Party(Protocol):
    """Who computes for the loop: a whole federation in a simulation, one hub at its site."""

    @property
    def paths(self) -> Mapping[str, str]:
        """How each silo's clients are computed, in a sentence."""

    def agreed(self, rounds: Sequence[int]) -> int:
        """Given the rounds that this process could go on after, return the one that all go on after."""

    def round(self, blocks: Blocks, number: int) -> tuple[Blocks, Traffic]:
        """Compute a round; return the new blocks and what was sent.

        Raises:
            RewoundError: all go back to an earlier round.
        """

    def concluded(self, number: int) -> None:
        """Wait until all have come to the end, and hold it.

        Raises:
            RewoundError: all go back to an earlier round.
        """

    def measured(self, blocks: Blocks, judge: Callable[[Measures], Verdict]) -> tuple[Measures, Verdict]:
        """Measure the whole model where the labels are; return the measures, if they are told here, and the verdict.

        ``judge`` makes a verdict of measures.
        """


def left_finite(block: Block, before: Block) -> bool:
    """Tell whether numbers of a block are no longer finite. What was not so before is a constant, as a mask of -inf."""
    return any(not tensor.isfinite().all() and before[name].isfinite().all() for name, tensor in block.items())


class RewoundError(Exception):
    """All hubs go back to a round that each of them has, because one of them was started again."""


class Observer:
    """Is told how a training goes. Override what you want to see."""

    def started(self, done: int, rounds: int, paths: Mapping[str, str]) -> None:
        """Training starts after round ``done``; ``paths`` says how each silo is computed."""

    def advanced(self, done: int) -> None:
        """Round ``done`` is over."""

    def evaluated(self, evaluation: Evaluation) -> None:
        """The global model was evaluated."""


@dataclass(frozen=True)
class State:
    """Everything that changes from round to round."""

    done: int
    blocks: Blocks
    traffic: Traffic = field(default_factory=Traffic)
    """What the rounds so far have sent."""


@dataclass
class Loop:
    """A training under way."""

    party: Party
    settings: Settings
    networks: Mapping[str, Network]
    observer: Observer
    first: Callable[[], Blocks]
    """The weights that it starts from, made anew each time: they need not be kept."""
    directory: RunDirectory | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of what it was given; going on needs the same."""
    history: list[Evaluation] = field(default_factory=list)
    best: Kept | None = None
    """The weights with the lowest validation loss so far, where they are to be kept."""
    state: State = field(init=False)
    _like: Blocks = field(init=False)
    """Blocks of the right types and shapes, that take no memory."""
    _before: float = 0.0
    """Seconds spent in earlier sessions."""
    _started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.state = State(0, self.first())
        self._like = {
            silo: {name: tensor.new_empty(()).expand(tensor.shape) for name, tensor in block.items()}
            for silo, block in self.state.blocks.items()
        }

    def begin(self, description: Mapping[str, Any]) -> None:
        """Take up what the directory holds of an earlier session, if anything, once all of it was checked."""
        assert self.directory  # noqa: S101
        self._take_up(self.party.agreed(self.directory.rounds() or [0]))
        self.directory.begin(description, self.history)

    def run(self) -> tuple[int, Blocks]:
        """Train to the end; return the weights that the training ends with, and their round."""
        settings = self.settings
        self._started = time.perf_counter()
        try:
            self.observer.started(self.state.done, settings.rounds, self.party.paths)
            while True:
                try:
                    if self._evaluate_if_due():  # round 0, or a round after which an earlier session was stopped
                        self._save()
                    while self.state.done < settings.rounds and not self._stalled():
                        self._round()
                        done = self.state.done
                        self._evaluate_if_due()
                        if done == settings.rounds or done % settings.checkpoint_every == 0 or self._stalled():
                            self._save()
                        self.observer.advanced(done)
                    self.party.concluded(self.state.done)
                    break
                except RewoundError:
                    self._rewind()
        except (KeyboardInterrupt, DeploymentError):
            self._save()
            self._finish("interrupted")
            raise
        except DivergedError:
            if self.directory and (good := self.directory.load()):
                self.state = State(good.round, fitted(good.blocks, self._like, "checkpoint"), good.traffic)
                self._finish("diverged")
            raise
        self._finish("finished")
        return self._kept()

    def _take_up(self, start: int) -> None:
        """Go on after some round, of which there is a checkpoint, or which is the beginning."""
        assert self.directory  # noqa: S101
        checkpoint, where = self.directory.load(start), self.directory.path
        self.best = None
        if not checkpoint:
            self.state = State(0, self.first())
        else:
            changed = [name for name, digest in self.inputs.items() if checkpoint.inputs.get(name) != digest]
            changed += sorted(set(checkpoint.inputs) - set(self.inputs))
            if changed:
                raise RunError(f"{where}: not what it was started with: {listed(changed)}; start a new run")
            file = str(where / "checkpoint.safetensors")
            blocks = fitted(checkpoint.blocks, self._like, file)
            check_finite(blocks, self.networks, f"{file}: ")
            self.state = State(checkpoint.round, blocks, checkpoint.traffic)
            self._before, self._started = checkpoint.seconds, time.perf_counter()
            if best := self.directory.load_best(checkpoint.round):  # a later one will be found again
                self.best = replace(best, blocks=fitted(best.blocks, self._like, str(where / BEST)))
        self.directory.forget_after(start)
        due = [number for number in range(self.state.done) if self._due(number)] if checkpoint else []
        last = self.state.done if checkpoint else -1
        if self.directory.together:  # another hub may not have evaluated that round: all do so again
            last = self.state.done - 1
        self.history = self.directory.history(last, due)

    def _rewind(self) -> None:
        """Go back to the round that all parties agree on."""
        assert self.directory  # noqa: S101
        self._take_up(self.party.agreed(self.directory.rounds() or [0]))
        self.directory.rewrite(self.history)
        self.observer.started(self.state.done, self.settings.rounds, self.party.paths)

    def _kept(self) -> tuple[int, Blocks]:
        return (self.best.round, self.best.blocks) if self.best else (self.state.done, self.state.blocks)

    def _stalled(self) -> bool:
        """Tell whether the validation loss has not fallen for too long."""
        patience = self.settings.patience
        if patience is None or not self.history:
            return False
        better = [number for number, line in enumerate(self.history) if line.better]
        return len(self.history) - 1 - max(better, default=0) >= patience

    def _due(self, number: int) -> bool:
        """Tell whether a round is one to evaluate after."""
        return number == self.settings.rounds or number % self.settings.evaluate_every == 0

    def _round(self) -> None:
        number = self.state.done + 1
        blocks, sent = self.party.round(self.state.blocks, number)
        broken = self._not_finite(blocks)
        if broken:
            raise self._diverged(f"the weights of silo '{broken}' are no longer finite", number)
        self.state = State(number, blocks, self.state.traffic + sent)

    def _not_finite(self, blocks: Blocks) -> str:
        """Return the name of a silo whose numbers left the finite ones, if any did."""
        return next((silo for silo, block in blocks.items() if left_finite(block, self.state.blocks[silo])), "")

    def _evaluate_if_due(self) -> bool:
        """Evaluate the whole model if this is a round to do so after, and it was not done before."""
        done = self.state.done
        if not self._due(done) or (self.history and self.history[-1].round == done):
            return False
        measures, verdict = self.party.measured(self.state.blocks, self._judged)
        train, validation, test = (measures[part] for part in Part)
        found = Evaluation(
            round=done,
            iteration=done * self.settings.local_steps,
            seconds=round(self._seconds(), 3),
            traffic=self.state.traffic,
            train=train,
            validation=validation,
            test=test,
            better=verdict == "better",
        )
        if verdict == "diverged":
            raise self._diverged(self._trouble(measures) or "the hub where the labels are says so", done)
        self.history.append(found)
        if self.directory:
            self.directory.record(found)
        kept = self.best and self.best.round == done  # this round is evaluated again, after all hubs went back to it
        if self.settings.keep == "best" and found.better and not kept:
            self.best = Kept(done, self.state.blocks)
            if self.directory:
                self.directory.save_best(self.best)
        self.observer.evaluated(found)
        return True

    def _judged(self, measures: Measures) -> Verdict:
        """Judge an evaluation against those before it."""
        if self._trouble(measures):
            return "diverged"
        before = [line.validation["loss"] for line in self.history if line.validation]
        return "better" if measures[Part.VALIDATION].get("loss", inf) < min(before, default=inf) else "worse"

    def _trouble(self, measures: Measures) -> str:
        """Tell if losses are no longer finite, or as good as that."""
        for part, found in measures.items():
            if not isfinite(found.get("loss", 0.0)):
                return f"the {'training' if part == Part.TRAIN else part.word} loss is {found['loss']}"
        loss = measures[Part.TRAIN].get("loss", 0.0)
        first = self.history[0].train.get("loss", loss) if self.history else loss
        return f"the training loss grew from {first:.4g} to {loss:.4g}" if loss > GROWTH * max(first, 1.0) else ""

    def _seconds(self) -> float:
        return self._before + time.perf_counter() - self._started

    def _save(self) -> None:
        if self.directory:
            state = self.state
            self.directory.save(state.done, state.blocks, self._seconds(), state.traffic, self.inputs)

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
