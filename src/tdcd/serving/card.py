"""The model card: what a model is, in words, beside it."""

from collections.abc import Iterator

from tdcd.runs.history import History
from tdcd.runs.records import PARTS
from tdcd.serving.record import ModelRecord


def model_card(record: ModelRecord) -> str:
    """Return what is known of a model, as Markdown."""
    return "\n".join(_lines(record)) + "\n"


def _lines(record: ModelRecord) -> Iterator[str]:
    federation = record.federation
    names = [silo.name for silo in federation.silos]
    yield f"# {record.name}"
    yield ""
    state = "after its end" if record.ended else "on its way"
    yield (
        f"A model of {len(names)} silo{'s' * (len(names) > 1)} ({', '.join(names)}), trained by Tiered Decentralized "
        f"Coordinate Descent. Weights of round {record.round:,} of {record.rounds:,}, assembled {state} on "
        f"{record.assembled[:10]} with tdcd {record.versions.get('tdcd', '')}; run {record.run}."
    )
    yield ""
    yield "## What it predicts"
    yield ""
    labels = {
        name: silo["label"] for name, silo in record.job.get("silos", {}).items() if isinstance(silo.get("label"), str)
    }
    where = "; ".join(f"column '{column}' of silo '{name}'" for name, column in labels.items())
    classes = f" Classes: {', '.join(federation.classes)}." if federation.classes else ""
    yield f"Trained with the loss {federation.loss} on {where or 'the labels of its data'}.{classes}"
    yield ""
    yield "## What it was trained on"
    yield ""
    yield (
        f"{federation.samples:,} samples; {federation.validation_samples:,} for validation, "
        f"{federation.test_samples:,} for testing."
    )
    yield ""
    yield "| silo | clients | network | weights | inputs from |"
    yield "|---|---|---|---|---|"
    for silo in federation.silos:
        columns = ", ".join(column.name for column in silo.columns[:12]) + " …" * (len(silo.columns) > 12)
        network = silo.network if silo.features else "labels only"
        yield f"| {silo.name} | {len(silo.clients)} | {network} | {silo.parameters:,} | {columns or silo.row_shape} |"
    yield ""
    yield "## How good it is"
    yield ""
    yield from _measures(record)
    yield ""
    yield "## What to keep in mind"
    yield ""
    yield (
        "It is meant for rows like those that it was trained on; predictions say which columns differ. Weights tell of "
        "the rows behind them, and preparations hold means and categories of columns: give it to nobody who may not "
        "know these."
    )


def _measures(record: ModelRecord) -> Iterator[str]:
    if not record.history:
        yield "It was not measured."
        return
    kept = History(record.history).kept(record.round)
    parts = [part for part in PARTS if kept.measures(part)]
    if not parts:
        yield "What was measured is at the hub of the silo that holds the labels."
        return
    names = list(dict.fromkeys(name for part in parts for name in kept.shown(part)))
    yield f"Measured after round {kept.round:,}."
    yield ""
    yield f"| | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for part in parts:
        values = kept.measures(part)
        cells = (f"{values[name]:.4f}" if name in values else "" for name in names)
        rows = kept.rows.get(part)
        partial = f" ({rows.measured:,} of {rows.every:,} rows)" if rows and rows.measured < rows.every else ""
        yield f"| {part}{partial} | {' | '.join(cells)} |"
