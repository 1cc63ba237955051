"""How well private labels can be inferred from the logit gradients that another silo receives.

∂ℓ/∂z of a sample is its predicted probabilities less its label: the class whose number is negative is the label. The
audit trains a job once more, notes every answer that one silo without labels receives, and scores training samples by

    norm        ‖g‖: what surprises the model, mostly samples of a rare class
    direction   how far g points away from a class: the cosine of g and −e_c
    value       −g_c itself

once from the first answer about it and once from the mean of all of them, as noise averages out. A score is worth the
area under its ROC curve: 0.5 is a guess, 1 is certainty. For several classes it is the mean over them, one against the
rest. Norms may tell a class by being large or by being small.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from tdcd.core.gradients import GradientPrivatizer
from tdcd.core.objectives import BinaryCrossEntropy
from tdcd.data.arrays import Array
from tdcd.data.holdout import Part
from tdcd.errors import DivergedError, JobError, nearest
from tdcd.jobs.data import JobData
from tdcd.jobs.schema import Job
from tdcd.training.callbacks import GradientRecorder
from tdcd.training.labels import Labels
from tdcd.training.simulation import Simulation
from tdcd.training.tally import measured, ranks, tally

Log = Callable[[int, int], None]
"""Takes the rounds that are done, and how many there are."""


@dataclass(frozen=True)
class Leak:
    """How well each score separates the labels: the area under its ROC curve."""

    norm: float
    direction: float
    value: float


@dataclass(frozen=True)
class Audit:
    """What one training revealed to a silo without labels, and how good the model became."""

    silo: str
    """Who listened."""
    clip: float | None
    noise: float
    rounds: int
    """Rounds that were trained."""
    diverged: bool
    samples: int
    """Training samples that it received gradients of."""
    first: Leak
    """From the first gradient of each."""
    every: Leak
    """From the mean of all gradients of each."""
    metric: str
    test: float | None
    """The metric on the test samples after the last round; none without test samples, or if it diverged."""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain dictionaries."""
        return asdict(self)


def audit_labels(
    job: Job,
    data: JobData,
    privatizers: Sequence[GradientPrivatizer | None],
    *,
    silo: str | None = None,
    on_progress: Log = lambda done, rounds: None,  # noqa: ARG005
) -> Iterator[Audit]:
    """Train a job once for each defence of its labels, and tell how well each hides them.

    Args:
        job: What to train; its labels are private to one silo.
        data: Its data.
        privatizers: What is done to the logit gradients before other silos receive them.
        silo: Who listens; default: the first silo without labels.
        on_progress: Is called with the rounds done and their total.

    Raises:
        JobError: there is nothing to infer, or nobody to listen.
    """
    settings, federation = job.training, data.federation
    if not job.labels.private:
        raise JobError(
            'labels.sharing is "shared": every silo has the labels, so there is nothing to infer; audit how they are '
            'kept: --set labels.silo=SILO --set labels.sharing=stale, or "exact"'
        )
    if settings.objective.meaning == "numbers":
        raise JobError(f"the audit is about classes; the loss {settings.loss_kind} has none")
    others = [name for name in federation.with_features if name != job.labels.silo]
    if silo is not None and silo not in others:
        raise JobError(f"--silo: '{silo}' receives no logit gradients{nearest(silo, others)}")
    if not others:
        raise JobError("every silo with features holds labels, so no silo receives logit gradients")
    for privatizer in privatizers:
        yield _audited(job, data, privatizer, silo or others[0], on_progress)


