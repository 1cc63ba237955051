"""The ``[data]`` table of a job, by its source."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tdcd.data.features import Features
from tdcd.data.rows import Equal, Rows
from tdcd.data.sets import PatientSets, SetName
from tdcd.registry import IMPORT_PATH
from tdcd.strict import Strict, matching
from tdcd.training.settings import Count

VALIDATION = 0.1
"""The part of the training rows of tables that is held out for validation where the job does not say."""
Fraction = Annotated[float, Field(gt=0, lt=1)]


class _Split(Strict):
    """What is held out of any data."""

    test_fraction: Fraction | None = None
    """About so many of the IDs are held out for testing. Default: what the publisher holds out, or else 0.2."""
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] | None = None
    """About so many of the others are held out for validation; default: none, and of tables 0.1."""
    folds: Annotated[int, Field(ge=2)] | None = None
    """Into how many folds all IDs fall, each by its own draw; one of them is for testing, instead of a fraction."""
    fold: Annotated[int, Field(ge=1)] | None = None
    """Which of them, from 1."""
    refit: bool | None = None
    """Whether to train on the validation samples, too, once the settings are chosen; the test samples stay the same."""
    clients: Count | None = None
    """K: clients in each silo that does not say otherwise; default: 5."""
    rows: Rows = Equal()
    """How a silo's rows fall to its clients."""
    seed: Annotated[int, Field(ge=0)] = 2021
    """Chooses what is held out, and deals features to silos and rows to clients."""

    @model_validator(mode="after")
    def _one_fold(self) -> Self:
        if (self.folds is None) != (self.fold is None):
            given, missing = ("folds", "fold") if self.fold is None else ("fold", "folds")
            raise ValueError(f"{missing}: it is missing beside {given}; folds = 5 and fold = 1 go together")
        if self.folds and self.fold and self.fold > self.folds:
            raise ValueError(f"fold: there is no fold {self.fold} of {self.folds}; they are numbered 1 to {self.folds}")
        if self.folds and self.test_fraction:
            raise ValueError("folds: a whole fold is for testing; leave out test_fraction")
        return self

    @model_validator(mode="after")
    def _something_to_add(self) -> Self:
        if self.refit and not (self.validation_fraction or getattr(self, "split_column", None)):
            raise ValueError(
                "refit: there are no validation samples to add to the training samples; set validation_fraction"
            )
        return self


class SetData(_Split):
    """A published or built-in data set, and how it is dealt to silos."""

    source: SetName
    directory: str | None = None
    """Where its files are; not for the built-in ones."""
    pixels: Count | None = None
    """Scale pictures to this width and height; for ModelNet."""
    sets: PatientSets | None = None
    """Which sets of patients train and which test; for PhysioNet 2012. Default: a trains, the others test."""
    features: Features | None = None
    """How silos share the features; default: as fits the data set."""


class TableData(_Split):
    """Tables that the silos' clients have."""

    source: Literal["tables"]
    alignment: Annotated[str, Field(min_length=1)] | None = None
    """The file that ``tdcd align`` made; default: align for every training."""
    split_column: str | None = None
    """A column of one or more silos that says "train", "validation" or "test", instead of fractions."""

    @model_validator(mode="before")
    @classmethod
    def _of_sets(cls, values: Any) -> Any:
        """Say of keys that only data sets have where they belong."""
        for key in values if isinstance(values, Mapping) else ():
            if key in SetData.model_fields and key not in cls.model_fields:
                where = " (--data)" if key == "directory" else ""
                raise ValueError(f"{key}{where} goes with a data set; files of tables are named in [silos.NAME]")
        return values

    @model_validator(mode="before")
    @classmethod
    def _validated(cls, values: Any) -> Any:
        """Hold samples out for validation where nobody says otherwise: a training is to be judged by some."""
        if not isinstance(values, Mapping) or values.get("split_column") or "validation_fraction" in values:
            return values
        return {**values, "validation_fraction": VALIDATION}

    @model_validator(mode="after")
    def _one_way(self) -> "TableData":
        if self.split_column and (self.test_fraction or self.validation_fraction or self.folds):
            raise ValueError(
                "split_column says what is held out; leave out test_fraction, validation_fraction and folds"
            )
        return self


class FunctionData(Strict):
    """A function of the user's own that returns a federation, with validation and test samples or without."""

    source: Annotated[str, matching(IMPORT_PATH, "is written as 'package.module:function'")]
    options: dict[str, Any] = {}
    """What the function is called with."""
