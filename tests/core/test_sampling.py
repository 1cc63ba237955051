from itertools import combinations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdcd.core.sampling import Holders, draw_batch, draw_participants, participants
from tdcd.core.seeds import client_seed, derive, derive_each


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 300), st.data())
def test_a_batch_is_a_set_of_samples(seed: int, number: int, population: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, population))
    batch = draw_batch(seed, number, population, size)
    values = batch.tolist()
    assert len(values) == size
    assert values == sorted(set(values))
    assert values[0] >= 0
    assert values[-1] < population


def test_a_batch_is_a_pure_function_of_seed_and_round() -> None:
    torch.manual_seed(1)
    first = draw_batch(2021, 3, 100, 10)
    torch.manual_seed(2)
    draw_batch(2021, 9, 100, 10)
    assert torch.equal(first, draw_batch(2021, 3, 100, 10))
    assert not torch.equal(first, draw_batch(2021, 4, 100, 10))
    assert not torch.equal(first, draw_batch(2022, 3, 100, 10))


def test_batches_are_the_same_on_every_machine() -> None:
    """Pinned: sites compute them by themselves, perhaps with another release of tdcd or numpy."""
    assert draw_batch(2021, 1, 1000, 6).tolist() == [212, 285, 342, 424, 655, 701]
    assert derive(2021, "a", 1) == 8698208656850620694


def test_every_sample_is_drawn_equally_often() -> None:
    counts = torch.zeros(20)
    for number in range(2000):
        counts[draw_batch(1, number, 20, 5)] += 1
    assert counts.min() > 400
    assert counts.max() < 600


def test_seeds_depend_on_every_word() -> None:
    seeds = {
        derive(seed, *words)
        for seed in (1, 11)
        for words in (("a", "b"), ("ab",), ("a", "b", ""), ("b", "a"), (1, "a"), ("1", "b"))
    }
    assert len(seeds) == 12
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert client_seed(1, 2, "bank", "north") != client_seed(1, 3, "bank", "north")
    assert client_seed(1, 2, "bank", "north") != client_seed(1, 2, "bank", "south")


@given(st.integers(0, 10**6), st.text(), st.lists(st.text() | st.integers(), max_size=20))
def test_many_seeds_at_once_are_those_of_each(seed: int, word: str, last: list[str | int]) -> None:
    assert derive_each(seed, word, last).tolist() == [derive(seed, word, one) for one in last]


TINY = {
    "bank": Holders(np.array([0, 0, 0, 1, 1, 2]), 3),
    "insurer": Holders(np.array([0, 1, 0, 0, 1, 0]), 2),
}


def test_a_part_of_the_clients_is_drawn_and_at_least_one() -> None:
    assert [participants(10, f) for f in (0.01, 0.1, 0.26, 0.5, 1.0)] == [1, 1, 3, 5, 10]
    drawn, eligible = draw_participants(7, 1, TINY, 0.5)
    assert {silo: int(mask.sum()) for silo, mask in drawn.items()} == {"bank": 2, "insurer": 1}
    holders = zip(TINY["bank"].owner, TINY["insurer"].owner, strict=True)
    there = [drawn["bank"][b] and drawn["insurer"][i] for b, i in holders]
    assert eligible.tolist() == there


def test_how_often_samples_are_drawn_where_clients_take_turns() -> None:
    """Every sample is as likely to have its clients there; with fewer others beside it, it is drawn more often."""
    size, expected, ways = 2, np.zeros(6), 0
    for pair in combinations(range(3), 2):
        for one in range(2):
            there = np.isin(TINY["bank"].owner, pair) & (TINY["insurer"].owner == one)
            if there.any():  # or else clients are drawn anew
                ways += 1
                expected += there * min(1.0, size / there.sum())
    expected /= ways
    rounds = 20_000
    counts = np.zeros(6)
    for number in range(rounds):
        _, eligible = draw_participants(1, number, TINY, 0.5)
        batch = draw_batch(1, number, 6, size, eligible)
        assert len(batch) == min(size, int(eligible.sum()))
        assert eligible[batch].all()
        counts[batch] += 1
    assert np.abs(counts / rounds - expected).max() < 4 * np.sqrt(0.25 / rounds)
    assert expected.max() > 1.3 * expected.min()  # the bias is one that can be seen


def test_a_mini_batch_is_full_as_long_as_rows_are_there() -> None:
    """Were the mini-batch drawn before the clients, a half to the third power would be left of it."""
    generator = np.random.default_rng(0)
    holders = {silo: Holders(generator.integers(10, size=2000), 10) for silo in "abc"}
    for number in range(50):
        _, eligible = draw_participants(3, number, holders, 0.5)
        assert 150 < eligible.sum() < 350  # an eighth of 2,000
        assert len(draw_batch(3, number, 2000, 100, eligible)) == 100


def test_a_sample_is_drawn_where_clients_hardly_ever_meet() -> None:
    """Four silos of 50 clients with one sample each: of one client a silo, all four hold the same once in 125,000."""
    holders = {silo: Holders(np.roll(np.arange(50), place * 7), 50) for place, silo in enumerate("abcd")}
    for number in range(20):
        for part in (0.01, 0.04):
            drawn, eligible = draw_participants(2021, number, holders, part)
            assert [mask.sum() for mask in drawn.values()] == [participants(50, part)] * 4
            assert eligible.sum() >= 1
            there = np.logical_and.reduce([drawn[silo][held.owner] for silo, held in holders.items()])
            assert (eligible == there).all()
    samples = {int(draw_participants(2021, number, holders, 0.01)[1].argmax()) for number in range(20)}
    assert len(samples) > 10


def test_another_draw_of_the_same_round_is_another() -> None:
    first, second = (draw_participants(7, 3, TINY, 0.5, again)[1].tolist() for again in (0, 1))
    again = [draw_participants(7, 3, TINY, 0.5, number)[1].tolist() for number in range(10)]
    assert again[:2] == [first, second]
    assert len({tuple(mask) for mask in again}) > 2
    assert not torch.equal(draw_batch(7, 3, 100, 10), draw_batch(7, 3, 100, 10, np.ones(100, dtype=bool), 1))
