"""A mean of the clients without the extremes."""

from dataclasses import dataclass

from tdcd.core.aggregators.median import Middle


@dataclass(frozen=True)
class TrimmedMean(Middle):
    """The mean of every single number without the lowest and highest of them."""

    fraction: float = 0.1
    """Of the clients that took part, rounded down: left out at either end."""

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 0.5:
            raise ValueError(f"fraction: should be at least 0 and below 0.5 (is {self.fraction!r})")

    def cut(self, clients: int) -> int:
        return int(self.fraction * clients + 1e-9)  # 0.29 of 100 are 29, whatever floating point makes of it
