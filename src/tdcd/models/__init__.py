"""Silo networks: one architecture a file, or a user's own by import path.

A job names them as ``[model]`` tables; in Python a specification such as ``MLP(hidden=[64])`` builds one network
for each silo, fitted to the shape of that silo's rows.
"""

from tdcd.models.base import ModelSpec
from tdcd.models.cnn import CNN
from tdcd.models.imported import Imported
from tdcd.models.linear import Linear
from tdcd.models.lstm import LSTM
from tdcd.models.mlp import MLP
from tdcd.models.resnet18 import ResNet18
from tdcd.models.spec import MODEL_TAGS, Model, build

__all__ = [
    "CNN",
    "LSTM",
    "MLP",
    "MODEL_TAGS",
    "Imported",
    "Linear",
    "Model",
    "ModelSpec",
    "ResNet18",
    "build",
]
