"""A federation in this process, round by round: what ``train`` and the audit are made of, and a user's own loop."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from torch import Tensor, nn

from tdcd.compute import ComputeName, cores
from tdcd.core.aggregators import Aggregator
from tdcd.core.aggregators.base import PREFIX
from tdcd.core.codecs import Codec
from tdcd.core.network import copy_block
from tdcd.core.objectives import Objective
from tdcd.core.optimizers import Optimizer
from tdcd.core.parts import calling
from tdcd.core.state import CARRIED, Memory, SiloState, carried
from tdcd.data.arrays import ArrayLike, IDs, describe_value
from tdcd.data.federation import Federation
from tdcd.data.samples import Samples
from tdcd.engines import LocalEngine, OracleEngine, Training
from tdcd.engines.local import OnGradients
from tdcd.engines.simulation import SimulationEngine
from tdcd.errors import DataError, JobError, join_names, nearest
from tdcd.runs.records import Evaluation
from tdcd.training.clients import ClientMeter, Clients
from tdcd.training.labels import Labels
from tdcd.training.settings import Settings, SiloSettings
from tdcd.training.setup import Models, device_of, prepare, starting_blocks
from tdcd.training.state import State, advance, describe_evaluation

EngineName = Literal["local", "oracle", "ray"]


class Simulation:
    """A federation that is ready to train. It holds nothing that changes: rounds are functions of a state.

    Everything it is given means what it means to ``train``. The loop over rounds is the caller's, so the settings of
    that loop (``evaluate_every``, ``checkpoint_every``, ``select``, ``patience``) have no say here.
    """

    def __init__(
        self,
        federation: Federation,
        models: Models,
        settings: Settings,
        *,
        objective: Objective | None = None,
        optimizer: Optimizer | None = None,
        aggregator: Aggregator | None = None,
        codec: Codec | None = None,
        silos: Mapping[str, SiloSettings] | None = None,
        labels: Labels | None = None,
        validation: Samples | None = None,
        test: Samples | None = None,
        initial: Mapping[str, Mapping[str, ArrayLike]] | None = None,
        batches: Sequence[IDs] | None = None,
        engine: EngineName = "local",
        compute: ComputeName = "auto",
        workers: int | None = None,
        device: str = "cpu",
        address: str | None = None,
        on_gradients: OnGradients | None = None,
    ) -> None:
        """Check that everything fits together, and choose how it is computed.

        Args: see ``train``.
            on_gradients: Is called with the logit gradients that a silo without labels receives: its name, the samples
                (B,) and the gradients (B, E).

        Raises:
            TdcdError: something does not fit; the message says what.
        """
        check_kinds(
            ("federation", federation, Federation, "make one with Federation.from_silos", False),
            ("settings", settings, Settings, "make them with tdcd.Settings(…)", False),
            ("labels", labels, Labels, 'make them with tdcd.Labels(silo="bank", sharing="exact")', True),
            ("validation", validation, Samples, "make them with tdcd.Samples.from_arrays(features, labels)", True),
            ("test", test, Samples, "make them with tdcd.Samples.from_arrays(features, labels)", True),
        )
        if workers is not None and (not isinstance(workers, int | np.integer) or workers < 1):
            raise JobError(f"workers: at least 1 is wanted, not {describe_value(workers)}")
        parts = {"loss": objective, "optimizer": optimizer, "aggregator": aggregator, "codec": codec}
        if chosen := {name: part for name, part in parts.items() if part is not None}:
            settings = settings.replace(**chosen)
        self.federation, self.settings, self.labels = federation, settings, labels or Labels()
        here = device_of("cpu" if engine == "ray" else device)  # a cluster's devices and rows are at its nodes
        if engine != "ray":
            federation = federation.loaded()
            validation, test = (part and part.loaded() for part in (validation, test))
        self.setup = prepare(federation, models, settings, validation, test, here, self.labels, silos)
        self.first = starting_blocks(self.setup.networks, initial, self.setup.label_only)
        """The weights that a training starts from."""
        batch_of = _batches(federation, settings, batches)
        self.training = self.setup.training(settings, federation.rosters, batch_of)
        self.engine = build_engine(
            engine, self.training, compute, workers, device=device, address=address, on_gradients=on_gradients
        )

    def init(self) -> State:
        """Return the state before the first round."""
        return State(0, {silo: SiloState(copy_block(block)) for silo, block in self.first.items()})

    def round(self, state: State) -> State:
        """Return the state after the next round: of the same state always the same, to the bit. Nothing is changed.

        Raises:
            DivergedError: weights are no longer finite.
        """
        self._next(state)
        return advance(self.engine, state, self.settings)[0]

    def evaluate(self, state: State) -> Evaluation:
        """Measure a state: the loss and metrics in ``train``, ``validation`` and ``test``, as far as there are such."""
        self._check(state)
        measurement, _ = self.engine.evaluate(state.silos, lambda _: "worse")
        return describe_evaluation(measurement, state, self.settings)

    def close(self) -> None:
        """Give back what the engine holds elsewhere: on a cluster, memory. No round can be computed after it."""
        self.engine.close()

    def clients(self, state: State) -> Clients:
        """Return each client's loss, gradient norm and drift in the round that begins with a state.

        The round is computed for it, client by client: it costs about two rounds on the "loop" path, and the memory
        for the weights of all clients of a silo.
        """
        return self._meter.measure(state.silos, self._next(state))

    def modules(self, state: State) -> dict[str, nn.Module]:
        """Return each silo's network as an ordinary module with its weights in a state, in evaluation mode."""
        self._check(state)
        weights = state.weights
        return {silo: network.with_weights(weights[silo]) for silo, network in self.setup.networks.items()}

    @cached_property
    def _meter(self) -> ClientMeter:
        if stored := self.setup.train.stored:
            raise JobError(
                f"the numbers of each client are computed in this process, and the rows of silo {join_names(stored)} "
                'are read at the nodes of a cluster only; use engine = "local"'
            )
        return ClientMeter(self.training)

    @cached_property
    def _memory(self) -> dict[str, Memory]:
        """What each silo remembers before the first round: names and shapes stay the same."""
        result: dict[str, Memory] = {silo: {} for silo in self.first}
        for silo, task in self.setup.tasks.items():
            state = SiloState(self.first[silo])
            with calling("aggregator", task.aggregator):
                remembered = task.aggregator.init(copy_block(state.weights))
            sent = carried(task.steps.sent(state, task.network.trainable))
            result[silo] = sent | {PREFIX + name: tensor for name, tensor in remembered.items()}
        return result

    def _next(self, state: State) -> int:
        """Return the number of the round that begins with a state."""
        self._check(state)
        if state.done >= self.settings.rounds:
            raise JobError(f"rounds: the settings have {self.settings.rounds}, and all of them are done; set more")
        return state.done + 1

    def _check(self, state: State) -> None:
        if not isinstance(state, State):
            raise JobError(f"a state is wanted, from init() or round(), not {describe_value(state)}")
        if set(state.silos) != set(self.first):
            raise JobError(f"the state is of another federation, of the silos {', '.join(sorted(state.silos))}")
        for silo, own in state.silos.items():
            _check_alike(f"silo '{silo}': the state is of another network: ", own.weights, self.first[silo])
            for prefix, part in ((CARRIED, "optimizer"), (PREFIX, "aggregator")):
                here, known = (
                    {name: tensor for name, tensor in memory.items() if name.startswith(prefix)}
                    for memory in (own.memory, self._memory[silo])
                )
                if here:  # without, it is remembered afresh
                    _check_alike(f"silo '{silo}': the state is of another {part}: ", here, known)


