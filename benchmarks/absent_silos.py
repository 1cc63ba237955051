"""Tabulate and draw sweeps of silo dropout: what a model predicts with all silos, and without each of them.

    tdcd sweep benchmarks/absent_silos/credit.toml -o runs/credit
    tdcd sweep benchmarks/absent_silos/adult.toml -o runs/adult
    python benchmarks/absent_silos.py Credit=runs/credit Adult=runs/adult --figure docs/absent-silos.svg

Without a silo, predictions are made of the sum of the other silos' embeddings. They are compared with the best of the
other silos that was trained by itself. Numbers are test AUROC of the weights with the lowest validation loss.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from tdcd.core.task import sum_embeddings
from tdcd.data.holdout import Part
from tdcd.data.samples import Samples
from tdcd.jobs.data import load_data
from tdcd.jobs.load import load_job
from tdcd.reports.figures import COLOURS, STYLES, Drawing
from tdcd.runs.layout import JOB
from tdcd.runs.reader import read_sweep
from tdcd.training.metrics import measure
from tdcd.training.result import Result

ALL = "all silos"


@dataclass(frozen=True)
class Line:
    """What one probability gave."""

    probability: float
    rate: float
    auroc: Mapping[str, Sequence[float]]
    """Of each seed: with all silos, and without each of them by its name."""


@dataclass(frozen=True)
class Study:
    """What one sweep gave."""

    title: str
    lines: Sequence[Line]
    alone: Mapping[str, Sequence[float]]
    """AUROC of each silo that was trained by itself, of each seed."""

    def best_other(self, silo: str) -> Sequence[float]:
        """Return, of each seed, the best AUROC of another silo that was trained by itself."""
        return [max(values) for values in zip(*(v for name, v in self.alone.items() if name != silo), strict=True)]

    def margins(self, line: Line, key: str) -> list[float]:
        """Return what a line's AUROC exceeds, of each seed: without a silo, the best other alone; else p = 0."""
        wanted = self.lines[0].auroc[ALL] if key == ALL else self.best_other(key)
        return [here - there for here, there in zip(line.auroc[key], wanted, strict=True)]


def aurocs(result: Result, samples: Samples) -> dict[str, float]:
    """Return a run's AUROC with all silos, and without each of them."""
    with torch.no_grad():
        embeddings = {silo: network(samples.features[silo]) for silo, network in result.modules().items()}
    labels = result.objective.prepare(samples.labels, result.description.embedding, result.settings.dtype)

    def auroc(of: Mapping[str, Tensor]) -> float:
        return measure(result.objective, sum_embeddings(of), labels)["auroc"]

    others = {silo: {name: rows for name, rows in embeddings.items() if name != silo} for silo in embeddings}
    return {ALL: auroc(embeddings)} | {silo: auroc(of) for silo, of in others.items()}


def read(title: str, folder: Path) -> Study:
    """Read a sweep and predict with its models."""
    lines: list[Line] = []
    alone: dict[str, Sequence[float]] = {}
    held: dict[int, Samples] = {}
    for one in read_sweep(folder).combinations:
        runs = [(folder / seed.path, seed.seed) for seed in one.runs]
        if one.variant.endswith(" alone"):
            values = [Result.load(run).kept.test["auroc"] for run, _ in runs]
            alone[one.variant.removesuffix(" alone")] = values
        elif one.variant == "federation":
            for run, seed in runs:
                if seed not in held:  # runs with the same seed hold out the same samples
                    held[seed] = load_data(load_job(run / JOB)).held_out[Part.TEST]
            each = [aurocs(Result.load(run), held[seed]) for run, seed in runs]
            (probability,) = one.values.values()
            lines.append(Line(probability, one.rate or 0.0, {key: [e[key] for e in each] for key in each[0]}))
    return Study(title, lines, alone)


def spread(values: Sequence[float]) -> str:
    """Return a mean, and half of the range."""
    return f"{mean(values):.4f} ± {(max(values) - min(values)) / 2:.4f}"


def table(study: Study) -> str:
    """Return a study as a table."""
    head = ["p", "rate"]
    for key in study.lines[0].auroc:
        head += [ALL, "less p = 0"] if key == ALL else [f"without {key}", "less the best other alone (worst seed)"]
    rows = [head, ["---"] * len(head)]
    for line in study.lines:
        row = [f"{line.probability:g}", f"{line.rate:g}"]
        for key, values in line.auroc.items():
            margins = study.margins(line, key)
            row += [spread(values), f"{mean(margins):+.4f}" + (f" ({min(margins):+.4f})" if key != ALL else "")]
        rows.append(row)
    alone = ["the best other, alone", "", "", ""]
    for silo in study.alone:
        alone += [spread(study.best_other(silo)), ""]
    return "\n".join("| " + " | ".join(row) + " |" for row in [*rows, alone])


@dataclass(frozen=True)
class Panels(Drawing):
    """A panel for every study: differences of AUROC by probability."""

    studies: Sequence[Study]

    @property
    def summary(self) -> str:
        """What it shows, for whoever cannot see it."""
        return f"difference of test AUROC over {self.x}: {', '.join(study.title for study in self.studies)}"

    def draw(self) -> Figure:
        """Draw it."""
        figure = Figure(figsize=(3.6 * len(self.studies), 3.6), layout="constrained")
        drawn: dict[str, Any] = {}
        panels = figure.subplots(1, len(self.studies), sharey=True, squeeze=False)[0]
        for axes, study in zip(panels, self.studies, strict=True):
            axes.set_title(study.title, fontsize="medium")
            axes.set_xlabel(self.x)
            axes.axhline(0, color="#888888", linewidth=1)
            p = [line.probability for line in study.lines]
            for place, key in enumerate(study.lines[0].auroc):
                values, colour = [study.margins(line, key) for line in study.lines], COLOURS[place]
                label = f"{key}, less p = 0" if key == ALL else f"without {key}, less the other silo alone"
                (drawn[label],) = axes.plot(p, [mean(v) for v in values], color=colour, linestyle=STYLES[place])
                axes.fill_between(
                    p, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15, linewidth=0
                )
        figure.axes[0].set_ylabel("difference of test AUROC")
        figure.legend(drawn.values(), drawn, frameon=False, fontsize="small", loc="outside lower center")
        return figure


def main() -> None:
    """Print the tables; draw the figure if one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", metavar="TITLE=FOLDER")
    parser.add_argument("--figure", type=Path, help="an SVG file to write")
    given = parser.parse_args()
    pairs = [sweep.partition("=") for sweep in given.sweeps]
    studies = [read(title, Path(folder)) for title, _, folder in pairs]
    for study in studies:
        print(f"{study.title}\n\n{table(study)}\n")
    if given.figure:
        drawing = Panels(given.figure.stem, "", "silo_dropout", studies)
        given.figure.write_text(drawing.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
