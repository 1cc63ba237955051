"""Options that say what time things take, shared by commands that look at runs."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tdcd.costs import Costs

TComm = Annotated[
    list[float] | None,
    typer.Option("--t-comm", help="Latency of a round trip, in local steps; may be given several times."),
]
Cost = Annotated[
    list[str] | None,
    typer.Option(
        "--cost",
        metavar="KEY=VALUE",
        help="What else takes time: hub_latency, client_bandwidth, slow_clients, slowdown … (docs/sweeps.md).",
    ),
]
Metric = Annotated[str | None, typer.Option("--metric", help="The test metric: accuracy, f1, auroc, top5 …")]
Target = Annotated[float | None, typer.Option("--target", help="The value of the metric to reach.")]


def costs_of(given: list[str] | None) -> "Costs | None":
    """Read ``--cost`` options; none given is none."""
    from pydantic import ValidationError

    from tdcd.costs import Costs
    from tdcd.errors import JobError
    from tdcd.strict import parse_setting, problems

    if not given:
        return None
    settings = dict(parse_setting(text, "--cost") for text in given)
    if "t_comm" in settings:
        raise JobError(f"--cost t_comm: write --t-comm {settings['t_comm']} instead")
    try:
        return Costs.model_validate(settings)
    except ValidationError as error:
        raise JobError("\n".join(f"--cost: {problem}" for problem in problems(error))) from error
