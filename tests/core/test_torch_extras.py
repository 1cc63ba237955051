"""Private calls into torch: each public way gives the same, and serves where the private one fails."""

import torch

from tdcd.core import torch_extras as extras


def test_the_public_ways_are_the_same() -> None:
    assert extras._carries_back(extras._public_backward)
    assert extras._adds(extras._public_add)
    assert extras._copies(extras._public_copy)


def test_the_first_way_that_works_is_taken() -> None:
    def missing(*_: object) -> None:
        raise AttributeError("another torch does not have it")

    def wrong(tensors: list[torch.Tensor], changes: list[torch.Tensor], factor: float) -> None:
        extras._public_add(tensors, changes, -factor)

    def public(tensors: list[torch.Tensor], changes: list[torch.Tensor], factor: float) -> None:
        extras._public_add(tensors, changes, factor)

    assert extras.first_that_works(missing, wrong, public, trial=extras._adds) is public
    assert extras.first_that_works(extras._foreach_add, public, trial=extras._adds) is extras._foreach_add
