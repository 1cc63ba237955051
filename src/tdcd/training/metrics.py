"""What a model's scores are worth, as fits the loss. Metrics that are undefined on a set are left out.

scikit-learn is imported on first use: it takes a second and 75 MB, and reading data needs neither.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tdcd.core.objective import BinaryCrossEntropy, CrossEntropy, Objective, SquaredError
from tdcd.core.streams import preserve_random
from tdcd.errors import ModelError

METRICS = {
    "cross-entropy": ("loss", "accuracy", "f1", "top5", "auroc", "auprc"),
    "binary-cross-entropy": ("loss", "accuracy", "f1", "auroc", "auprc"),
    "squared-error": ("loss", "mse", "r2"),
}
"""What is measured with each loss."""
PRIMARY = {"cross-entropy": "accuracy", "binary-cross-entropy": "auroc", "squared-error": "r2"}
"""The metric that stands for all in displays."""

Array = npt.NDArray[Any]


def scikit_learn() -> Any:
    """Return scikit-learn's metrics."""
    with preserve_random():
        from sklearn import metrics
    return metrics


def measure(objective: Objective, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """Return the loss and the metrics of scores (M, E) against prepared labels."""
    scores, labels = scores.cpu(), labels.cpu()
    record = {"loss": float(objective.losses(scores.double(), as_double(labels)).mean())}
    y = labels.numpy()
    predicted = objective.predictions(scores).numpy()
    if isinstance(objective, CrossEntropy):
        record |= _classes(scores, y, predicted)
    elif isinstance(objective, BinaryCrossEntropy):
        record |= _binary(scores[:, 0].double().numpy(), y.astype(np.int64), predicted)
    elif isinstance(objective, SquaredError):
        record |= _regression(y.astype(np.float64), predicted.astype(np.float64))
    else:
        raise ModelError(f"no metrics are known for the loss {type(objective).__name__}")
    return {name: float(value) for name, value in record.items()}


def _classes(scores: Tensor, y: Array, predicted: Array) -> dict[str, float]:
    metrics = scikit_learn()
    result = {
        "accuracy": metrics.accuracy_score(y, predicted),
        "f1": metrics.f1_score(y, predicted, average="macro", zero_division=0),
    }
    classes = scores.shape[1]
    if classes > 5:
        best = scores.topk(5, dim=1).indices.numpy()
        result["top5"] = float((best == y[:, np.newaxis]).any(1).mean())
    if len(np.unique(y)) == classes:
        probabilities = scores.double().softmax(-1).numpy()
        hot = np.eye(classes, dtype=np.int64)[y]
        result["auroc"] = metrics.roc_auc_score(hot, probabilities, average="macro")
        result["auprc"] = metrics.average_precision_score(hot, probabilities, average="macro")
    return result


def _binary(logits: Array, y: Array, predicted: Array) -> dict[str, float]:
    metrics = scikit_learn()
    result = {
        "accuracy": metrics.accuracy_score(y, predicted),
        "f1": metrics.f1_score(y, predicted, zero_division=0),
    }
    if len(np.unique(y)) == 2:
        result["auroc"] = metrics.roc_auc_score(y, logits)
        result["auprc"] = metrics.average_precision_score(y, logits)
    return result


def _regression(y: Array, predicted: Array) -> dict[str, float]:
    metrics = scikit_learn()
    result = {"mse": metrics.mean_squared_error(y, predicted)}
    if len(y) > 1:
        result["r2"] = metrics.r2_score(y, predicted)
    return result


def as_double(labels: Tensor) -> Tensor:
    """Return labels in double precision; class numbers stay what they are."""
    return labels.double() if labels.is_floating_point() else labels
