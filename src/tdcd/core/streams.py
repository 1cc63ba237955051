"""Random numbers that belong to the user, torch's and Python's, borrowed and given back."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that a network on this device may draw from."""
    result = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        result.append(torch.cuda.default_generators[index])
    return result


def reseed(device: torch.device, seed: int) -> None:
    """Restart the stream. Much cheaper than ``torch.manual_seed``, which looks for every kind of device."""
    for generator in generators(device):
        generator.manual_seed(seed)


def stream_state(device: torch.device) -> list[Tensor]:
    """Return where the stream stands."""
    return [generator.get_state() for generator in generators(device)]


def set_stream(device: torch.device, states: Sequence[Tensor]) -> None:
    """Put the stream where it stood."""
    for generator, state in zip(generators(device), states, strict=True):
        generator.set_state(state)


@contextmanager
def preserve_random() -> Iterator[None]:
    """Keep Python's random numbers where they are: some libraries draw from them when they are imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@contextmanager
def borrow_stream(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Start a stream of one's own; the one that was there goes on afterwards as if nothing had been drawn."""
    before = stream_state(device)
    reseed(device, seed)
    try:
        yield
    finally:
        set_stream(device, before)
