"""The training loop: rounds, evaluation, checkpoints, results."""

from tdcd.training.result import Evaluation, Result
from tdcd.training.settings import Settings
from tdcd.training.train import Observer, train

__all__ = ["Evaluation", "Observer", "Result", "Settings", "train"]
