"""TDCD as plainly as it can be written: the oracle that every other implementation is tested against.

Loops over silos, clients and single samples, copies of modules, torch's own optimiser and losses. It shares
nothing with the fast paths but the meaning of a task. Slow on purpose; kept for ever.
"""

import copy
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tdcd.core.aggregators import Average, HubMomentum, HubStep, Median, TrimmedMean
from tdcd.core.codecs import BFloat16, Codec, Codecs, Float16, Plain
from tdcd.core.gradients import PrivateLabels
from tdcd.core.network import Block, named_tensors
from tdcd.core.objectives import BinaryCrossEntropy, CrossEntropy, Huber, Loss, Poisson, SquaredError
from tdcd.core.optimizers import SGD, Adam
from tdcd.core.seeds import client_seed, derive
from tdcd.core.state import SiloState, States
from tdcd.core.task import Round, SiloTask
from tdcd.errors import ModelError


def oracle_round(
    states: States,
    round_: Round,
    tasks: Mapping[str, SiloTask],
    private: PrivateLabels | None = None,
    last: Round | None = None,
    codecs: Codecs | None = None,
    drawn: Mapping[str, Sequence[bool]] | None = None,
    silo_dropout: float = 0.0,
) -> dict[str, SiloState]:
    """Run one communication round of Algorithm 1, with labels at every client or, by Remark 2, in one silo only.

    ``drawn`` tells of each silo's clients which take part, if not all do. With probability ``silo_dropout``, a silo's
    embedding of a sample counts in none of the others' sums.
    """
    zeta, codecs = set(round_.batch.tolist()), codecs or Codecs()
    blocks = {
        silo: {
            name: received(codecs.weights, tensor) if name in task.network.trainable else tensor
            for name, tensor in states[silo].weights.items()
        }
        for silo, task in tasks.items()
    }

    # Lines 8-15: each client computes the embeddings of its samples and sends them to its hub.
    own: dict[str, dict[int, Tensor]] = {silo: {} for silo in tasks}
    for silo, task in tasks.items():
        for k in range(len(task.roster.clients)):
            samples = held_samples(task, k, zeta)
            if samples:
                # The exchange and step 1 are one forward pass: this copy, and what the pass does to its
                # running statistics, is thrown away and done again in step 1.
                model = client_model(task, k, blocks[silo], round_)
                with torch.no_grad():
                    embeddings = model(torch.stack([task.features[p] for p in samples]))
                for p, row in zip(samples, embeddings, strict=True):
                    own[silo][p] = row.detach().clone()  # it may be a view of a weight
    phi = {silo: {p: received(codecs.rows, row) for p, row in rows.items()} for silo, rows in own.items()}

    # Lines 16-20: the hubs exchange, each sums what the others sent.
    phi_minus: dict[str, dict[int, Tensor]] = {silo: {} for silo in tasks}
    for silo in tasks:
        for p in zeta:
            phi_minus[silo][p] = torch.zeros_like(phi[silo][p])
            for other in sorted(tasks):
                if other != silo and not left_out(tasks[other], round_, p, silo_dropout):
                    phi_minus[silo][p] = phi_minus[silo][p] + received(codecs.rows, phi[other][p])
    scores: dict[int, Tensor] = {}  # where the labels are, at the exchange
    if private is not None and set(tasks) != {private.silo}:
        for p in zeta:
            rows = [received(codecs.rows, phi[other][p]) for other in sorted(tasks) if other != private.silo]
            scores[p] = received(codecs.rows, torch.stack(rows).sum(0))
            if private.silo in tasks:
                scores[p] = own[private.silo][p] + scores[p]

    # Lines 21-34: Q local steps at each client, then the hub's average.
    result: dict[str, SiloState] = {}
    for silo, task in tasks.items():
        models, weights, active = [], [], []
        rate, last_rate = round_.of(silo).rate, last.of(silo).rate if last else 0.0
        for k in range(len(task.roster.clients)):
            samples = held_samples(task, k, zeta)
            if drawn is not None and not drawn[silo][k]:
                assert not samples  # noqa: S101
                continue
            model = client_model(task, k, blocks[silo], round_)
            if samples:
                x = torch.stack([task.features[p] for p in samples])
                y = torch.stack([task.labels[p] for p in samples])
                stale = torch.stack([phi_minus[silo][p] for p in samples])
                if private is None or private.silo == silo:
                    backward = by_labels(task.objective, received(codecs.rows, stale), y)
                else:
                    first = torch.stack([scores[p] for p in samples])
                    backward = by_gradients(private, silo, round_, samples, stale, first, codecs.rows)
                known = local_steps(model, x, task, rate, backward, states[silo].memory)
            else:
                known = optimizer_memory(optimizer_of(model, task, rate, states[silo].memory), model, task)
            new = {name: tensor.detach() for name, tensor in named_tensors(model)}
            if type(codecs.weights) is not Plain:  # then the changes travel, and the hub adds them to its own weights
                for name in task.network.trainable:
                    change = received(codecs.weights, new[name] - blocks[silo][name])
                    new[name] = states[silo].weights[name] + change
            models.append(new | known)
            weights.append(1.0 if task.averaging == "uniform" else float(len(samples)))
            active += [models[-1]] if samples else []
        mean: Block = {}
        for name, start in models[0].items():
            if not start.is_floating_point():
                mean[name] = whole_mean([model[name] for model in models], weights)
                continue
            total = sum(w * m[name].double() for w, m in zip(weights, models, strict=True) if w) / sum(weights)
            assert isinstance(total, Tensor)  # noqa: S101
            mean[name] = total.to(start.dtype)
        result[silo] = aggregate(task, states[silo], mean, active, len(tasks), rate, last_rate)
    return result


