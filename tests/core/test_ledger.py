"""The ledger against a count by hand, and against a post office that carries every message of Algorithm 1."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from torch import Tensor

from support import Problem, distance, problems
from tdcd.core.ledger import Ledger, Traffic
from tdcd.core.network import Block, Blocks, named_tensors
from tdcd.core.oracle import client_model, held_samples, local_steps, oracle_round


def test_a_count_by_hand() -> None:
    """Two silos, eight samples, a batch of five: 3 classes of 4 bytes, so a row is 12 bytes."""
    ledger = Ledger(
        owners={"bank": np.array([0, 0, 0, 0, 1, 1, 1, 1]), "insurer": np.array([0, 1, 2, 0, 1, 2, 0, 1])},
        clients={"bank": 2, "insurer": 3},
        blocks={"bank": 100, "insurer": 1000},
        row=12,
    )
    rows = ledger.rows(np.array([0, 1, 2, 3, 6]))  # bank: 4 and 1; insurer: 0, 3, 6 / 1 / 2
    assert {silo: own.tolist() for silo, own in rows.items()} == {"bank": [4, 1], "insurer": [3, 1, 1]}
    # bank:    2 clients, each a block and its rows, down and up: 2 · 100 + 5 · 12 = 260
    # insurer: 3 clients: 3 · 1000 + 60 = 3060
    # hubs:    each sends 5 rows to one other: 2 · 60 = 120
    assert ledger.traffic(rows) == Traffic(client_to_hub=3320, hub_to_client=3320, hub_to_hub=120)
    rows = ledger.rows(np.array([0, 3]))  # only one client of each silo has rows
    assert ledger.traffic(rows) == Traffic(100 + 24 + 1000 + 24, 100 + 24 + 1000 + 24, 48)
    assert (ledger.traffic(rows) + Traffic(1, 2, 3)).total == 2 * 1148 + 48 + 6


def test_three_hubs_send_to_two_others_each_and_one_hub_to_nobody() -> None:
    owner, batch = np.zeros(4, dtype=np.uint8), np.arange(4)
    three = Ledger(dict.fromkeys("abc", owner), dict.fromkeys("abc", 1), dict.fromkeys("abc", 10), 8)
    assert three.traffic(three.rows(batch)).hub_to_hub == 3 * 2 * 4 * 8
    one = Ledger({"a": owner}, {"a": 1}, {"a": 10}, 8)
    assert one.traffic(one.rows(batch)).hub_to_hub == 0


class PostOffice:
    """Carries tensors and weighs them."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()

    def carry(self, way: str, tensor: Tensor) -> Tensor:
        self.bytes[way] += tensor.nbytes
        return tensor.clone()

    def carry_block(self, way: str, block: Block) -> Block:
        return {name: self.carry(way, tensor) for name, tensor in block.items()}


def posted_round(problem: Problem, blocks: Blocks, number: int, post: PostOffice) -> Blocks:
    """Run a round in which clients and hubs know nothing but what the post office brought them."""
    round_ = problem.round(number)
    zeta, tasks = set(round_.batch.tolist()), problem.tasks
    at_client: dict[tuple[str, int], Block] = {}
    at_hub: dict[str, dict[int, Tensor]] = {silo: {} for silo in tasks}
    for silo, task in tasks.items():
        for k in range(len(task.roster.clients)):
            held = held_samples(task, k, zeta)
            if held:
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
                weights.append(1.0 if task.averaging == "uniform" else 0.0)
                continue
            sums = [sum((mailed[silo, other][p] for other in others), torch.zeros_like(at_hub[silo][p])) for p in held]
            stale = post.carry("hub_to_client", torch.stack(sums))
            model = client_model(task, k, at_client[silo, k], round_)
            x, y = torch.stack([task.features[p] for p in held]), torch.stack([task.labels[p] for p in held])
            local_steps(model, x, y, stale, task, round_.rate)
            found = {name: tensor.detach() for name, tensor in named_tensors(model)}
            returned.append(post.carry_block("client_to_hub", found))
            weights.append(1.0 if task.averaging == "uniform" else float(len(held)))
        total = sum(weights)
        result[silo] = {}
        for name, start in blocks[silo].items():
            mean = sum((w / total * b[name].double() for w, b in zip(weights, returned, strict=True)), torch.zeros(()))
            result[silo][name] = (mean if start.is_floating_point() else mean.round()).to(start.dtype)
    return result


@settings(max_examples=40)
@given(problems(["linear", "mlp", "lstm", "cnn-batchnorm", "odd", "fixed"]))
def test_it_weighs_what_a_post_office_carries(problem: Problem) -> None:
    ledger = Ledger(
        owners={silo: task.roster.owner.numpy() for silo, task in problem.tasks.items()},
        clients={silo: len(task.roster.clients) for silo, task in problem.tasks.items()},
        blocks={silo: sum(t.nbytes for t in block.values()) for silo, block in problem.initial().items()},
        row=next(iter(problem.tasks.values())).width * 8,
    )
    blocks = problem.initial()
    for number in (1, 2):
        post = PostOffice()
        expected = oracle_round(blocks, problem.round(number), problem.tasks)
        blocks = posted_round(problem, blocks, number, post)
        assert distance(blocks, expected) < 1e-9  # these messages are enough to train with
        found = ledger.traffic(ledger.rows(problem.round(number).batch.numpy()))
        assert found == Traffic(**{way: post.bytes[way] for way in ("client_to_hub", "hub_to_client", "hub_to_hub")})
