"""How a silo's tables are read: kept apart from their reading, so that other jobs do without polars."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tdcd.strict import Strict


class TableSettings(Strict):
    """How to read a silo's tables."""

    id: str | None = None
    """The column of IDs."""
    label: str | None = None
    """The column of labels, where the silo has them."""
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    """The columns of features; default: all others."""
    exclude: list[str] = []
    """Columns that are no features, where ``columns`` does not say which are."""
    categories: list[str] = []
    """Columns whose numbers are codes of categories. Columns of texts are categories by themselves."""
    rare: Annotated[int, Field(ge=1)] = 10
    """A category in fewer training rows than this counts as "other"."""
    missing: list[str] = ["NA", "N/A", "#N/A", "NaN", "null"]
    """What means that there is no value, in large or small letters; an empty cell always does."""
    decimal: Literal[".", ","] = "."
    """What stands before the decimals of numbers in a CSV file."""
    thousands: Annotated[str, Field(pattern=r"^[., ']?$")] = ""
    """What groups the digits of numbers in a CSV file."""
    separator: Annotated[str, Field(pattern=r"^[\t !#-/:-@\[-`{-~]$")] = ","
    """What separates the cells of a CSV file."""

    @model_validator(mode="after")
    def _different(self) -> "TableSettings":
        if self.thousands == self.decimal:
            raise ValueError("thousands and decimal are the same; numbers would be ambiguous")
        return self
