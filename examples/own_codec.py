"""A codec of one's own: every number of a message in one byte.

python examples/own_codec.py
"""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

import tdcd


@dataclass(frozen=True)
class EightBits:
    """Sends multiples of a step that is 1/127 of the largest number. The step travels in front, as four bytes."""

    elementwise = False  # a number's code depends on the others, so each client's message is encoded by itself

    def encode(self, tensor: Tensor) -> Tensor:
        """Return what travels: one tensor, here of bytes."""
        step = (tensor.abs().max().float() / 127).clamp(min=1e-30)
        codes = (tensor / step).round().to(torch.int8)
        return torch.cat([step.reshape(1).view(torch.uint8), codes.flatten().view(torch.uint8)])

    def decode(self, encoded: Tensor, like: Tensor) -> Tensor:
        """Return a tensor of the shape and type of ``like``."""
        step = encoded[:4].clone().view(torch.float32)
        return encoded[4:].view(torch.int8).reshape(like.shape).to(like.dtype) * step.to(like.dtype)


rows, labels = load_breast_cancer(return_X_y=True)
rows = (rows - rows.mean(0)) / rows.std(0)
silos = [
    tdcd.Silo("clinic", rows[:, :15], [range(300), range(300, 569)]),
    tdcd.Silo("laboratory", rows[:, 15:], [range(0, 569, 2), range(1, 569, 2)]),
]
federation = tdcd.Federation.from_silos(silos, labels)
settings = tdcd.Settings(loss="binary-cross-entropy", rounds=30, local_steps=5, batch_size=200, rate=0.1)
for codec in (tdcd.codecs.Plain(), tdcd.codecs.Float16(), tdcd.codecs.BFloat16(), EightBits()):
    result = tdcd.train(federation, tdcd.models.MLP(hidden=[8]), settings, codec=codec)
    kept = result.kept
    print(f"{codec}: training loss {kept.train['loss']:.4f}, {kept.traffic.total / 1e3:,.0f} kB sent")
