"""What a column of labels means to a loss."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tdcd.core.objectives import Meaning
from tdcd.data.arrays import NUMBER, Array
from tdcd.errors import DataError, join_names

if TYPE_CHECKING:
    from polars import Series

MOST_CLASSES = 1000


class LabelError(DataError):
    """Labels that do not fit a loss, and one of them: who knows its row can name it."""

    def __init__(self, message: str, label: str) -> None:
        super().__init__(message)
        self.label = label


def encode_labels(
    texts: "Series", meaning: Meaning, positive: str | int | None = None, known: Sequence[str] | None = None
) -> tuple[Array, tuple[str, ...]]:
    """Turn labels, as they stand in tables, into those of a loss.

    Args:
        texts: The labels as texts; whole numbers without a point.
        meaning: What the loss takes them for.
        positive: The label that counts as 1 for the binary loss; default: they are 0 and 1.
        known: All labels that there are, where the job says; default: those that occur.

    Returns:
        The labels, and what the classes 0, 1, 2, … stand for; for a regression, nothing.

    Raises:
        DataError: these labels do not fit this loss.
    """
    if known is not None:
        return _known(texts, meaning, positive, known)
    names, places = _distinct(texts)
    numbers = as_numbers(names)
    if meaning == "numbers":
        if numbers is None:
            text = _first_text(names)
            raise LabelError(f"labels: squared-error wants numbers, not texts such as '{text}'", text)
        return numbers[places], ()
    if len(names) == 1:
        raise DataError(
            f"labels: all {len(texts):,} are '{names[0]}', and a model needs two classes to tell apart. Is it the "
            "right column? Do all silos know those with other labels?"
        )
    if meaning == "binary":
        return _binary(places, names, positive)
    if len(names) > MOST_CLASSES:
        raise DataError(f"labels: {len(names):,} different ones are too many classes; is it a regression?")
    if numbers is not None:  # by their size, 2 before 10; 1E5 and 100000 are one
        _, first, rank = np.unique(numbers, return_index=True, return_inverse=True)
        names, places = [names[place] for place in first.tolist()], rank[places]
    return places.astype(np.int64), tuple(names)


def encode_labels_alone(
    texts: "Series", meaning: Meaning, positive: str | int | None, known: Sequence[str] | None
) -> Array:
    """Turn one client's labels into those of a loss, without knowing those of others. See ``coded``.

    Raises:
        DataError: they do not fit, or the job does not say what labels there are.
    """
    if meaning == "numbers":
        return encode_labels(texts, meaning)[0]
    if known is None and must_name(meaning, positive):
        raise DataError("labels.classes: name all of them in the job, as nobody can look at all labels")
    return (
        again(texts, ("0", "1"), "the binary loss wants")
        if known is None
        else encode_labels(texts, meaning, positive, known)[0]
    )


def must_name(meaning: Meaning, positive: str | int | None) -> bool:
    """Tell whether a job must name all labels, where nobody can look at all of them."""
    return meaning == "classes" or (meaning == "binary" and positive is not None)


def again(texts: "Series", classes: Sequence[str], where: str = "in training there was") -> Array:
    """Turn labels into the numbers of classes that are known before; ``where`` says from where.

    Raises:
        DataError: a label that did not occur then.
    """
    every, own = _distinct(texts)
    if not classes:
        numbers = as_numbers(every)
        if numbers is None:
            text = _first_text(every)
            raise LabelError(f"labels: numbers are wanted, not texts such as '{text}'", text)
        return numbers[own]
    places = {name: place for place, name in enumerate(classes)}
    names = set(every)
    values = as_numbers(classes)
    if values is not None:  # 1E5 is the class 100000 where all classes are numbers
        by_value = {value: place for place, value in enumerate(values.tolist())}
        others = {name: float(name) for name in names - set(places) if NUMBER.fullmatch(name)}
        places |= {name: by_value[value] for name, value in others.items() if value in by_value}
    strange = sorted(names - set(places))
    if strange:
        raise LabelError(f"unknown label {join_names(strange)}; {where} {join_names(classes)}", strange[0])
    return np.array([places[name] for name in every])[own]


def _known(
    texts: "Series", meaning: Meaning, positive: str | int | None, known: Sequence[str]
) -> tuple[Array, tuple[str, ...]]:
    """Turn labels into numbers where all that there are are known."""
    if meaning == "binary":
        wanted = "1" if positive is None else str(positive)
        known = sorted(known, key=lambda name: name == wanted)
    return again(texts, known, "the job's labels.classes are"), tuple(known)


def _distinct(texts: "Series") -> tuple[list[str], Array]:
    """Return the different texts in ascending order, and the place of each text among them."""
    names = texts.unique().sort()
    return names.to_list(), names.search_sorted(texts).to_numpy().astype(np.int64)


def as_numbers(names: Sequence[str]) -> Array | None:
    """Return texts as finite numbers, if all of them are; 1_10 is none."""
    if not all(map(NUMBER.fullmatch, names)):
        return None
    numbers = np.array([float(name) for name in names])
    return numbers if np.isfinite(numbers).all() else None


def same_numbers(classes: Sequence[str]) -> list[tuple[str, str]]:
    """Return classes that are the same number, written in two ways beside texts: they stay two classes."""
    first: dict[float, str] = {}
    result = []
    for name in classes:
        if NUMBER.fullmatch(name):
            before = first.setdefault(float(name), name)
            result += [(before, name)] if before != name else []
    return result


def _first_text(names: Sequence[str]) -> str:
    return next(name for name in names if as_numbers([name]) is None)


def _binary(places: Array, classes: Sequence[str], positive: str | int | None) -> tuple[Array, tuple[str, ...]]:
    wanted = "1" if positive is None else str(positive)
    if len(classes) > 2:
        counts = dict(zip(classes, np.bincount(places).tolist(), strict=True))
        expected = {"0", "1"} if positive is None and {"0", "1"} <= counts.keys() else {wanted}
        rarest = min(counts.keys() - expected, key=lambda name: (counts[name], name))
        raise LabelError(
            f"labels: there are {len(classes)}, {join_names(f'{name} ({counts[name]:,})' for name in classes)}; "
            "binary-cross-entropy wants two. Correct the rows that are wrong, or leave them out; or train all classes "
            'with training.loss = "cross-entropy"',
            rarest,
        )
    if positive is None and not set(classes) <= {"0", "1"}:
        raise LabelError(
            f"labels: binary-cross-entropy wants 0 and 1, and these are {join_names(classes)}; "
            "say which counts as 1: labels = { positive = … }",
            next(name for name in classes if name not in ("0", "1")),
        )
    if wanted not in classes and positive is not None:
        raise DataError(f"labels.positive: no label is '{wanted}'; there is {join_names(classes)}")
    negative = next((name for name in classes if name != wanted), "0" if positive is None else "other")
    return np.array([name == wanted for name in classes])[places].astype(np.int64), (negative, wanted)
