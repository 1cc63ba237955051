"""Settings that are found before a training: what a job says of it."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tdcd.strict import Strict, matching

AUTO = "auto"
Automatic = Literal["rate", "local_steps"]
FOUND: Mapping[Automatic, Any] = {"rate": 1.0, "local_steps": 1}
"""What stands for settings until they are found."""
BUDGET = r"\d+(\.\d+)?\s*(%|m|min)?"


class Tuning(Strict):
    """How ``tdcd tune`` chooses, and ``tdcd train`` where the job leaves it settings to find."""

    t_comm: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0
    """The time of a round trip."""
    t_comp: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """The time of a local step."""
    budget: Annotated[
        str, matching(BUDGET, "is a part of a full grid's cost, such as 10%, or minutes, such as 30m")
    ] = "10%"
    """What it may take."""
    metric: str = "loss"
    """The measure on the validation samples that decides."""


def take_auto(values: Any) -> Any:
    """Replace "auto" in the ``[training]`` table of a job by what stands for it, and list it under ``auto``."""
    training = values.get("training") if isinstance(values, Mapping) else None
    if not isinstance(training, Mapping):
        return values
    named = [name for name in FOUND if isinstance(training.get(name), str) and training[name] == AUTO]
    if AUTO in values:
        raise ValueError('auto: write training.rate = "auto" or training.local_steps = "auto" instead')
    if not named:
        return values
    return {**values, "training": {**training, **{name: FOUND[name] for name in named}}, AUTO: tuple(named)}


def put_auto(table: dict[str, Any], named: tuple[Automatic, ...]) -> dict[str, Any]:
    """Write "auto" again for what is yet to be found."""
    return table | {"training": table["training"] | dict.fromkeys(named, AUTO)} if named else table


def read_budget(text: str) -> tuple[float, float | None]:
    """Return the part of a full grid's cost that a budget stands for, and the minutes if it is written so.

    Raises:
        ValueError: it is neither.
    """
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text):
        part = float(match[1]) / 100
        if 0 < part <= 1:
            return part, None
    elif (match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:m|min)?", text)) and float(match[1]) > 0:
        return 1.0, float(match[1])
    raise ValueError(f"{text}: write a part of a full grid's cost, such as 10%, or minutes, such as 30m")
