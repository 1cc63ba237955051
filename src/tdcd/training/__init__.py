"""The training loop: rounds, evaluation, checkpoints, results."""

from tdcd.runs.records import Evaluation
from tdcd.training.loop import Observer
from tdcd.training.result import Result
from tdcd.training.settings import Settings
from tdcd.training.train import train

__all__ = ["Evaluation", "Observer", "Result", "Settings", "train"]
