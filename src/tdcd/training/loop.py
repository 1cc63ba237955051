"""The loop over rounds: evaluations, checkpoints, where to go on. The same in a simulation and at a real site.

The run directory is the loop's own affair, not a callback's. Best weights last before the line of the history that
tells of them, that line before a checkpoint, and the last checkpoint before the other hubs hear that this one has
ended; a list of callbacks, in whatever order, can promise none of it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tdcd.core.network import Blocks, Network
from tdcd.core.state import SiloState
from tdcd.data.arrays import describe_value
from tdcd.data.holdout import Part
from tdcd.engines.base import Engine, Measurement, RewoundError, Verdict
from tdcd.errors import AbsentError, ClusterError, DeploymentError, DivergedError, JobError, RunError, join_names
from tdcd.runs.layout import BEST, CHECKPOINT
from tdcd.runs.records import Evaluation, FederationRecord, Finding, Outcome
from tdcd.runs.store import Checkpoint, RunDirectory, Selected
from tdcd.training.callbacks import Callback, EarlyStopping, FinishedRound, Start, Stop
from tdcd.training.callbacks.early_stopping import stalled
from tdcd.training.diagnosis import Evidence, diagnose
from tdcd.training.diagnosis.probes import OvershootProbe, contributions
from tdcd.training.judgement import describe_trouble, judge
from tdcd.training.quality.held_out import record_held_out
from tdcd.training.settings import Settings
from tdcd.training.setup import check_finite, fit_blocks
from tdcd.training.simulation import Simulation
from tdcd.training.state import State, advance, describe_evaluation, diverged


@dataclass
class Loop:
    """A training under way."""

    engine: Engine
    settings: Settings
    networks: Mapping[str, Network]
    callbacks: Sequence[Callback]
    first: Callable[[], Blocks]
    """The weights that it starts from, made again each time: they need not be stored."""
    simulation: Simulation | None = None
    """What callbacks learn the details of a round from; none at a real site."""
    federation: FederationRecord | None = None
    """Who takes part, as far as this process knows."""
    directory: RunDirectory | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of what it was given; going on needs the same."""
    history: list[Evaluation] = field(default_factory=list)
    best: Selected | None = None
    """The best weights so far, where they are to be kept."""
    alone: bool = False
    """Whether this is a hub that has come to the end before, and ends without having met the others again."""
    state: State = field(init=False)
    outcome: Outcome | None = None
    """How it has ended."""
    _stopped: str = ""
    """Why it ends before its last round."""
    _ended: bool = False
    """Whether callbacks know that it has."""
    _lineage: str = ""
    """Names the training since all parties last agreed where to go on."""
    _taken: tuple[int, str] = (0, "")
    """The round that they agreed on, with the lineage that it has: it happened before."""
    _like: Blocks = field(init=False)
    """Blocks of the right types and shapes, that take no memory."""
    _probe: OvershootProbe | None = None
    """Looks at some rounds of a simulation."""
    _before: float = 0.0
    """Seconds spent in earlier sessions."""
    _started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        if self.settings.patience is not None:
            self.callbacks = [*self.callbacks, EarlyStopping(self.settings.patience)]
        if self.simulation:
            self._probe = OvershootProbe(self.simulation)
            self.callbacks = [*self.callbacks, self._probe]
        self.state = self._begin()
        self._like = {
            silo: {name: tensor.new_empty(()).expand(tensor.shape) for name, tensor in block.items()}
            for silo, block in self.state.weights.items()
        }

    def _begin(self) -> State:
        return State(0, {silo: SiloState(block) for silo, block in self.first().items()})

    def begin(self) -> None:
        """Take up what the directory holds of an earlier session, if anything, once all of it was checked."""
        assert self.directory  # noqa: S101
        assert self.federation  # noqa: S101
        try:
            self._agree()
        except AbsentError:
            if not self._complete():
                raise
            self.alone = True
        self.directory.begin(self.federation, self.history, self.inputs)

    def _agree(self) -> None:
        """Go on after the round that all parties agree on."""
        assert self.directory  # noqa: S101
        checkpoints = self.directory.checkpoints(self._note)
        start, lineage = self.engine.agree(checkpoints)
        self._lineage = lineage or self.directory.identify(self.inputs)
        if not start:
            self.directory.begin_run(self._lineage)
        self._taken = start, checkpoints[start] if start else self._lineage
        self._take_up(start)

    def _complete(self) -> bool:
        """Tell whether a hub has all that the training ends with, though it does not reach the others any more."""
        assert self.directory  # noqa: S101
        newest, lineage = max(self.directory.checkpoints().items(), default=(0, ""))
        if not self.directory.is_hub or not newest:
            return False
        self._lineage, self._taken = lineage, (newest, lineage)
        self._take_up(newest, again=False)
        measured, patience = self.history and self.history[-1].round == self.state.done, self.settings.patience
        early = patience is not None and stalled(self.history, patience)
        return bool(measured) and (early or self.state.done == self.settings.rounds)

    def run(self) -> tuple[int, Blocks]:
        """Train to the end; return the weights that the training ends with, and their round."""
        self._started = time.perf_counter()
        try:
            self._run()
        except BaseException as error:
            self.end(error)
            raise
        self.end()
        return self._selected()

    def end(self, error: BaseException | None = None) -> None:
        """Tell all callbacks, once, that the training has ended, perhaps by an error.

        Their own errors keep none of the others from it. The first is raised after all, or noted on that error.
        """
        failed: list[tuple[str, BaseException]] = []
        for callback in () if self._ended else self.callbacks:
            try:
                callback.ended(self.outcome)
            except BaseException as failure:
                failed.append((type(callback).__name__, failure))
        self._ended = True
        if error is None:
            for _, own in failed:
                raise own
        else:
            for name, own in failed:
                error.add_note(f"callback {name} failed as the training ended: {type(own).__name__}: {own}")

    def _run(self) -> None:
        try:
            confirmed = self._train()
        except (KeyboardInterrupt, ClusterError, DeploymentError):
            self._interrupt()
            raise
        except DivergedError:
            if self.directory and (good := self.directory.load()):
                self.state = State(good.round, self._fit(good, "checkpoint"), good.traffic)
                self._finish("diverged")
            raise
        else:
            self._finish("finished", confirmed=confirmed)

    def _train(self) -> bool:
        """Compute all rounds; tell whether all hubs are known to have ended."""
        settings, confirmed = self.settings, False
        self._tell_start()
        while not self.alone:
            try:
                if self._evaluate_if_due():  # round 0, or a round after which an earlier session was stopped
                    self._save()
                while self.state.done < settings.rounds and not self._stopped:
                    self._round()
                    done = self.state.done
                    if done == settings.rounds or done % settings.checkpoint_every == 0 or self._stopped:
                        self._save()
                confirmed = self.engine.conclude(self.state.done, self._selected()[0])
                break
            except RewoundError:
                self._rewind()
        self._note_partial()
        return confirmed

    def _tell_start(self) -> None:
        start = Start(self.state.done, self.settings, self.engine.compute_plan, tuple(self.history))
        self._tell(lambda callback: callback.started(start))

    def _tell(self, call: Callable[[Callback], object]) -> None:
        """Call all callbacks; the first that stops the training says why. If one fails, its error is passed on."""
        for callback in self.callbacks:
            try:
                stop = self._check_reply(callback, call(callback))
            except Exception:
                self._interrupt()
                raise
            if stop and self.state.done < self.settings.rounds:
                self._stopped = self._stopped or f"stopped by {type(callback).__name__}: {stop.reason}"

    def _check_reply(self, callback: Callback, reply: object) -> Stop | None:
        name = type(callback).__name__
        if reply is None:
            return None
        if not isinstance(reply, Stop):
            raise JobError(f'callback {name} returned {describe_value(reply)}; return tdcd.Stop("why"), or nothing')
        if self.directory and self.directory.is_hub and not isinstance(callback, EarlyStopping):
            raise JobError(f"callback {name}: a hub cannot stop by itself; use patience = … in the job")
        return reply

    def _note(self, note: str) -> None:
        for callback in self.callbacks:
            callback.noted(note)

    def _take_up(self, start: int, *, again: bool = True) -> None:
        """Go on after some round, of which there is a checkpoint, or which is the beginning.

        Hubs evaluate that round ``again``, as one of them may not have done so.
        """
        assert self.directory  # noqa: S101
        checkpoint, where = self.directory.load(start), self.directory.path
        if not checkpoint:
            self.state = self._begin()
        else:
            changed = [name for name, digest in self.inputs.items() if checkpoint.inputs.get(name) != digest]
            changed += sorted(set(checkpoint.inputs) - set(self.inputs))
            if changed:
                raise RunError(f"{where}: not what it was started with: {join_names(changed)}; start a new run")
            file = str(where / CHECKPOINT)
            states = self._fit(checkpoint, file)
            check_finite({silo: state.weights for silo, state in states.items()}, self.networks, f"{file}: ")
            self.state = State(checkpoint.round, states, checkpoint.traffic)
            self._before, self._started = checkpoint.seconds, time.perf_counter()
        self._stopped = ""
        self.directory.forget_after(start)
        due = [number for number in range(self.state.done) if self._due(number)] if checkpoint else []
        last = self.state.done if checkpoint else -1
        if self.directory.is_hub and again:
            last = self.state.done - 1
        result = self.directory.history(last, due)
        self.history = [line for line in result if self._due(line.round)]  # a shorter run may have ended in between
        self.best = self._best_so_far()
        self.directory.forget_bests({self.best.round} if self.best else set())

    def _best_so_far(self) -> Selected | None:
        """Return the best weights that the history tells of."""
        assert self.directory  # noqa: S101
        rounds = [line.round for line in self.history if line.better] if self.settings.select == "best" else []
        if not rounds:
            return None
        best = self.directory.load_best(rounds[-1])
        if best:
            return replace(
                best, blocks=fit_blocks(best.blocks, self._like, str(self.directory.path / BEST.format(best.round)))
            )
        if rounds[-1] != self.state.done:
            raise RunError(
                f"{self.directory.path}: the weights of round {rounds[-1]}, the best so far, are missing (best*."
                "safetensors); put them back, or start a new run"
            )
        best = Selected(self.state.done, self.state.weights)
        self.directory.save_best(best)
        return best

    def _rewind(self) -> None:
        """Go back to the round that all parties agree on."""
        assert self.directory  # noqa: S101
        self._agree()
        self.directory.rewrite(self.history)
        self._tell_start()

    def _selected(self) -> tuple[int, Blocks]:
        return (self.best.round, self.best.blocks) if self.best else (self.state.done, self.state.weights)

    def _note_partial(self) -> None:
        """Say how many evaluations could not decide which weights to keep, or when to stop."""
        if self.settings.select == "last" and self.settings.patience is None:
            return
        partial = sum(Part.VALIDATION.word in line.partial for line in self.history)
        if partial:
            self._note(
                f"{partial} of {len(self.history)} evaluations lacked validation rows of absent clients and decided "
                f"nothing; the weights of round {self._selected()[0]} are kept"
            )

    def _due(self, number: int) -> bool:
        """Tell whether a round is one to evaluate after."""
        last = number == self.settings.rounds or bool(self._stopped and number == self.state.done)
        return last or number % self.settings.evaluate_every == 0

    def _round(self) -> None:
        before = self.state
        self.state, sent = advance(self.engine, before, self.settings, self._kept)
        rate = self.settings.rate_of(self.state.done)
        finished = FinishedRound(before, self.state, sent, rate, self.simulation)
        self._evaluate_if_due()
        self._tell(lambda callback: callback.after_round(finished))
        self._evaluate_if_due()  # a callback may have made it the last

    def _fit(self, checkpoint: Checkpoint, where: str) -> dict[str, SiloState]:
        """Return the states of a checkpoint, in the types that they are trained in."""
        weights = {silo: state.weights for silo, state in checkpoint.states.items()}
        states = {}
        for silo, block in fit_blocks(weights, self._like, where).items():
            device = next((tensor.device for tensor in block.values()), None)
            memory = {name: tensor.to(device) for name, tensor in checkpoint.states[silo].memory.items()}
            states[silo] = SiloState(block, memory)
        return states

    def _evaluate_if_due(self) -> bool:
        """Evaluate the whole model if this is a round to do so after, and it was not done before."""
        done = self.state.done
        if not self._due(done) or (self.history and self.history[-1].round == done):
            return False
        measurement, verdict = self.engine.evaluate(self.state.silos, self._judge)
        result = describe_evaluation(
            measurement, self.state, self.settings, seconds=round(self._seconds(), 3), better=verdict == "better"
        )
        if verdict == "diverged":
            trouble = describe_trouble(measurement, self.history) or "reported by the hub that holds the labels"
            raise diverged(trouble, done, self.settings, self._kept())
        if self.settings.select == "best" and result.better:
            best = Selected(done, self.state.weights)
            if self.directory:  # before its line in the history, which never tells of weights that are not there
                self.directory.save_best(best)
            self.best = best
        self.history.append(result)
        if self.directory:
            self.directory.record(result)
        self._tell(lambda callback: callback.after_evaluation(result))
        return True

    def _judge(self, measurement: Measurement) -> Verdict:
        """Judge an evaluation against those before it."""
        return judge(measurement, self.history, self.settings)

    def _seconds(self) -> float:
        return self._before + time.perf_counter() - self._started

    def _save(self) -> None:
        if self.directory:
            state, (start, before) = self.state, self._taken
            lineage = before if state.done == start else self._lineage
            checkpoint = Checkpoint(state.done, state.silos, self._seconds(), state.traffic, self.inputs, lineage)
            self.directory.save(checkpoint)

    def _interrupt(self) -> None:
        """Keep what was done."""
        self._save()
        self._finish("interrupted")

    def _finish(self, status: Literal["finished", "interrupted", "diverged"], *, confirmed: bool = False) -> None:
        selected, blocks = self._selected()
        evaluated = [line for line in self.history if line.round <= selected]
        outcome = Outcome(
            status=status,
            confirmed=confirmed,
            round=self.state.done,
            rounds=self.settings.rounds,
            selected=selected,
            iteration=self.state.done * self.settings.local_steps,
            seconds=round(self._seconds(), 3),
            evaluated=evaluated[-1] if evaluated else None,
            files={},
            stopped=self._stopped,
            cluster=self.simulation.engine.usage if self.simulation else None,
        )
        self.outcome = replace(outcome, findings=self._diagnose(outcome, blocks))
        if self.directory:
            if status == "finished" and self.simulation:
                record_held_out(self.simulation, blocks, selected, self.directory, self._note)
            self.directory.finish(self.outcome, blocks)

    def _diagnose(self, outcome: Outcome, blocks: Blocks) -> tuple[Finding, ...]:
        """Judge the training by all that is known of it here."""
        return diagnose(
            Evidence(
                self.settings,
                outcome.status,
                self.history,
                outcome.selected,
                outcome.stopped,
                self.federation,
                self._probe.seen if self._probe else (),
                contributions(self.simulation, blocks) if self.simulation and outcome.status == "finished" else {},
            )
        )

    def _kept(self) -> str:
        """Say which checkpoint is left of a training that has diverged."""
        if self.directory and (good := self.directory.load()):
            return f" The checkpoint of round {good.round} is kept in {self.directory.path}."
        return ""