def left_out(task: SiloTask, round_: Round, p: int, probability: float) -> bool:
    """Tell whether a silo's embedding of sample p is left out in a round: number p of a SplitMix64 generator."""
    z = derive(task.seed, "silo dropout", round_.number, task.silo) + (p + 1) * 0x9E3779B97F4A7C15
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z %= 2**64
        z = (z ^ (z >> shift)) * factor
    z %= 2**64
    return ((z ^ (z >> 31)) >> 11) / 2**53 < probability


def received(codec: Codec, tensor: Tensor) -> Tensor:
    """Return numbers as they are after they were sent.

    Raises:
        ModelError: it is a codec that the oracle does not know.
    """
    if type(codec) is Plain:
        return tensor
    if type(codec) is Float16:
        return tensor.to(torch.float16).to(tensor.dtype)
    if type(codec) is BFloat16:
        return tensor.to(torch.bfloat16).to(tensor.dtype)
    raise ModelError(f"the oracle does not know the codec {type(codec).__name__}; use another engine")


def aggregate(
    task: SiloTask, state: SiloState, mean: Block, active: list[Block], silos: int, rate: float, last_rate: float
) -> SiloState:
    """Make a silo's new weights of its clients', number by number.

    Raises:
        ModelError: it is an aggregator that the oracle does not know.
    """
    rule, old, memory = task.aggregator, state.weights, dict(state.memory)
    for name in [name for name in mean if name.startswith("optimizer/")]:
        average = mean.pop(name)  # of all clients; or of those that took part, where only they count
        memory[name] = average if rule.linear else sum(model[name] for model in active) / len(active)  # type: ignore[assignment]
    if type(rule) is Average:
        return SiloState(mean, memory)
    if type(rule) is Median:
        return SiloState({name: per_number([m[name] for m in active], statistics.median) for name in old}, memory)
    if type(rule) is TrimmedMean:
        cut = math.floor(Fraction(str(rule.fraction)) * len(active))
        inner = slice(cut, len(active) - cut)
        return SiloState(
            {name: per_number([m[name] for m in active], lambda x: statistics.fmean(sorted(x)[inner])) for name in old},
            memory,
        )
    if not isinstance(rule, HubStep | HubMomentum) or type(rule) not in (HubStep, HubMomentum):
        raise ModelError(f"the oracle does not know the aggregator {type(rule).__name__}; use another engine")
    beta = 1 / silos if rule.size == "1/N" else rule.size
    new = dict(mean)
    for name in task.network.trainable:
        change = mean[name] - old[name]
        if type(rule) is HubMomentum:
            before = memory.get(f"aggregator/{name}")
            if before is not None and last_rate:
                change = change + before * (rule.momentum * rate / last_rate)
            memory[f"aggregator/{name}"] = change
        new[name] = old[name] + beta * change
    return SiloState(new, memory)


