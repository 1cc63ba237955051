"""Half precision with the range of float32: eight binary digits."""

from dataclasses import dataclass

import torch

from tdcd.core.codecs.half import Half


@dataclass(frozen=True)
class BFloat16(Half):
    """The upper half of a float32. See Codec."""

    dtype = torch.bfloat16
