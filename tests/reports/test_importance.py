"""What matters, in the report of a run."""

from dataclasses import replace
from pathlib import Path

import tdcd
from serving.models import train_tables
from tdcd.reports.importance import MOST, importance_bars, importance_view
from tdcd.runs.importance import Importance, Importances
from tdcd.runs.layout import FEDERATION, IMPORTANCE
from tdcd.runs.reader import read_run
from tdcd.runs.records import write_record

MANY = Importances(
    "accuracy", 0.75, 60, 5,
    (
        Importance("bank", "", 0.2, 0.01, {"x": 0.1, "y": 0.3}),
        *(Importance("bank", f"column {k} <b>", 0.01 * k - 0.02, 0.003, {"x": 0.0, "y": -0.01}) for k in range(15)),
    ),
)  # fmt: skip


def test_the_figure_has_silos_and_the_columns_that_matter_most() -> None:
    bars = importance_bars(MANY)
    assert bars.x == "fall of accuracy"
    assert bars.labels == ["bank, all columns", *(f"bank: column {k} <b>" for k in range(14, 14 - MOST, -1))]
    assert bars.parts["whole silos"] == [0.2] + [0.0] * MOST
    assert bars.parts["single columns"][:2] == [0.0, MANY.entries[-1].mean]
    (heads, rows), more = importance_view(MANY)["table"], importance_view(MANY)["more"]
    assert heads == ["fall of accuracy", "±", "AUROC of x", "AUROC of y"]
    assert rows[0] == ("bank, all columns", ["+0.2000", "0.0100", "+0.1000", "+0.3000"])
    assert (len(rows), more) == (1 + MOST, "5 columns")


def test_reports_of_runs_and_of_hubs_show_it(tmp_path: Path) -> None:
    run = train_tables(tmp_path, rounds=2)
    assert "What matters" not in tdcd.write_report(run).read_text()
    write_record(run / IMPORTANCE, MANY)
    page = tdcd.write_report(run).read_text()
    assert "What matters" in page
    assert "dealt anew among\nall rows" in page
    assert "bank: column 14 &lt;b&gt;" in page
    assert "column 3 &lt;b&gt;" not in page
    record = read_run(run).federation
    write_record(run / FEDERATION, replace(record, silos=record.silos[:1], peers=("shop", "ward")))
    write_record(run / IMPORTANCE, replace(MANY, metric="loss", within_clients=True, notes=("clients were away",)))
    page = tdcd.write_report(run).read_text()
    assert "each client’s own rows" in page
    assert "how far it rises" in page
    assert "Columns of other silos are measured at their hubs." in page
    assert "Clients were away." in page