def per_number(tensors: list[Tensor], middle: Callable[[list[float]], float]) -> Tensor:
    """Make one tensor of several, each number of the numbers in its place."""
    columns = zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
    values = [middle(list(column)) for column in columns]
    whole = not tensors[0].is_floating_point()
    return torch.tensor([round(v) if whole else v for v in values], dtype=tensors[0].dtype).reshape(tensors[0].shape)


def whole_mean(tensors: list[Tensor], weights: list[float]) -> Tensor:
    """Return the mean of whole numbers, rounded, a half to the even one; in fractions, which have no largest number."""
    total = Fraction(sum(weights))
    numbers = [
        round(sum((Fraction(w) * int(n) for w, n in zip(weights, column, strict=True)), Fraction(0)) / total)
        for column in zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
    ]
    return torch.tensor(numbers, dtype=torch.int64).to(tensors[0].dtype).reshape(tensors[0].shape)


def held_samples(task: SiloTask, k: int, zeta: set[int]) -> list[int]:
    """Return ζ_{k,j}: the samples of the batch that client k of the silo holds."""
    return sorted(p for p in zeta if int(task.roster.owner[p]) == k)


def client_model(task: SiloTask, k: int, block: Block, round_: Round) -> nn.Module:
    """Return the client's own copy of the network with the hub's weights, its random stream at its start."""
    model = copy.deepcopy(task.network.module)
    with torch.no_grad():
        for name, tensor in named_tensors(model):
            tensor.copy_(block[name])
    model.train()
    torch.manual_seed(client_seed(task.seed, round_.number, task.silo, task.roster.clients[k]))
    return model


Backward = Callable[[int, Tensor], None]
"""Carries the gradient of a client's mean loss from its embeddings (n, E) at step 0, 1, … back to its weights."""


def local_steps(
    model: nn.Module, x: Tensor, task: SiloTask, rate: float, backward: Backward, memory: Mapping[str, Tensor]
) -> Block:
    """Take Q gradient steps on the client's rows (Equation 5); return what its optimizer remembers, if that is kept."""
    optimizer = optimizer_of(model, task, rate, memory)
    if optimizer is None:
        for _ in range(task.steps.count):
            model(x.clone())
        return {}
    first = {p: p.detach().clone() for p in model.parameters()}
    for step in range(task.steps.count):
        optimizer.zero_grad()
        backward(step, model(x.clone()))  # a network may write to its rows: every step sees the same
        if task.steps.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), task.steps.clip_norm)
        for p in model.parameters():
            if p.grad is not None:
                p.grad += task.steps.proximal * (p.detach() - first[p])
        optimizer.step()
    return optimizer_memory(optimizer, model, task)


def optimizer_of(
    model: nn.Module, task: SiloTask, rate: float, memory: Mapping[str, Tensor]
) -> torch.optim.Optimizer | None:
    """Return torch's own optimizer for a client's weights, as it left the last round if that is kept.

    Raises:
        ModelError: it is an optimizer that the oracle does not know.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    rule, decay = task.steps.optimizer, task.steps.weight_decay
    if type(rule) not in (SGD, Adam):
        raise ModelError(f"the oracle does not know the optimizer {type(rule).__name__}; use another engine")
    if not parameters:
        return None
    optimizer: torch.optim.Optimizer
    if isinstance(rule, Adam):
        betas = (rule.beta1, rule.beta2)
        optimizer = torch.optim.Adam(parameters, lr=rate, betas=betas, eps=rule.epsilon, weight_decay=decay)
    else:
        momentum = rule.momentum if isinstance(rule, SGD) else 0.0
        optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)
    for name, p in model.named_parameters():
        if p.requires_grad:
            for key in MEMORIES:
                if (known := memory.get(f"optimizer/{key}/{name}")) is not None:
                    optimizer.state[p][key] = known.clone()
    return optimizer


MEMORIES = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")
"""What torch's optimizers remember of each weight."""


