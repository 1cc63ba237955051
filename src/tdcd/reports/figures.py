"""Figures, drawn by matplotlib."""

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, Literal, final

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.ticker import FormatStrFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette: distinct to colour-blind readers."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
"""And distinct in black and white."""

FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "Noto Sans Arabic", "Noto Sans Hebrew")
"""For letters that matplotlib's own font lacks, where they are installed."""
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar in a name is a dollar
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
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    """The band around it, where several runs make one line."""
    colour: int | str | None = None
    """Which of the colours, or one of its own; default: its place among the curves."""
    kind: Literal["main", "dots", "thin", "level"] = "main"
    """"dots" marks each point; "thin" stands back; "level" is one height, whatever x."""
    partial: Sequence[int] = ()
    """Places of points that were measured on some of the rows only: they are drawn hollow."""


@dataclass(frozen=True)
class Drawing(ABC):
    """A figure that can be written in several formats."""

    name: str
    """Its file's name; also keeps the inner IDs of several figures on a page apart."""
    caption: str
    x: str

    @property
    @abstractmethod
    def summary(self) -> str:
        """What it shows, for whoever cannot see it."""

    @abstractmethod
    def draw(self) -> Figure:
        """Draw it."""

    @cached_property
    def _laid_out(self) -> Figure:
        with _style():
            figure = self.draw()
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # everything has its place, whatever the format
        return figure

    @final
    def svg(self) -> str:
        """Return an ``<svg>`` element."""
        buffer = io.StringIO()
        with _style({"svg.hashsalt": self.name}):
            self._laid_out.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        svg = buffer.getvalue()
        return svg[svg.index("<svg") :].replace("<svg ", f'<svg role="img" aria-label="{escape(self.summary)}" ', 1)

    @final
    def png(self) -> bytes:
        """Return a PNG, large enough for print."""
        buffer = io.BytesIO()
        with _style():
            self._laid_out.savefig(buffer, format="png", dpi=200, metadata={"Software": None})
        return buffer.getvalue()


@dataclass(frozen=True)
class Picture(Drawing):
    """Curves."""

    y: str
    curves: Sequence[Curve]
    logarithmic: Literal["", "y", "xy"] = ""
    limit: float | None = None
    """Where x ends, if some curves go much further than others."""
    axes: Literal["counts", "shares", "values"] = "counts"
    """Whether x is counted, or both x and y are shares, from 0 to 1, or x is any number."""

    @property
    def summary(self) -> str:
        """See Drawing."""
        return f"{self.y} over {self.x}"

    def draw(self) -> Figure:
        """See Drawing."""
        figure = Figure(figsize=(5.2, 3.5), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        drawn: list[Any] = []
        for index, curve in enumerate(self.curves):
            chosen = index if curve.colour is None else curve.colour
            colour = COLOURS[chosen % len(COLOURS)] if isinstance(chosen, int) else chosen
            style: Any = (
                STYLES[(chosen + chosen // len(COLOURS)) % len(STYLES)] if isinstance(chosen, int) else (0, (4, 2))
            )
            if curve.kind == "level":
                drawn.append(axes.axhline(curve.y[-1], color=colour, linestyle=style, linewidth=1.2, zorder=1))
                continue
            drawn += axes.plot(
                curve.x,
                curve.y,
                color=colour,
                linestyle=(0, (1, 1)) if curve.kind == "thin" else style,
                linewidth=1.1 if curve.kind == "thin" else 2.0,
                marker="o" if len(curve.x) == 1 or curve.kind == "dots" else None,
            )
            hollow = [(curve.x[place], curve.y[place]) for place in curve.partial]
            if hollow:
                places, heights = zip(*hollow, strict=True)
                axes.scatter(places, heights, s=34, facecolors="white", edgecolors=colour, zorder=3)
            if curve.low is not None and curve.high is not None:
                axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
        if "y" in self.logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if self.logarithmic == "y" else (1,)))
            axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if "x" in self.logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        elif self.axes == "counts":
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            if self.limit:
                axes.set_xlim(right=self.limit, left=-0.02 * self.limit)
        if self.axes == "shares":
            axes.set_xlim(-0.01, 1.01)
            axes.set_ylim(-0.01, 1.03)
        if len(self.curves) > 1:
            longest = max(len(curve.label) for curve in self.curves)
            if longest > 24 or len(self.curves) > 8:  # no room among the curves
                columns = max(1, min(3, 66 // (longest + 6)))
                legend = figure.legend(
                    drawn, _blank(drawn), frameon=False, fontsize="small", loc="outside lower center", ncols=columns
                )
                figure.set_figheight(3.5 + 0.2 * -(-len(self.curves) // columns))
            else:
                columns = 2 if len(self.curves) > 6 else 1
                legend = axes.legend(drawn, _blank(drawn), frameon=False, fontsize="small", ncols=columns)
            for text, curve in zip(legend.get_texts(), self.curves, strict=True):
                text.set_text(curve.label)
        return figure


@dataclass(frozen=True)
class Bars(Drawing):
    """Parts of a whole for several lines, as bars that lie on top of each other."""

    labels: Sequence[str]
    parts: Mapping[str, Sequence[float]]
    """A value for every label, by the name of the part."""

    @property
    def summary(self) -> str:
        """See Drawing."""
        return f"{self.x} by {', '.join(self.parts)}"

    def draw(self) -> Figure:
        """See Drawing."""
        figure = Figure(figsize=(5.2, 1.3 + 0.32 * len(self.labels)), layout="constrained")
        axes = figure.add_subplot()
        done = [0.0] * len(self.labels)
        for index, (name, values) in enumerate(self.parts.items()):
            colour, hatch = COLOURS[index], ("", "//", "..")[index % 3]
            places = range(len(self.labels))  # two lines may have one label
            axes.barh(places, values, left=done, label=name, color=colour, hatch=hatch, edgecolor="white")
            done = [before + value for before, value in zip(done, values, strict=True)]
        axes.set_yticks(range(len(self.labels)), self.labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(self.x)
        figure.legend(frameon=False, fontsize="small", loc="outside lower center", ncols=3)
        return figure


def _blank(drawn: Sequence[Any]) -> list[str]:
    """Return labels to make a legend of; matplotlib leaves out what is called by names such as ``_x``."""
    return [" "] * len(drawn)


@contextmanager
def _style(more: Mapping[Any, Any] = {}) -> Iterator[None]:
    """Draw in the style of all figures. Letters that no font here has are for whoever looks at the figure to show."""
    names = {font.name for font in fontManager.ttflist}
    fonts = ["DejaVu Sans", *(name for name in FONTS if name in names)]
    with matplotlib.rc_context({**_RC, "font.sans-serif": fonts, **more}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        warnings.filterwarnings("ignore", message="Creating legend with loc=")  # slow, on a busy machine
        warnings.filterwarnings("ignore", message=r"Matplotlib currently does not support .* natively")
        yield
