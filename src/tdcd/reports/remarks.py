"""What a reader must know before comparing numbers: whose data it is, who was away, whose view it is, who is slow."""

from collections.abc import Mapping, Sequence

from tdcd.costs import Costs
from tdcd.errors import join_names
from tdcd.reports.pricing import slow_clients
from tdcd.reports.study import Study
from tdcd.reports.words import count
from tdcd.runs.reader import RunRecord


def remarks(study: Study) -> list[str]:
    """Return what must be said of a study's numbers, a sentence each."""
    runs = {study.name_of(line): line.runs for line in study.lines}
    return [*_data(runs), *_views(runs), *_partial(runs, study.measure.part), *slowness(runs, study.costs)]


def _data(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Tell which runs are on other data than the others; how it was held out and dealt makes no difference."""
    groups: dict[str, list[str]] = {}
    for name, own in runs.items():
        for made in (run.federation for run in own[:1]):
            samples = made.samples + made.validation_samples + made.test_samples
            source = own[0].job.get("data", {}).get("source", "arrays")
            groups.setdefault(f"{source}, {samples:,} samples, {made.loss}", []).append(name)
    if len(groups) < 2:
        return []
    texts = [f"{join_names(names)}: {what}" for what, names in groups.items()]
    return [f"Not the same data, so that losses and metrics do not compare. {'; '.join(texts)}"]


def _views(runs: Mapping[str, Sequence[RunRecord]]) -> list[str]:
    """Tell which runs are what one hub knows."""
    hubs = {name: own[0].federation for name, own in runs.items() if own and own[0].is_hub}
    views = [f"{name}: silo {one.silos[0].name}, 1 of {len(one.peers) + 1}" for name, one in hubs.items()]
    if not views:
        return []
    bytes_ = "what its silo's hub and clients sent, which does not compare with the bytes of a whole federation"
    return [f"One hub's view: {'; '.join(views)}. A hub knows {bytes_}"]


def _partial(runs: Mapping[str, Sequence[RunRecord]], part: str) -> list[str]:
    """Tell which runs were measured in the end while clients were away."""
    texts = []
    for name, own in runs.items():
        finals = [run.kept for run in own if run.history]
        rows = [line.rows[part] for line in finals if part in line.partial]
        if rows:
            texts.append(f"{name}: {rows[0].measured:,} of {rows[0].every:,}")
    word = "training" if part == "train" else part
    return [f"Clients were away when the {word} rows were measured: {join_names(texts)}"] if texts else []


def slowness(runs: Mapping[str, Sequence[RunRecord]], costs: Costs) -> list[str]:
    """Tell who is slow, where some clients are to be."""
    if not costs.slow_clients or costs.slowdown == 1:
        return []
    groups: dict[str, list[str]] = {}
    for name, own in runs.items():
        if own and not own[0].in_one_place and not own[0].is_hub:
            groups.setdefault(_describe_slow(own[0], costs), []).append(name)
    if len(groups) == 1:
        return list(groups)
    return [f"{join_names(names)}: {text}" for text, names in groups.items()]


def _describe_slow(run: RunRecord, costs: Costs) -> str:
    slow = slow_clients(run, costs)
    total = sum(len(silo.clients) for silo in run.federation.silos)
    if not slow:
        return (
            f"nobody is slow: slow_clients = {costs.slow_clients:g} with seed = {costs.seed} draws none of the "
            f"{count(total, 'client')}; raise slow_clients, or draw again with another seed"
        )
    return (
        f"{len(slow):,} of {count(total, 'client')} {'is' if len(slow) == 1 else 'are'} slow and "
        f"{'takes' if len(slow) == 1 else 'take'} {costs.slowdown:g} times as long for a step: "
        f"{join_names(slow, most=8)}"
    )
