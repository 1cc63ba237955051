"""A run as one HTML page that opens anywhere, without a network."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from tdcd.core.ledger import Traffic
from tdcd.core.objectives.base import NULL_LOSS
from tdcd.core.script import Sharing
from tdcd.costs import T_COMM, Costs
from tdcd.errors import RunError, join_names, nearest
from tdcd.files import flat, write_atomically
from tdcd.reports.figures import Curve, Picture
from tdcd.reports.frame import LOSS, Measure, evaluation_frame
from tdcd.reports.importance import importance_view
from tdcd.reports.pricing import check_speeds, times, traffic_by_round
from tdcd.reports.quality import quality_view
from tdcd.reports.theory import theory_view
from tdcd.reports.topology import SHOWN, topology
from tdcd.reports.words import (
    WAYS,
    Table,
    duration,
    format_setting,
    label,
    metric_of,
    number,
    rounds_of,
    size,
    speak,
    time,
)
from tdcd.runs.quality import QualityRecord
from tdcd.runs.reader import RunRecord, read_run
from tdcd.runs.records import PARTS, SiloRecord

NULL = f"test_{NULL_LOSS}"


def write_report(
    run: Path | str, *, metric: str | None = None, t_comm: Sequence[float] = T_COMM, costs: Costs | None = None
) -> Path:
    """Write a run's ``report.html`` from its files and return its path.

    Args:
        run: The run directory.
        metric: The test metric to draw; default: as fits the loss.
        t_comm: Latencies to tell the run's time for.
        costs: What else takes time; default: as in the paper.
    """
    files = read_run(run)
    check_speeds(costs or Costs(), [files])
    page = files.path / "report.html"
    try:
        text = render(files, metric, t_comm, costs or Costs())
    except (LookupError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        raise RunError(f"{files.path}: a file of it is damaged: {type(error).__name__}: {error}") from error
    forget_extras(files.path)
    write_atomically(page, text)
    return page


def write_evaluation(record: QualityRecord, path: Path, title: str, of: str) -> None:
    """Write how good a model is on labelled samples as one HTML page.

    Args:
        record: What was measured.
        path: Where.
        title: Of the page.
        of: The model, in words.
    """
    write_atomically(path, fill("evaluation.html", title=title, of=of, quality=quality_view(record)))


def forget_extras(directory: Path) -> None:
    """Remove figures and tables that were drawn before: they may be of other rounds or costs."""
    for file in (directory / "report").glob("*"):
        if file.suffix in (".svg", ".png", ".csv"):
            file.unlink(missing_ok=True)


def render(run: RunRecord, metric: str | None, t_comm: Sequence[float], costs: Costs) -> str:
    """Return the page."""
    metric = _metric(run, metric)
    runs = {speak(run.variant): run, **run.baselines}
    return fill(
        "run.html",
        title=run.job.get("name", "run"),
        run=run,
        status=run.status,
        cards=list(_cards(run, metric)),
        findings=run.outcome.findings if run.outcome else (),
        figures=[Markup(picture.svg()) for picture in pictures(run, metric)],  # noqa: S704
        results=_results(runs, metric),
        quality=quality_view(run.quality) if run.quality else None,
        importance=importance_view(run.importance) if run.importance else None,
        theory=theory_view(run.theory) if run.theory else None,
        costs=_costs(runs, t_comm, costs),
        privacy=_privacy(run, t_comm, costs),
        partial=_partial(run),
        cluster=run.outcome.cluster if run.outcome else None,
        nodes=_nodes(run),
        hidden=bool(run.history) and not run.history[-1].train,
        settings=[(key, format_setting(value)) for key, value in flat(run.job)],
        **who(run),
    )


def fill(template: str, **values: Any) -> str:
    """Fill in a template; texts are escaped."""
    return Environment(loader=PackageLoader("tdcd.reports"), autoescape=True).get_template(template).render(**values)


def who(run: RunRecord) -> dict[str, Any]:
    """Return what the parts of a page about participants and the machine need."""
    silos = run.federation.silos
    label_holder = run.label_silo if run.sharing != "shared" and not run.in_one_place else None
    return {
        "topology": Markup(topology(silos, label_holder)),  # noqa: S704
        "label_holder": label_holder,
        "unseen": any(len(silo.clients) > SHOWN for silo in silos),
        "silos": [_silo(silo) for silo in silos],
        "session": run.sessions[0],
        "resumed": len(run.sessions) - 1,
    }


def _metric(run: RunRecord, wanted: str | None) -> str:
    """Return the test metric to draw; none if there were no test samples."""
    test = run.history[-1].test if run.history else {}
    if wanted and wanted not in test:
        raise RunError(f"metric: '{wanted}' was not measured on the test samples{nearest(wanted, test)}")
    return wanted or (metric_of(run.federation.loss, test) if test else "")


def pictures(run: RunRecord, metric: str | None = None) -> Iterator[Picture]:
    """Yield the figures of a run."""
    metric, name = _metric(run, metric), speak(run.variant)
    frame = evaluation_frame({name: run, **run.baselines})
    own = frame.filter(run=name)
    losses = [_curve(part, own, Measure(part, "loss")) for part in PARTS]
    losses = [curve for curve in losses if curve.x]
    if not losses:  # nothing was measured, or this hub does not receive it
        return
    positive = all(value > 0 for curve in losses for value in curve.y)
    yield Picture("loss", "", "local steps", "loss", losses, "y" if positive else "")
    if metric:
        runs = frame.partition_by("run", maintain_order=True)
        shown = [_curve(one["run"][0], one, Measure("test", metric)) for one in runs]
        yield Picture("metric", "", "local steps", f"test {label(metric)}", shown)


def _cards(run: RunRecord, metric: str) -> Iterator[tuple[str, str]]:
    if run.history:
        kept = run.kept
        if metric:
            yield f"test {label(metric)}", number(kept.test[metric])
        if kept.train:
            yield "training loss", number(kept.train["loss"])
        ended = run.history[-1]
        yield "rounds", rounds_of(run)
        if kept.round != ended.round:
            yield "round of the weights", f"{kept.round:,}"
        yield "local steps", f"{ended.iteration:,}"
        yield "time", duration(ended.seconds)
        if not run.in_one_place:
            yield "sent by this silo" if run.is_hub else "sent in all", size(ended.traffic.total)
    silos, clients = run.federation.silos, sum(len(silo.clients) for silo in run.federation.silos)
    if run.is_hub:
        yield "this hub's silo", silos[0].name
        yield "silos in all", str(1 + len(run.federation.peers))
    else:
        yield "silo" if len(silos) == 1 else "silos", str(len(silos))
    yield ("client" if clients == 1 else "clients") + (" of this silo" if run.is_hub else ""), f"{clients:,}"
    yield "samples", f"{run.federation.samples:,}"


def _partial(run: RunRecord) -> str:
    """Tell which evaluations lack rows of absent clients, and whether that of the weights that are kept is one."""
    lines = [line for line in run.history if line.partial]
    if not lines:
        return ""
    count = f"{len(lines):,} of {len(run.history):,} evaluations" if len(lines) > 1 else "one evaluation"
    fewest = {
        part: min((line.rows[part] for line in lines if part in line.partial), key=lambda rows: rows.measured)
        for part in PARTS
        if any(part in line.partial for line in lines)
    }
    least = join_names((f"{r.measured:,} of {r.every:,} {part} rows" for part, r in fewest.items()), most=3)
    text = f"In {count} clients were away: measured were {'at least ' if len(lines) > 1 else ''}{least}."
    text += " Such evaluations, drawn hollow, decide neither which weights are kept nor when to stop."
    if run.kept.partial:
        text += " The measures of the weights that are kept are of this kind."
    return text


def _curve(name: str, frame: pl.DataFrame, measure: Measure) -> Curve:
    points = measure.of(frame).drop_nulls("value")
    partial = [place for place, whole in enumerate(points["whole"]) if not whole]
    return Curve(name, points["iteration"].to_list(), points["value"].to_list(), partial=partial)


def _results(runs: Mapping[str, RunRecord], metric: str) -> Table:
    """Return the table of final measures."""
    finals = LOSS.of(evaluation_frame(runs)).filter("kept").drop_nulls("value")
    if finals.is_empty():
        return [], []
    measured = [name for name in finals.columns if not finals[name].is_null().all()]
    tests = [name.removeprefix("test_") for name in measured if name.startswith("test_") and name != NULL]
    shown = [LOSS, *(Measure("test", name) for name in tests)]
    if f"validation_{metric}" in measured:
        shown.insert(1, Measure("validation", metric))
    columns = [f"{measure.part}_{measure.name}" for measure in shown]
    rows = [(str(who), [number(value) for value in values]) for who, *values in finals.select("run", *columns).rows()]
    return [measure.label for measure in shown], rows


def _costs(runs: Mapping[str, RunRecord], t_comm: Sequence[float], costs: Costs) -> Table:
    """Return the table of bytes and simulated times."""
    rows = []
    for name, run in runs.items():
        if run.history and run.history[-1].round:
            sent = ["–" if run.in_one_place else size(getattr(run.history[-1].traffic, way)) for way in WAYS]
            rows.append(
                ("this silo" if run.is_hub else name, [*sent, *(time(times(run, costs.at(t))[-1]) for t in t_comm)])
            )
    return _prices(t_comm), rows


def _prices(t_comm: Sequence[float]) -> list[str]:
    return [*WAYS.values(), *(f"time at t_comm {t:g}" for t in t_comm)]


def _privacy(run: RunRecord, t_comm: Sequence[float], costs: Costs) -> Table:
    """Return the table of what the run would send and take if its labels were shared, or kept in their silo."""
    others = {silo.name for silo in run.federation.silos if silo.features} - {run.label_silo}
    if run.label_silo is None or run.in_one_place or not run.history or not others:
        return [], []
    if run.federation.peers:  # one hub does not know who holds what elsewhere
        return [], []
    rows = []
    ways: tuple[Sharing, ...] = ("shared", "stale", "exact")
    for sharing in ways:
        total = sum(traffic_by_round(run, sharing), Traffic())
        sent = [size(getattr(total, way)) for way in WAYS]
        spent = [time(times(run, costs.at(t), sharing)[-1]) for t in t_comm]
        rows.append((f"{sharing} (this run)" if sharing == run.sharing else sharing, [*sent, *spent]))
    return _prices(t_comm), rows


def _nodes(run: RunRecord) -> Table:
    """Return the table of the cluster's nodes, if one computed the last session."""
    usage = run.outcome.cluster if run.outcome else None
    if usage is None or not usage.rounds:
        return [], []
    rows = [
        (node.name, [str(node.cores), str(node.bundles), str(node.hubs), duration(node.seconds), f"{share:.0%}"])
        for node, share in ((node, usage.share(node)) for node in usage.nodes)
    ]
    return ["cores", "bundles of clients", "hubs", "computed", "busy"], rows


def _silo(silo: SiloRecord) -> dict[str, str]:
    rows = [client.rows for client in silo.clients]
    return {
        "name": silo.name,
        "row": " × ".join(map(str, silo.row_shape)) if silo.features else "–",
        "clients": f"{len(rows):,}",
        "rows": f"{min(rows):,}" if min(rows) == max(rows) else f"{min(rows):,} to {max(rows):,}",
        "network": silo.network,
        "parameters": f"{silo.parameters:,}",
        "compute": silo.compute,
    }
