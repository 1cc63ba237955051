"""What the runs of a sweep show about its settings, and what to do about it."""

from collections.abc import Iterator, Sequence

from tdcd.errors import join_names
from tdcd.reports.findings import same_but
from tdcd.reports.lines import Line
from tdcd.reports.study import Study
from tdcd.reports.words import mean
from tdcd.runs.records import Finding

SLOWER = 1.05
"""More local steps cost more than they gain if they take so many times as long."""


def advice(study: Study) -> list[Finding]:
    """Return what runs show together, failures first."""
    lines = [line for line in study.lines if line.variant == "federation"]
    return [*_useless(study), *_edge_rates(lines), *_wasted_steps(study, lines)]


def _useless(study: Study) -> Iterator[Finding]:
    """Runs that learned nothing."""
    for line in study.lines:
        bad = [(run, f) for run in line.runs if run.outcome for f in run.outcome.findings if f.level == "failure"]
        if not bad:
            continue
        runs = len({run.path for run, _ in bad})
        yield Finding(
            "useless-runs",
            "failure",
            f"{study.name_of(line)}: {runs} of {len(line.runs)} runs learned nothing ({bad[0][1].text[0].lower()}"
            f"{bad[0][1].text[1:]})",
            bad[0][1].advice,
            {"runs": runs},
        )


def _edge_rates(lines: Sequence[Line]) -> Iterator[Finding]:
    """Rates that were chosen at the edge of those that were tried."""
    edges = ((min, "smallest", "smaller", 1 / 3), (max, "largest", "larger", 3.0))
    for edge, edge_word, word, times in edges:
        at = [line for line in lines if line.tried and len(line.tried) > 1 and line.rate == edge(line.tried)]
        for rate in sorted({line.rate for line in at if line.rate is not None}):
            names = [line.full for line in at if line.rate == rate]
            yield Finding(
                "rate-at-edge",
                "warning",
                f"The best rate for {join_names(names)} is the {edge_word} that was tried, {rate:g}",
                f"Try {word} ones too, such as {rate * times:.2g}",
                {"rate": rate},
            )


def _wasted_steps(study: Study, lines: Sequence[Line]) -> Iterator[Finding]:
    """Local steps that cost more than they gain at the study's latencies."""
    if study.target is None:
        return
    for group in same_but(lines, "Q"):
        for t in study.t_comm:
            spent = {line.steps: line.times_to(study.measure, study.target, study.costs.at(t)) for line in group}
            times = {steps: mean(values) for steps, values in spent.items() if values}
            fewest, most = min(times, default=0), max(times, default=0)
            if fewest == most or times[most] <= SLOWER * times[fewest]:
                continue
            best = min(times, key=lambda steps: times[steps])
            yield Finding(
                "wasted-steps",
                "warning",
                f"At t_comm {t:g}, Q = {most} takes {times[most] / times[fewest]:.1f} times as long as Q = {fewest} to "
                f"{study.measure.label} {study.target:g}: its local steps cost more than they gain",
                f"Use Q = {best} there, or a hub step below 1: docs/damping.md",
                {"t_comm": t, **{f"time_{steps}": value for steps, value in times.items()}},
            )
