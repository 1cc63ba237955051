"""Which embeddings are left out of sums: a draw for each round, silo and sample that every hub can repeat."""

from itertools import combinations

import pytest
import torch

from tdcd.core.script import keep_all
from tdcd.core.silo_dropout import SiloDropout

SILOS = ("bank", "insurer", "shop")


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_each_is_left_out_as_often_as_asked_for_whatever_happens_to_the_others(probability: float) -> None:
    """By silo, by sample, by round, and two of any of them at a time."""
    rounds, samples = 600, torch.arange(200)
    dropout = SiloDropout(probability, seed=3)
    away = torch.stack(
        [torch.stack([~dropout.present(number, samples, silo) for number in range(rounds)]) for silo in SILOS]
    ).double()

    def near(draws: torch.Tensor, wanted: float, count: int) -> bool:
        return bool(((draws - wanted).abs() < 5 * (wanted * (1 - wanted) / count) ** 0.5).all())

    assert near(away.mean((1, 2)), probability, rounds * len(samples))
    assert near(away.mean((0, 1)), probability, rounds * len(SILOS))
    assert near(away.mean((0, 2)), probability, len(samples) * len(SILOS))
    both = probability**2
    for one, two in combinations(away, 2):
        assert near((one * two).mean(), both, one.numel())
    assert near((away[:, :, 1:] * away[:, :, :-1]).mean(), both, away.numel())  # neighbours
    assert near((away[:, 1:] * away[:, :-1]).mean(), both, away.numel())  # rounds that follow each other


def test_a_draw_is_a_pure_function_of_seed_round_silo_and_sample() -> None:
    batch = torch.tensor([3, 17, 18, 40, 999_999_999_999])
    dropout = SiloDropout(0.5, 2021)
    torch.manual_seed(1)
    draws = {
        (seed, number, silo): tuple(SiloDropout(0.5, seed).present(number, torch.arange(64), silo).tolist())
        for seed in (2021, 2022)
        for number in (1, 2)
        for silo in SILOS
    }
    assert len(set(draws.values())) == len(draws)
    whole = dropout.present(7, batch, "bank")
    left = torch.tensor([0, 2, 4])
    assert torch.equal(dropout.present(7, batch[left], "bank"), whole[left])  # without lost samples
    some, more = (SiloDropout(p, 2021).present(7, torch.arange(500), "bank") for p in (0.2, 0.6))
    assert bool((some | ~more).all())  # a larger probability leaves out the same samples, and others


def test_draws_are_the_same_on_every_machine() -> None:
    """Pinned: sites compute them by themselves, perhaps with another release of tdcd or numpy."""
    absent = ~SiloDropout(0.3, 2021).present(1, torch.arange(30), "bank")
    assert absent.nonzero()[:, 0].tolist() == [2, 8, 9, 13, 16, 19, 22, 25]


def test_rows_that_are_left_out_are_zeros_and_those_that_were_sent_stay() -> None:
    rows, batch = torch.randn(50, 3), torch.arange(100, 150)
    rows[7] = torch.inf
    sent = rows.clone()
    mask, present = SiloDropout(0.5, 1).in_round(2, batch), SiloDropout(0.5, 1).present(2, batch, "bank")
    masked = mask("bank", rows)
    assert torch.equal(rows, sent)
    assert torch.equal(masked[present], rows[present])
    assert not masked[~present].any()
    assert not torch.equal(mask("shop", rows), masked)
    assert SiloDropout().in_round(2, batch) is keep_all
    assert keep_all("bank", rows) is rows
