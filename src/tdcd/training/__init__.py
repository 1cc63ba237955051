"""The training loop: rounds, evaluation, checkpoints, results."""

from tdcd.training.loop import Observer
from tdcd.training.result import Evaluation, Result
from tdcd.training.settings import Settings
from tdcd.training.train import train

__all__ = ["Evaluation", "Observer", "Result", "Settings", "train"]