def _audited(job: Job, data: JobData, privatizer: GradientPrivatizer | None, silo: str, on_progress: Log) -> Audit:
    settings, federation = job.training, data.federation
    defence = {"clip": privatizer.clip, "noise": privatizer.noise} if privatizer else {"clip": None, "noise": 0.0}
    recorder = GradientRecorder(silo, len(federation))
    simulation = Simulation(
        federation,
        {name: job.model_of(name) for name in federation.with_features},
        settings,
        silos={name: own for name, own in job.silos.items() if name in federation.silos},
        labels=job.labels.model_copy(update=defence),
        validation=data.held_out.get(Part.VALIDATION),
        test=data.held_out.get(Part.TEST),
        compute=job.compute,
        workers=job.workers,
        device=job.device,
        on_gradients=recorder.received,
    )
    state, diverged = simulation.init(), False
    while state.done < settings.rounds and not diverged:
        try:
            state = simulation.round(state)
        except DivergedError:
            diverged = True
        on_progress(state.done + diverged, settings.rounds)
    heard = (recorder.count > 0) & recorder.total.isfinite().all(1)
    labels = simulation.setup.train.labels.cpu()[heard].numpy().astype(np.int64)
    mean = recorder.total[heard] / recorder.count[heard, None]
    norms = (recorder.norms[heard] / recorder.count[heard]).numpy()
    first = recorder.first[heard]
    metric = settings.objective.primary
    return Audit(
        silo=silo,
        clip=privatizer.clip if privatizer else None,
        noise=privatizer.noise if privatizer else 0.0,
        rounds=state.done + diverged,
        diverged=diverged,
        samples=int(heard.sum()),
        first=_leak(first, _tied(first.norm(dim=1).numpy(), privatizer), labels),
        every=_leak(mean, _tied(norms, privatizer), labels),
        metric=metric,
        test=None if diverged else simulation.evaluate(state).test.get(metric),
    )


def _tied(norms: Array, privatizer: GradientPrivatizer | None) -> Array:
    """Return norms; those that were clipped are the same but for rounding, and tell nothing by that."""
    return (
        norms if privatizer is None else np.where(np.isclose(norms, privatizer.clip, rtol=1e-5), privatizer.clip, norms)
    )


def _leak(answers: Tensor, norms: Array, labels: Array) -> Leak:
    cosine = answers / answers.norm(dim=1, keepdim=True).clamp(min=1e-300)
    return Leak(_either_way(norms, labels), _by_class(-cosine.numpy(), labels), _by_class(-answers.numpy(), labels))


def _by_class(scores: Array, labels: Array) -> float:
    """Return the area of scores (n, E): of the positive class for E = 1, else the mean over classes that occur."""
    if scores.shape[1] == 1:
        return area(scores[:, 0], labels)
    return float(np.mean([area(scores[:, c], labels == c) for c in np.unique(labels)]))


def _either_way(norms: Array, labels: Array) -> float:
    areas = [area(norms, labels == c) for c in np.unique(labels)]
    return float(np.mean([max(result, 1 - result) for result in areas]))


def area(scores: Array, positive: Array) -> float:
    """Return the area under the ROC curve; a guess where there is only one class."""
    positive = np.asarray(positive, dtype=bool)
    if not positive.any() or positive.all():
        return 0.5
    logits = torch.from_numpy(np.asarray(scores, dtype=np.float64)).unsqueeze(1)
    labels, loss = torch.from_numpy(positive.astype(np.float64)), BinaryCrossEntropy()
    return measured(loss, tally(loss, logits, labels, ranks(loss, logits)))["auroc"]


def privatizers_of(job: Job, clip: float | None, noises: Sequence[float]) -> list[GradientPrivatizer | None]:
    """Return what to audit: the job as it is, and each noise that is asked for.

    Raises:
        JobError: noise needs a clip.
    """
    parts: list[GradientPrivatizer | None] = [job.labels.privatizer]
    clip = clip if clip is not None else job.labels.clip
    if noises and clip is None:
        raise JobError("--noise is in units of --clip: set that, too")
    if clip is not None:
        parts += [Labels(silo="x", sharing="exact", clip=clip, noise=noise).privatizer for noise in noises or [0.0]]
    return list(dict.fromkeys(parts))
