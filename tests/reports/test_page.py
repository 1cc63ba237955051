"""The report: drawn from files only, whole, escaped, and readable in a real browser."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tdcd
from support import browser, drawn_in_a_browser, silo_record
from tdcd.core.rows import Rows
from tdcd.reports.page import pictures
from tdcd.reports.topology import SHOWN, topology
from tdcd.runs.reader import read_history, read_run
from tdcd.runs.records import history_line, write_record


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "digits"
    tdcd.run_job(tdcd.load_job("digits", {"training.rounds": 3, "training.evaluate_every": 1}), path)
    tdcd.write_report(path)
    return path


class Outline(HTMLParser):
    """Tags that were opened, and the text."""

    void = frozenset({"meta", "link", "br", "img"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_the_page_is_whole_and_needs_no_network(run: Path) -> None:
    page = (run / "report.html").read_text()
    outline = Outline(page)
    assert outline.open == []
    assert outline.tags.count("svg") == 6
    assert "script" not in outline.tags
    assert not re.search(r"(src|href)=\"(https?:)?//", page)
    assert {"finished", "federation", "left alone", "right alone", "test accuracy", "training.local_steps"} <= set(
        outline.words
    )


def test_it_shows_the_history(run: Path) -> None:
    last = json.loads((run / "history.jsonl").read_text().splitlines()[-1])
    assert f"{last['test']['accuracy']:.4f}" in (run / "report.html").read_text()


def test_a_run_under_way_and_a_stopped_one(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "result.json").unlink()
    with (copy / "history.jsonl").open("a") as file:
        file.write('{"round": 4, "iter')
    assert "under way" in tdcd.write_report(copy).read_text()
    (copy / "history.jsonl").write_text("")
    shutil.rmtree(copy / "alone")
    assert "Who took part" in tdcd.write_report(copy).read_text()


def test_evaluations_while_clients_were_away_are_marked(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert "clients were away" not in tdcd.write_report(copy).read_text()
    *lines, last = read_history(copy)
    every = last.rows["test"].every
    away = replace(last, rows={**last.rows, "test": Rows(every - 100, every)})
    (copy / "history.jsonl").write_text("".join(history_line(line) + "\n" for line in (*lines, away)))
    page = tdcd.write_report(copy).read_text()
    assert f"In one evaluation clients were away: measured were {every - 100} of {every} test rows." in page
    assert "The measures of the weights that are kept are of this kind." in page
    first, *_ = pictures(read_run(copy))
    assert {curve.label: curve.partial for curve in first.curves} == {"train": [], "test": [3]}


def test_names_are_escaped(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    record = read_run(copy).federation
    first = record.silos[0]
    clients = (replace(first.clients[0], name="<script>alert(1)</script>"), *first.clients[1:])
    silos = (replace(first, network="<b>net</b>", clients=clients), *record.silos[1:])
    write_record(copy / "federation.json", replace(record, silos=silos))
    page = tdcd.write_report(copy).read_text()
    assert "<script" not in page
    assert "<b>net" not in page


def test_a_deployment_is_not_a_run(tmp_path: Path) -> None:
    for silo in ("bank", "insurer"):
        (tmp_path / "loans" / silo).mkdir(parents=True)
        (tmp_path / "loans" / silo / "hub.toml").touch()
    (tmp_path / "loans" / "job.toml").touch()
    for use in (tdcd.write_report, tdcd.load_model):
        with pytest.raises(
            tdcd.RunError, match=r"loans is a deployment, not a run: every hub has a run of its own"
        ) as error:
            use(tmp_path / "loans")
        assert str(tmp_path / "loans" / "bank" / "run") in str(error.value)
        assert f"tdcd assemble {tmp_path / 'loans'} --out MODEL" in str(error.value)


def test_what_is_not_a_run(run: Path, tmp_path: Path) -> None:
    with pytest.raises(tdcd.RunError, match="is not a run"):
        tdcd.write_report(tmp_path)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "federation.json").write_text("{")
    with pytest.raises(tdcd.RunError, match=r"federation.json: damaged"):
        tdcd.write_report(copy)
    for file in ("federation.json", "environment.json", "result.json"):
        for content in ("{}", "[]", "null", "3"):
            (copy / "federation.json").write_text((run / "federation.json").read_text())
            (copy / file).write_text(content)
            if (file, content) != ("result.json", "{}"):
                with pytest.raises(tdcd.RunError, match="damaged"):
                    tdcd.write_report(copy)
        (copy / file).write_text((run / file).read_text())
    (copy / "federation.json").unlink()
    with pytest.raises(tdcd.RunError, match=r"federation.json: missing"):
        tdcd.write_report(copy)


@pytest.mark.parametrize("silos", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("clients", [1, 4, 100])
def test_any_topology_is_drawn_inside_its_frame(silos: int, clients: int) -> None:
    made = [silo_record(f"silo-{j}", range(1, clients + 1)) for j in range(silos)]
    svg = topology(made)
    assert svg.count('class="hub"') == silos
    assert svg.count('class="peer"') == silos * (silos - 1) // 2
    assert svg.count('class="client"') == silos * min(clients, SHOWN)
    left, top, width, height = map(float, re.search(r'viewBox="([^"]+)"', svg)[1].split())  # type: ignore[index]
    for x, y in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', svg):
        assert left + 10 < float(x) < left + width - 10
        assert top + 10 < float(y) < top + height - 10


@pytest.mark.skipif(browser() is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_a_phone_and_a_desk_in_a_browser(run: Path, tmp_path: Path, width: int) -> None:
    result = drawn_in_a_browser((run / "report.html").read_text(), tmp_path, width)
    assert result["width"] <= width, "the page scrolls sideways"
    assert result["drawn"] == 6
