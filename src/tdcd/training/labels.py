"""Who has the labels, and who may learn what of them: the job file's ``labels`` and the same in Python."""

from typing import Annotated

from pydantic import Field, model_validator

from tdcd.core.gradients import GradientPrivatizer
from tdcd.core.script import Sharing
from tdcd.strict import Strict


class Labels(Strict):
    """Who has the labels, what they mean, and whether they are handed over."""

    silo: str | None = None
    """Whose labels are shared with the silos that have none, or stay there."""
    sharing: Sharing | None = None
    """"shared": all silos are handed the labels. "exact" and "stale": they stay with the clients of ``silo``, who tell
    the others ∂loss/∂z: "exact" at every local step, with the numbers of "shared"; "stale" once in a round."""
    positive: str | int | None = None
    """For tables: the label that counts as 1, where there are two that are not 0 and 1."""
    classes: list[str] | None = None
    """For tables: all labels that there are, where they are classes. At real sites that keep them, nobody can find
    out."""
    clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Defends private labels: the largest norm of a sample's logit gradient."""
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Defends private labels: the deviation of the noise added to logit gradients, in units of ``clip``."""
    tell_metrics: bool = False
    """Whether the hubs of other silos receive loss and metrics, when labels are private."""

    @property
    def private(self) -> bool:
        """Whether the labels stay in their silo."""
        return self.sharing in ("exact", "stale")

    @property
    def label_holder(self) -> str | None:
        """The silo that keeps them, if one does."""
        return self.silo if self.private else None

    @property
    def privatizer(self) -> GradientPrivatizer | None:
        """What is done to logit gradients before they leave."""
        return GradientPrivatizer(self.clip, self.noise) if self.clip is not None else None

    @model_validator(mode="after")
    def _consistent(self) -> "Labels":
        if self.private and self.silo is None:
            raise ValueError(f'sharing = "{self.sharing}" needs the silo that keeps them: silo = "bank"')
        if not self.private:
            for key in ("clip", "noise", "tell_metrics"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f'{key} goes with sharing = "exact" and "stale"')
        if self.noise and self.clip is None:
            raise ValueError("noise is in units of clip: set that, too")
        if self.classes is not None and (len(self.classes) < 2 or len(set(self.classes)) < len(self.classes)):
            raise ValueError("classes: name at least two, each once")
        return self
