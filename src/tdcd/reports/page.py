"""A run as one HTML page that opens anywhere, without a network."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from tdcd.errors import RunError
from tdcd.files import flat, write_atomically
from tdcd.reports.figures import Curve, curves
from tdcd.reports.files import RunFiles, read_run
from tdcd.reports.topology import SHOWN, topology

LABELS = {"auroc": "AUROC", "auprc": "AUPRC", "f1": "F1", "top5": "top-5 accuracy", "mse": "mean squared error",
          "r2": "R²"}  # fmt: skip
PREFERRED = ("accuracy", "auroc", "r2")
"""Which metric is drawn, by preference; AUROC comes first where the loss is binary."""


def write_report(run: Path | str) -> Path:
    """Write a run's ``report.html`` from its files and return its path."""
    files = read_run(Path(run))
    page = files.path / "report.html"
    try:
        text = render(files)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{files.path}: a file of it is damaged: {type(error).__name__}: {error}") from error
    write_atomically(page, text)
    return page


def render(run: RunFiles) -> str:
    """Return the page."""
    metric = _metric(run)
    runs = {"federation": run, **run.baselines}
    template = Environment(loader=PackageLoader("tdcd.reports"), autoescape=True).get_template("run.html")
    return template.render(
        run=run,
        status=run.result.get("status", "under way"),
        cards=list(_cards(run, metric)),
        topology=Markup(topology(run.federation["silos"])),  # noqa: S704
        unseen=any(len(silo["clients"]) > SHOWN for silo in run.federation["silos"]),
        silos=[_silo(silo) for silo in run.federation["silos"]],
        figures=[Markup(svg) for svg in _figures(runs, metric)],  # noqa: S704
        results=_results(runs, metric),
        settings=[(key, _told(value)) for key, value in flat(run.job)],
        session=run.sessions[0],
        resumed=len(run.sessions) - 1,
    )


def label(metric: str) -> str:
    """Return a metric's name as people write it."""
    return LABELS.get(metric, metric.replace("_", " "))


def _metric(run: RunFiles) -> str:
    test = run.history[-1]["test"] if run.history else {}
    order = ("auroc", *PREFERRED) if run.federation["loss"] == "binary-cross-entropy" else PREFERRED
    return next((name for name in order if name in test), "")


def _cards(run: RunFiles, metric: str) -> Iterator[tuple[str, str]]:
    if run.history:
        last = run.final
        if metric:
            yield f"test {label(metric)}", _number(last["test"][metric])
        yield "training loss", _number(last["train"]["loss"])
        yield "rounds", f"{last['round']:,}"
        yield "local steps", f"{last['iteration']:,}"
        yield "time", _duration(last["seconds"])
    yield "silos", str(len(run.federation["silos"]))
    yield "clients", f"{sum(len(silo['clients']) for silo in run.federation['silos']):,}"
    yield "samples", f"{run.federation['samples']:,}"


def _figures(runs: Mapping[str, RunFiles], metric: str) -> Iterator[str]:
    history = runs["federation"].history
    if not history:
        return
    sets = [part for part in ("train", "validation", "test") if history[0][part]]
    losses = [_curve(part, runs["federation"], part, "loss") for part in sets]
    positive = all(value > 0 for curve in losses for value in curve.y)
    yield curves("loss", losses, "local steps", "loss", logarithmic=positive)
    if metric:
        shown = [_curve(name, run, "test", metric) for name, run in runs.items() if run.history]
        yield curves("metric", shown, "local steps", f"test {label(metric)}")


def _curve(name: str, run: RunFiles, part: str, measure: str) -> Curve:
    points = [(line["iteration"], line[part][measure]) for line in run.history if measure in line[part]]
    return Curve(name, [x for x, _ in points], [y for _, y in points])


def _results(runs: Mapping[str, RunFiles], metric: str) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the header and rows of the table of final measures."""
    finals = {name: run.final for name, run in runs.items() if run.history}
    if not finals:
        return [], []
    names = list(next(iter(finals.values()))["test"])
    validated = [metric] if metric and any(metric in final["validation"] for final in finals.values()) else []
    header = ["training loss", *(f"validation {label(name)}" for name in validated)]
    header += [f"test {label(name)}" for name in names]
    rows = [
        (
            who,
            [
                _number(final["train"]["loss"]),
                *(_number(final["validation"].get(name)) for name in validated),
                *(_number(final["test"].get(name)) for name in names),
            ],
        )
        for who, final in finals.items()
    ]
    return header, rows


def _silo(silo: Mapping[str, Any]) -> dict[str, str]:
    rows = [client["rows"] for client in silo["clients"]]
    return {
        "name": silo["name"],
        "row": " × ".join(map(str, silo["row_shape"])),
        "clients": f"{len(rows):,}",
        "rows": f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}",
        "network": silo["network"],
        "parameters": f"{silo['parameters']:,}",
        "compute": silo["compute"],
    }


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}" if abs(value) < 1e6 else f"{value:.1e}"


def _told(value: Any) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
