"""Cross-validation of a Python function, on a federation from arrays, in this process."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tdcd.data.federation import Federation
from tdcd.data.samples import Samples
from tdcd.errors import JobError
from tdcd.experiments.cross_validation import CrossValidation, summarise
from tdcd.experiments.function_sweep import DIVERGED, sweep_function
from tdcd.experiments.splits import FOLDS, Splitting
from tdcd.runs.cross_validation import SplitRecord
from tdcd.runs.layout import FEDERATED
from tdcd.training.result import Result


def cross_validate_function(
    train_one: Callable[[Federation, Samples], Result | Mapping[str, float]],
    federation: Federation,
    *,
    folds: int = FOLDS,
    repeats: int = 1,
    seed: int = 2021,
    file: Path | str | None = None,
) -> CrossValidation:
    """Call a function with the federation without a fold, and the samples of this fold, once for each fold.

    Args:
        train_one: Is called as ``train_one(training, test)`` and returns a result, whose kept evaluation on the test
            samples counts, or numbers by name.
        federation: All samples.
        folds: How many folds there are.
        repeats: How often the samples fall into them, each time by another seed.
        seed: Draws the folds of the first time; those after it take the next seeds.
        file: Where a line is written for each call that has ended; the same call goes on with it. It does not know
            whether the function or the federation has changed.

    Raises:
        JobError: there are no such folds, or the function returns something else.
        DataError: a fold leaves no samples to train or to test.
    """
    splitting = Splitting(folds, repeats)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise JobError(f"seed: a whole number from 0 up is wanted, not {seed!r}")
    split = {(fold, add): federation.fold(fold, folds, seed + add) for add, fold in splitting.names().values() if fold}
    grid = {"folds": [folds], "fold": [*range(1, folds + 1)]}
    seeds = [seed + repeat for repeat in range(repeats)]

    def call(fold: int, seed: int, **_: int) -> Result | Mapping[str, float]:
        return train_one(*split[fold, seed - seeds[0]])

    frame = sweep_function(call, grid, seeds=seeds, file=file)
    rows = {(row["fold"], row["seed"] - seed): row for row in frame.iter_rows(named=True)}
    records = [
        _record(name, split[fold or 1, add], rows[fold or 1, add]) for name, (add, fold) in splitting.names().items()
    ]
    return CrossValidation(summarise("the function", splitting, records))


def _record(name: str, split: tuple[Federation, Samples], row: Mapping[str, Any]) -> SplitRecord:
    """Return how a call ended."""
    sizes = len(split[0]), len(split[1])
    if row[DIVERGED]:
        return SplitRecord(FEDERATED, name, "", "diverged", *sizes, why="training diverged")
    tested = {key.removeprefix("test_"): value for key, value in row.items() if key.startswith("test_")}
    numbers = {key: value for key, value in row.items() if key not in ("folds", "fold", "seed", DIVERGED)}
    measures = {key: value for key, value in (tested or numbers).items() if isinstance(value, int | float)}
    return SplitRecord(FEDERATED, name, "", "finished", *sizes, measures)
