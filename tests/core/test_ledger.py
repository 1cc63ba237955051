"""The ledger against a count by hand, and against a post office that carries every message of Algorithm 1."""

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from support import Problem, distance, examples, one_round, problems
from tdcd.core.aggregators import Average
from tdcd.core.codecs import Codecs
from tdcd.core.gradients import PrivateLabels
from tdcd.core.ledger import Ledger, Traffic
from tdcd.core.network import Block, Blocks, named_tensors
from tdcd.core.optimizers import SGD
from tdcd.core.oracle import by_labels, client_model, held_samples, local_steps, mean_loss
from tdcd.core.script import Sharing, plan_rounds
from tdcd.core.task import SiloTask


def ledger_of(
    owners: Mapping[str, Any],
    clients: Mapping[str, int],
    blocks: Mapping[str, int],
    row: int,
    *,
    label_holder: str | None = None,
    requests: int = 1,
) -> Ledger:
    """Make a ledger of silos that have features if they have a block; so many gradient requests are as many steps."""
    steps = dict.fromkeys(blocks, requests)
    plan = plan_rounds(steps, "exact" if label_holder else "shared", label_holder, set(owners) - set(blocks))
    return Ledger(plan, steps, owners, clients, blocks, row)


def test_a_count_by_hand() -> None:
    """Two silos, eight samples, a batch of five: 3 classes of 4 bytes, so a row is 12 bytes."""
    ledger = ledger_of(
        owners={"bank": np.array([0, 0, 0, 0, 1, 1, 1, 1]), "insurer": np.array([0, 1, 2, 0, 1, 2, 0, 1])},
        clients={"bank": 2, "insurer": 3},
        blocks={"bank": 100, "insurer": 1000},
        row=12,
    )
    rows = ledger.counts(np.array([0, 1, 2, 3, 6]))  # bank: 4 and 1; insurer: 0, 3, 6 / 1 / 2
    assert {silo: own.tolist() for silo, own in rows.items()} == {"bank": [4, 1], "insurer": [3, 1, 1]}
    # bank:    2 clients, each a block and its rows, down and up: 2 · 100 + 5 · 12 = 260
    # insurer: 3 clients: 3 · 1000 + 60 = 3060
    # hubs:    each sends 5 rows to one other: 2 · 60 = 120
    assert ledger.traffic(rows) == Traffic(client_to_hub=3320, hub_to_client=3320, hub_to_hub=120)
    rows = ledger.counts(np.array([0, 3]))  # only one client of each silo has rows
    assert ledger.traffic(rows) == Traffic(100 + 24 + 1000 + 24, 100 + 24 + 1000 + 24, 48)
    assert (ledger.traffic(rows) + Traffic(1, 2, 3)).total == 2 * 1148 + 48 + 6


def test_three_hubs_send_to_two_others_each_and_one_hub_to_nobody() -> None:
    owner, batch = np.zeros(4, dtype=np.uint8), np.arange(4)
    three = ledger_of(dict.fromkeys("abc", owner), dict.fromkeys("abc", 1), dict.fromkeys("abc", 10), 8)
    assert three.traffic(three.counts(batch)).hub_to_hub == 3 * 2 * 4 * 8
    one = ledger_of({"a": owner}, {"a": 1}, {"a": 10}, 8)
    assert one.traffic(one.counts(batch)).hub_to_hub == 0


