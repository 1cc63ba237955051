"""Half precision: eleven binary digits, numbers up to 65,504."""

from dataclasses import dataclass

import torch

from tdcd.core.codecs.half import Half


@dataclass(frozen=True)
class Float16(Half):
    """IEEE half precision. A larger number becomes infinite, and the training stops as diverged. See Codec."""

    dtype = torch.float16