def _check_alike(what: str, given: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Check that a state has the tensors of this simulation."""
    if strange := sorted(given.keys() ^ like.keys()):
        raise JobError(f"{what}these tensors are not in both: {join_names(strange)}; make one with init()")
    for name, tensor in like.items():
        if given[name].shape != tensor.shape:
            raise JobError(
                f"{what}'{name}' has shape {tuple(given[name].shape)}, here {tuple(tensor.shape)}; make one with init()"
            )


def check_kinds(*arguments: tuple[str, object, type, str, bool]) -> None:
    """Check the types of arguments, which a user of Python can easily mix up, before they turn up as something else.

    Each is its name, its value, what it should be, where to get one, and whether it may be left out.

    Raises:
        JobError: one is of another type.
    """
    for name, value, kind, hint, optional in arguments:
        if not isinstance(value, kind) and not (optional and value is None):
            raise JobError(f"{name}: a {kind.__name__} is wanted, not {describe_value(value)}; {hint}")


def build_engine(
    name: EngineName,
    training: Training,
    compute: ComputeName,
    workers: int | None = None,
    *,
    device: str = "cpu",
    address: str | None = None,
    on_gradients: OnGradients | None = None,
) -> SimulationEngine:
    """Return the engine of that name."""
    for what, word, known in (("engine", name, get_args(EngineName)), ("compute", compute, get_args(ComputeName))):
        if word not in known:
            raise JobError(f"{what}: '{word}' is not known{nearest(str(word), known)}")
    if address is not None and name != "ray":
        raise JobError(f'address: a cluster is joined by engine = "ray" only, not by "{name}"')
    if name == "local":
        return LocalEngine(training, compute, workers or cores(), on_gradients)
    if on_gradients:
        raise JobError(f'engine: "{name}" does not record logit gradients; use engine = "local"')
    if name == "oracle":
        return OracleEngine(training)
    from tdcd.cluster.engine import ClusterEngine
    from tdcd.cluster.ray_fleet import connect

    return ClusterEngine(training, connect(address), compute, workers, device)


def _batches(federation: Federation, settings: Settings, given: Sequence[IDs] | None) -> Callable[[int], Tensor] | None:
    """Return the function that gives round r the mini-batch that the user listed, if they are listed."""
    if given is None:
        settings.batch_of(len(federation))  # too large a batch fails now, not in the first round
        return None
    if settings.participation < 1:
        raise JobError("batches: participation below 1 draws the clients of each round first; leave one of them out")
    if len(given) < settings.rounds:
        raise JobError(f"batches: {len(given)} are given for {settings.rounds} rounds")
    numbers = [federation.numbers(ids, f"batch {index}") for index, ids in enumerate(given)]
    for index, batch in enumerate(numbers):
        if bool((batch.diff() == 0).any()):
            raise DataError(f"batch {index} names an ID twice")
    return lambda number: numbers[number - 1]
