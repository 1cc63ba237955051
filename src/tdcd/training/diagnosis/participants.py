"""Rules on who takes part: silos that overshoot together, silos and clients that add nothing, unequal clients."""

from collections.abc import Iterator

from tdcd.core.aggregators import Average
from tdcd.errors import join_names
from tdcd.runs.records import Finding
from tdcd.training.diagnosis.evidence import Evidence

BETTER = 1.1
"""A smaller hub step is advised if it brings so many times what the whole one does."""
NOTHING = 0.01
"""A silo adds nothing if the loss without it is higher by less than this part of the whole descent."""
UNEQUAL = 3.0
"""Clients are unequal if one has so many times the rows of another."""


def overshooting(evidence: Evidence) -> Iterator[Finding]:
    """Silos correct the same error at once, and go too far together."""
    probes = evidence.overshoots
    if len(probes) < 2:
        return
    gains = {step: sum(probe.gain(step) for probe in probes) / len(probes) for step in probes[0].after}
    best = max(gains, key=lambda step: gains[step])
    agreeing = sum(probe.gain(best) > probe.gain(1.0) for probe in probes)
    if best == 1.0 or gains[best] <= max(0.0, BETTER * gains[1.0]) or agreeing <= len(probes) / 2:
        return
    whole = f"lowered the loss of the mini-batch by {gains[1.0]:.3g}"
    if gains[1.0] <= 0:
        whole = f"raised the loss of the mini-batch by {-gains[1.0]:.3g}"
    yield Finding(
        "overshooting",
        "warning",
        f"Silos overshoot together: in {len(probes)} of the rounds, the whole hub step {whole} on average, "
        f"where a step of {best:g} lowers it by {gains[best]:.3g}",
        f'Use aggregator = {{ kind = "hub-step", size = {best:g} }}, or fewer local steps or a smaller rate',
        {f"gain_{step:g}": gain for step, gain in gains.items()} | {"step": best},
    )


def superfluous_silos(evidence: Evidence) -> Iterator[Finding]:
    """A silo without which the model is as good."""
    lines = evidence.history
    for silo, own in evidence.contributions.items():
        first = [line.measures(part) for line in lines[:1] for part in (evidence.held_out,) if part]
        descent = first[0].get("loss", own.loss) - own.loss if first else 0.0
        if descent <= 0 or own.without - own.loss >= NOTHING * descent:
            continue
        yield Finding(
            f"superfluous-silo-{silo}",
            "warning",
            f"Silo '{silo}' adds nothing: with its embeddings replaced by their mean, the {evidence.held_out} loss is "
            f"{own.without:.4g} instead of {own.loss:.4g}",
            "Check its columns and IDs, or train without it",
            {"loss": own.loss, "without": own.without},
        )


def idle_clients(evidence: Evidence) -> Iterator[Finding]:
    """Clients that have no rows to train on, or none that are ever drawn."""
    record, settings = evidence.federation, evidence.settings
    if record is None or not evidence.history:
        return
    rounds = evidence.history[-1].round
    size = record.samples if settings.batch_size == "full" else settings.batch_size
    for silo in record.silos:
        idle = [client.name for client in silo.clients if client.rows * size * rounds < record.samples]
        if idle and rounds:
            yield Finding(
                f"idle-clients-{silo.name}",
                "warning",
                f"{_clients(idle)} of silo '{silo.name}' {'adds' if len(idle) == 1 else 'add'} nothing: of so few rows "
                f"less than one is drawn in all {rounds:,} rounds",
                "Give them more rows, or leave them out: under uniform averaging they slow the others down",
                {"clients": len(idle)},
            )


def unequal_clients(evidence: Evidence) -> Iterator[Finding]:
    """Clients of unequal size that count alike."""
    record, settings = evidence.federation, evidence.settings
    if record is None or settings.averaging != "uniform" or not isinstance(settings.make_aggregator(), Average):
        return
    for silo in record.silos:
        clients = sorted((client for client in silo.clients if client.rows), key=lambda client: client.rows)
        if len(clients) < 2 or not silo.features or clients[-1].rows < UNEQUAL * clients[0].rows:
            continue
        few, many = clients[0], clients[-1]
        yield Finding(
            f"unequal-clients-{silo.name}",
            "note",
            f"In silo '{silo.name}' a row of client '{few.name}' ({few.rows:,} rows) weighs {many.rows / few.rows:.1f} "
            f"times as much as one of '{many.name}' ({many.rows:,}), as all clients count alike",
            'For a loss in which all rows weigh the same: averaging = "samples"',
            {"fewest": few.rows, "most": many.rows},
        )


def _clients(names: list[str]) -> str:
    return f"{'Client' if len(names) == 1 else 'Clients'} {join_names(names)}"
