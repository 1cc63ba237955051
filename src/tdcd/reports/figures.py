"""Curves as SVG, drawn by matplotlib."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullFormatter

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: distinct to colour-blind readers."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
"""And distinct in black and white."""

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Curve:
    """One line of a figure."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def curves(name: str, curves: Sequence[Curve], x: str, y: str, *, logarithmic: bool = False) -> str:
    """Draw curves in one figure and return it as an ``<svg>`` element. ``name`` keeps its inner IDs apart."""
    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        figure = Figure(figsize=(5.2, 3.3), layout="constrained")
        axes = figure.add_subplot()
        for index, curve in enumerate(curves):
            axes.plot(
                curve.x,
                curve.y,
                label=curve.label,
                color=COLOURS[index % len(COLOURS)],
                linestyle=STYLES[index % len(STYLES)],
                linewidth=2.4 if index == 0 else 1.8,
                marker="o" if len(curve.x) == 1 else None,
            )
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if len(curves) > 1:
            axes.legend(frameon=False)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{y} over {x}" ', 1)
