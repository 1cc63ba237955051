"""Numbers of two bytes, rounded to the nearest."""

from abc import ABC
from typing import ClassVar

import torch
from torch import Tensor


class Half(ABC):
    """Rounds every number to a type of two bytes. See Codec."""

    dtype: ClassVar[torch.dtype]
    elementwise = True

    def encode(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype)

    def decode(self, encoded: Tensor, like: Tensor) -> Tensor:
        return encoded.to(like.dtype)
