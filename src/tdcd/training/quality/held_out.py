"""How good the weights are that a simulated training ends with, on its held-out samples."""

from collections.abc import Callable

from tdcd.core.network import Blocks
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.errors import DataError, ModelError
from tdcd.runs.quality import Cut, QualityRecord
from tdcd.runs.store import RunDirectory
from tdcd.training.quality.assessment import Assessment, assess
from tdcd.training.quality.thresholds import HALF, choose_cuts
from tdcd.training.simulation import Simulation

NO_VALIDATION = (
    "there are no validation samples to choose a threshold on, so it is 0.5; in a job: data.validation_fraction = 0.1"
)


def record_held_out(
    simulation: Simulation, blocks: Blocks, round_: int, directory: RunDirectory, note: Callable[[str], object]
) -> None:
    """Write how good weights are on the held-out samples of a simulation into its run directory, if it has some.

    A loss of the user's own may not say what its scores mean; the training is none the worse for that.
    """
    try:
        record = assess_held_out(simulation, blocks, round_)
    except (DataError, ModelError) as error:
        note(f"how good the model is on held-out samples was not recorded: {error}")
    else:
        if record:
            directory.save_quality(record)


def assess_held_out(simulation: Simulation, blocks: Blocks, round_: int) -> QualityRecord | None:
    """Measure weights on the test samples; a threshold is chosen on the validation samples, never on those measured.

    Args:
        simulation: The training.
        blocks: The weights of each silo.
        round_: The round that they are of.

    Returns:
        The record; of the validation samples where there are no test samples, and nothing where there are none at all.
    """
    parts, objective = simulation.training.parts, simulation.settings.objective
    part = Part.TEST if Part.TEST in parts else Part.VALIDATION
    if part not in parts:
        return None
    samples = parts[part]
    cuts: tuple[Cut, ...] = (HALF,)
    notes = []
    if objective.meaning == "binary":
        if part is Part.VALIDATION:
            notes.append("measured on the validation samples, as there are no test samples; the threshold is 0.5")
        elif Part.VALIDATION in parts:
            scores = simulation.engine.part_scores(blocks, Part.VALIDATION).cpu()
            labels = parts[Part.VALIDATION].labels.cpu()
            of = describe(parts[Part.VALIDATION], Part.VALIDATION)
            try:
                cuts = (*choose_cuts(objective, scores, labels, of), HALF)
            except DataError as error:
                notes.append(f"no threshold could be chosen on the validation samples: {error}; it is 0.5")
        else:
            notes.append(NO_VALIDATION)
    what = Assessment(
        samples=describe(samples, part),
        round=round_,
        classes=simulation.federation.classes,
        cuts=cuts,
        holders={silo: own for silo, own in samples.holders.items() if silo in simulation.federation.silos},
        notes=notes,
    )
    return assess(objective, simulation.engine.part_scores(blocks, part), samples.labels, what)


def describe(samples: Samples, part: Part) -> str:
    """Say which samples these are."""
    return f"the {len(samples):,} {part.word} samples"