class PostOffice:
    """Carries tensors and weighs them."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()

    def carry(self, way: str, tensor: Tensor) -> Tensor:
        self.bytes[way] += tensor.nbytes
        return tensor.clone()

    def carry_block(self, way: str, block: Block) -> Block:
        return {name: self.carry(way, tensor) for name, tensor in block.items()}


def test_a_count_by_hand_where_one_silo_keeps_the_labels() -> None:
    """The federation above; the bank has the labels, the insurer asks."""
    owners = {"bank": np.array([0, 0, 0, 0, 1, 1, 1, 1]), "insurer": np.array([0, 1, 2, 0, 1, 2, 0, 1])}
    clients, blocks = {"bank": 2, "insurer": 3}, {"bank": 100, "insurer": 1000}
    stale = ledger_of(owners, clients, blocks, 12, label_holder="bank")
    rows = stale.counts(np.array([0, 1, 2, 3, 6]))
    # bank:    up 2 blocks, 5 rows of embeddings, 5 answers; down 2 blocks, 5 rows of the insurer's embeddings
    # insurer: up 3 blocks and 5 rows; down 3 blocks and 5 answers
    # hubs:    5 rows to the bank, 5 answers back
    assert stale.traffic(rows) == Traffic(200 + 60 + 60 + 3000 + 60, 200 + 60 + 3000 + 60, 120)
    exact = ledger_of(
        owners, clients, blocks, 12, label_holder="bank", requests=4
    )  # three times more: rows and answers everywhere
    more = 3 * 60
    assert exact.traffic(rows) == Traffic(3380 + 2 * more, 3320 + 2 * more, 120 + 2 * more)
    label_only = ledger_of(owners, clients, {"insurer": 1000}, 12, label_holder="bank")  # the bank has labels only
    assert label_only.traffic(rows) == Traffic(60 + 3000 + 60, 60 + 3000 + 60, 120)
    alone = ledger_of({"bank": owners["bank"]}, {"bank": 2}, {"bank": 100}, 12, label_holder="bank")
    assert alone.traffic(rows) == Traffic(260, 260, 0)  # nobody asks


def posted_round(problem: Problem, blocks: Blocks, number: int, post: PostOffice) -> Blocks:
    """Run a round in which clients and hubs know nothing but what the post office brought them."""
    round_, drawn = problem.round(number), problem.drawn_clients(number)
    zeta, tasks = set(round_.batch.tolist()), problem.tasks
    at_client: dict[tuple[str, int], Block] = {}
    at_hub: dict[str, dict[int, Tensor]] = {silo: {} for silo in tasks}
    for silo, task in tasks.items():
        for k in range(len(task.roster.clients)):
            held = held_samples(task, k, zeta)
            if held:
                if problem.participation < 1:
                    post.carry("hub_to_client", torch.tensor(held))
                at_client[silo, k] = post.carry_block("hub_to_client", blocks[silo])
                model = client_model(task, k, at_client[silo, k], round_)
                with torch.no_grad():
                    sent = post.carry("client_to_hub", model(torch.stack([task.features[p] for p in held])))
                at_hub[silo] |= dict(zip(held, sent, strict=True))
    order = sorted(zeta)
    mailed = {
        (silo, other): dict(
            zip(order, post.carry("hub_to_hub", torch.stack([at_hub[other][p] for p in order])), strict=True)
        )
        for silo in tasks
        for other in tasks
        if other != silo
    }
    result: dict[str, Block] = {}
    for silo, task in tasks.items():
        others = [other for other in sorted(tasks) if other != silo]
        returned, weights = [], []
        for k in range(len(task.roster.clients)):
            held = held_samples(task, k, zeta)
            if not held:  # its hub knows what it has: the weights of the last round
                returned.append(blocks[silo])
                weights.append(1.0 if task.averaging == "uniform" and drawn[silo][k] else 0.0)
                continue
            sums = [sum((mailed[silo, other][p] for other in others), torch.zeros_like(at_hub[silo][p])) for p in held]
            stale = post.carry("hub_to_client", torch.stack(sums))
            model = client_model(task, k, at_client[silo, k], round_)
            x, y = torch.stack([task.features[p] for p in held]), torch.stack([task.labels[p] for p in held])
            local_steps(model, x, task, round_.of(silo).rate, by_labels(task.objective, stale, y), {})
            record = {name: tensor.detach() for name, tensor in named_tensors(model)}
            returned.append(post.carry_block("client_to_hub", record))
            weights.append(1.0 if task.averaging == "uniform" else float(len(held)))
        total = sum(weights)
        result[silo] = {}
        for name, start in blocks[silo].items():
            mean = sum((w / total * b[name].double() for w, b in zip(weights, returned, strict=True)), torch.zeros(()))
            result[silo][name] = (mean if start.is_floating_point() else mean.round()).to(start.dtype)
    return result


def asking_round(
    problem: Problem, blocks: Blocks, number: int, post: PostOffice, label_holder: str, sharing: Sharing
) -> Blocks:
    """Run a round in which only the clients of one silo have labels, all silos step by step together.

    ``label_holder`` may be a silo without features; then it has one client.
    """
    round_, tasks, drawn = problem.round(number), problem.tasks, problem.drawn_clients(number)
    zeta, order = set(round_.batch.tolist()), round_.batch.tolist()
    labels, owner = problem.tasks["silo-0"].labels, problem.tasks.get(label_holder)
    holders = {0: order}
    if owner:
        holders = {k: own for k in range(len(owner.roster.clients)) if (own := held_samples(owner, k, zeta))}
    elif problem.participation < 1:
        post.carry("hub_to_client", torch.tensor(order))

    def by_sample(rows: Tensor, samples: list[int]) -> dict[int, Tensor]:
        return dict(zip(samples, rows, strict=True))

    models: dict[tuple[str, int], nn.Module] = {}
    held = {
        (j, k): s for j, t in tasks.items() for k in range(len(t.roster.clients)) if (s := held_samples(t, k, zeta))
    }
    now: dict[str, dict[int, Tensor]] = {silo: {} for silo in tasks}
    for (silo, k), samples in held.items():
        if problem.participation < 1:
            post.carry("hub_to_client", torch.tensor(samples))
        models[silo, k] = client_model(tasks[silo], k, post.carry_block("hub_to_client", blocks[silo]), round_)
        with torch.no_grad():
            match = copy.deepcopy(models[silo, k])(torch.stack([tasks[silo].features[p] for p in samples]))
        now[silo] |= by_sample(post.carry("client_to_hub", match), samples)

    def answer(scores: dict[int, Tensor], know_own: bool) -> dict[int, Tensor]:
        """The hub of the labels asks its clients; the first time they add their own embeddings to what it sends."""
        record: dict[int, Tensor] = {}
        for samples in holders.values():
            own = torch.stack([now[label_holder][p] if know_own else torch.zeros_like(scores[p]) for p in samples])
            sent = post.carry("hub_to_client", torch.stack([scores[p] for p in samples]) - own)
            z = (sent + own).requires_grad_()
            y = torch.stack([labels[p] for p in samples])
            (mean_loss(problem.objective, z, y) * len(samples)).backward()  # type: ignore[no-untyped-call]
            assert z.grad is not None
            record |= by_sample(post.carry("client_to_hub", z.grad), samples)
        return record

    def mailed(rows: dict[int, Tensor]) -> dict[int, Tensor]:
        return by_sample(post.carry("hub_to_hub", torch.stack([rows[p] for p in order])), order)

    first = {silo: dict(rows) for silo, rows in now.items()}
    askers = [silo for silo in tasks if silo != label_holder]
    optimisers = {who: sgd(model, tasks[who[0]], round_.of(who[0]).rate) for who, model in models.items()}
    for turn in range(max(tasks[silo].steps.count for silo in askers) if sharing == "exact" else 1):
        askers = [silo for silo in askers if turn < tasks[silo].steps.count]
        at_keeper = {silo: mailed(now[silo]) for silo in askers}
        record: dict[str, dict[int, Tensor]] = {}
        if turn == 0:
            total = {p: sum((rows[p] for rows in first.values()), torch.zeros(())) for p in order}
            record = dict.fromkeys(askers, answer(total, label_holder in tasks))
        else:
            for silo in askers:
                others = [rows for other, rows in first.items() if other != silo]
                z = {p: sum((rows[p] for rows in others), at_keeper[silo][p]) for p in order}
                record[silo] = answer(z, know_own=False)
        for silo in askers:
            at_hub = mailed(record[silo])
            for (j, k), samples in held.items():
                if j != silo:
                    continue
                task, model = tasks[silo], models[silo, k]
                x = torch.stack([task.features[p] for p in samples])
                answers = post.carry("hub_to_client", torch.stack([at_hub[p] for p in samples]))
                for _ in range(task.steps.count if sharing == "stale" else 1):
                    step(model, x, answers, task, optimisers[silo, k])
                if sharing == "exact" and turn < task.steps.count - 1:
                    with torch.no_grad():
                        match = copy.deepcopy(model)(x)
                    now[silo] |= by_sample(post.carry("client_to_hub", match), samples)
    for (silo, k), samples in held.items():
        if silo == label_holder:
            task = tasks[silo]
            x, y = torch.stack([task.features[p] for p in samples]), torch.stack([labels[p] for p in samples])
            sums = [
                sum((first[o][p] for o in sorted(first) if o != silo), torch.zeros_like(first[silo][p]))
                for p in samples
            ]
            backward = by_labels(task.objective, torch.stack(sums), y)
            local_steps(models[silo, k], x, task, round_.of(silo).rate, backward, {})
    result: dict[str, Block] = {}
    for silo, task in tasks.items():
        returned, weights = [], []
        for k in range(len(task.roster.clients)):
            if (silo, k) in held:
                match = {name: tensor.detach() for name, tensor in named_tensors(models[silo, k])}
                returned.append(post.carry_block("client_to_hub", match))
            else:
                returned.append(blocks[silo])
            uniform = task.averaging == "uniform"
            weights.append(float(drawn[silo][k]) if uniform else float(len(held.get((silo, k), ()))))
        total_weight = sum(weights)
        result[silo] = {}
        for name, start in blocks[silo].items():
            mean = sum(
                (w / total_weight * b[name].double() for w, b in zip(weights, returned, strict=True)), torch.zeros(())
            )
            result[silo][name] = (mean if start.is_floating_point() else mean.round()).to(start.dtype)
    return result


def sgd(model: nn.Module, task: SiloTask, rate: float) -> torch.optim.SGD | None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        return None
    return torch.optim.SGD(parameters, rate, weight_decay=task.steps.weight_decay)


def step(model: nn.Module, x: Tensor, answers: Tensor, task: SiloTask, optimiser: torch.optim.SGD | None) -> None:
    embeddings = model(x)
    if optimiser is None:
        return
    optimiser.zero_grad()
    embeddings.backward(answers / len(x))
    if task.steps.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), task.steps.clip_norm)
    optimiser.step()


def plain(problem: Problem) -> Problem:
    """Return it without what the rounds above leave out."""
    tasks = {silo: replace(task, steps=replace(task.steps, proximal=0.0)) for silo, task in problem.tasks.items()}
    return replace(problem, tasks=tasks)


KINDS = ["linear", "mlp", "lstm", "cnn-batchnorm", "odd", "fixed"]


@settings(max_examples=examples(40))
@given(
    problems(KINDS, [Average()], [SGD()], codings=[Codecs()]),
    st.sampled_from(["silo-0", "silo-1", "registry"]),
    st.sampled_from(["exact", "stale"]),
)
def test_it_weighs_what_a_post_office_carries_where_one_silo_keeps_the_labels(
    problem: Problem, label_holder: str, sharing: Sharing
) -> None:
    problem = plain(problem)
    tasks = problem.tasks
    if label_holder == "silo-1" and label_holder not in tasks:
        label_holder = "registry"
    if not set(tasks) - {label_holder}:
        return
    private = PrivateLabels(label_holder, sharing, tasks["silo-0"].labels, problem.objective)
    ledger = problem.training(private).ledger()
    blocks = problem.initial()
    for number in (1, 2):
        post = PostOffice()
        expected = one_round(problem.engine("oracle", private=private), blocks, problem.round(number))
        blocks = asking_round(problem, blocks, number, post, label_holder, sharing)
        assert distance(blocks, expected) < 1e-9
        result = ledger.traffic(ledger.counts(problem.round(number).batch.numpy()))
        assert result == Traffic(**{way: post.bytes[way] for way in ("client_to_hub", "hub_to_client", "hub_to_hub")})


@settings(max_examples=examples(40))
@given(problems(KINDS, [Average()], [SGD()], codings=[Codecs()]))
def test_it_weighs_what_a_post_office_carries(problem: Problem) -> None:
    problem = plain(problem)
    ledger = problem.training().ledger()
    blocks = problem.initial()
    for number in (1, 2):
        post = PostOffice()
        expected = one_round(problem.engine("oracle"), blocks, problem.round(number))
        blocks = posted_round(problem, blocks, number, post)
        assert distance(blocks, expected) < 1e-9  # these messages are enough to train with
        result = ledger.traffic(ledger.counts(problem.round(number).batch.numpy()))
        assert result == Traffic(**{way: post.bytes[way] for way in ("client_to_hub", "hub_to_client", "hub_to_hub")})