def optimizer_memory(optimizer: torch.optim.Optimizer | None, model: nn.Module, task: SiloTask) -> Block:
    """Return what an optimizer remembers, if it is kept; of a weight that it has not moved yet, zeros."""
    if optimizer is None or not task.steps.carry:
        return {}
    keys = MEMORIES[1:] if isinstance(task.steps.optimizer, Adam) else MEMORIES[:1]
    result = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            known = optimizer.state.get(p, {})
            for key in keys:
                zeros = torch.zeros(()) if key == "step" else torch.zeros_like(p)
                value = known.get(key)
                value = zeros if value is None else value.detach().clone()
                # the mean of clients that have taken steps and of others is no whole number
                result[f"optimizer/{key}/{name}"] = value.double() if key == "step" else value
    return result


def by_labels(objective: Loss, stale: Tensor, y: Tensor) -> Backward:
    """A client that has the labels of its rows."""
    return lambda _, embeddings: mean_loss(objective, embeddings + stale, y).backward()  # type: ignore[no-untyped-call]


def by_gradients(
    private: PrivateLabels,
    silo: str,
    round_: Round,
    samples: list[int],
    stale: Tensor,
    first: Tensor,
    codec: Codec,
) -> Backward:
    """A client without labels: it receives ∂ℓ/∂z, sample by sample, from the clients that have them.

    ``first`` are the scores of its samples at the exchange. Whatever travels goes through the codec.
    """
    batch = round_.batch.tolist()

    def backward(step: int, embeddings: Tensor) -> None:
        scores = received(codec, received(codec, embeddings.detach()) + stale)
        if step == 0 or private.sharing == "stale":
            step, scores = 0, first
        noise = private.noise(round_.number, silo, step, scores.new_empty(len(batch), scores.shape[1]))
        gradients = []
        for p, z in zip(samples, scores, strict=True):
            z = z.detach().clone().requires_grad_()
            mean_loss(private.objective, z.unsqueeze(0), private.labels[p : p + 1]).backward()  # type: ignore[no-untyped-call]
            assert z.grad is not None  # noqa: S101
            gradient = z.grad
            if private.privatizer is not None:
                gradient = gradient * min(1.0, private.privatizer.clip / max(float(gradient.norm()), 1e-300))
                if noise is not None:
                    gradient = gradient + private.privatizer.clip * private.privatizer.noise * noise[batch.index(p)]
            gradients.append(received(codec, gradient))
        embeddings.backward(torch.stack(gradients) / len(samples))  # type: ignore[no-untyped-call]

    return backward


def mean_loss(objective: Loss, scores: Tensor, labels: Tensor) -> Tensor:
    """Return Equation 4's mean loss with torch's own functions.

    Raises:
        ModelError: it is a loss that the oracle does not know; a class made from one that it knows may differ from it.
    """
    if type(objective) is CrossEntropy:
        return F.cross_entropy(scores, labels)
    if type(objective) is BinaryCrossEntropy:
        weight = torch.tensor(objective.positive_weight, dtype=scores.dtype)
        return F.binary_cross_entropy_with_logits(scores[:, 0], labels, pos_weight=weight)
    if type(objective) is SquaredError:
        return F.mse_loss(scores, labels)
    if type(objective) is Huber:
        return F.huber_loss(scores, labels, delta=objective.delta)
    if type(objective) is Poisson:
        return F.poisson_nll_loss(scores, labels, log_input=True, full=False)
    raise ModelError(f"the oracle does not know the loss {type(objective).__name__}; use another engine")
