"""The documentation keeps up with the code."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tdcd.costs import Costs
from tdcd.data.features import FEATURES_TAGS
from tdcd.data.rows import ROWS_TAGS
from tdcd.experiments.paper import EXPERIMENTS
from tdcd.experiments.sweep_file import Picture, Selection, Sweep, parse_sweep
from tdcd.experiments.sweep_plan import combinations
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import Job, TableJob, TableSilo
from tdcd.jobs.sources import SetData, TableData
from tdcd.jobs.tuning import Tuning
from tdcd.models.spec import KINDS
from tdcd.training.labels import Labels
from tdcd.training.schedules import SCHEDULE_TAGS
from tdcd.training.settings import Settings, SiloSettings

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
JOB_PAGE = (ROOT / "docs" / "job-file.md").read_text()
SWEEP_PAGE = (ROOT / "docs" / "sweeps.md").read_text()
LABELS_PAGE = (ROOT / "docs" / "labels.md").read_text()
DATA_PAGE = (ROOT / "docs" / "data.md").read_text()


def test_the_job_in_the_docs_is_valid_and_names_every_key() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", JOB_PAGE, re.DOTALL)
    table = tomllib.loads(text)
    parse_job(table, "docs")
    assert set(table) | {"workers", "labels", "address", "auto"} == set(Job.model_fields)
    assert set(table["tuning"]) == set(Tuning.model_fields)
    assert "# workers =" in text
    assert "# address =" in text
    assert set(table["data"]) | {"directory", "pixels", "sets", "folds", "fold", "refit"} == set(SetData.model_fields)
    for key in ("directory", "folds", "fold", "refit"):
        assert f"# {key} =" in text
    assert set(table["silos"]["left"]) == {"clients", "rows", "model", *SiloSettings.model_fields}
    assert set(table["training"]) | {"clip_norm", "patience"} == set(Settings.model_fields)
    assert "# clip_norm =" in text
    assert "# patience =" in text


def test_the_tables_in_the_docs_are_a_valid_job_and_name_every_key() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", DATA_PAGE, re.DOTALL)
    table = tomllib.loads(text)
    job = parse_job(table, "docs")
    assert isinstance(job, TableJob)
    names = set(table["data"]) | set(re.findall(r"^# (\w+) =", text, re.MULTILINE))
    assert set(TableData.model_fields) - names == {"clients", "rows"}
    assert set(table["labels"]) == {"silo", "sharing", "positive"}
    for key in Labels.model_fields:
        assert f"`{key}`" in LABELS_PAGE
    commented = {"exclude", "row_id", "aggregate", "order"}
    elsewhere = {"file", "rows", "model", *SiloSettings.model_fields}
    assert set(TableSilo.model_fields) - set(table["silos"]["bank"]) == elsewhere | commented
    for key in commented:
        assert f"# {key} =" in text


def test_the_sweep_in_the_docs_is_valid_and_names_every_key() -> None:
    text = re.findall(r"```toml\n(.*?)```", SWEEP_PAGE, re.DOTALL)[0]
    sweep = parse_sweep(text, "docs")
    assert len(list(combinations(sweep, "docs", {}, lambda job: ["left", "right"]))) == 4 * 2 + 1 + 2 + 4
    table = tomllib.loads(text)
    assert set(table) | {"cases"} == set(Sweep.model_fields)
    assert set(table["select"]) == set(Selection.model_fields)
    assert set(table["report"]) == set(Picture.model_fields)
    for cost in set(Costs.model_fields) - {"t_comm"}:
        assert f"`{cost}`" in SWEEP_PAGE
    for name in EXPERIMENTS:
        assert f"`{name}`" in SWEEP_PAGE


def test_every_kind_is_documented() -> None:
    for kind in FEATURES_TAGS | ROWS_TAGS:
        assert f'kind = "{kind}"' in JOB_PAGE
    for kind in (*KINDS, *SCHEDULE_TAGS):
        assert f"| `{kind}` |" in JOB_PAGE


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def anchors(page: Path) -> set[str]:
    """Return what links may name of a page: its headings, as GitHub writes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert anchor in anchors(page.parent / target if target else page), f"{target}#{anchor}"


def test_scripts_in_the_docs_are_bash() -> None:
    for script in (ROOT / "docs").rglob("*.sh"):
        subprocess.run(["bash", "-n", script], check=True)  # noqa: S607


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def result_tables() -> dict[str, dict[int, dict[int, list[float]]]]:
    """Return the times of the results' tables by section, K and Q."""
    page = (ROOT / "docs" / "results.md").read_text()
    result: dict[str, dict[int, dict[int, list[float]]]] = {}
    for section in page.split("\n### ")[1:]:
        title = section.splitlines()[0]
        for q, k, row in re.findall(r"^\| Q = (\d+), K = (\d+) \|(.*)\|$", section, re.MULTILINE):
            times = [float(cell.strip().replace(",", "")) for cell in row.split("|")[-2:]]
            result.setdefault(title, {}).setdefault(int(k), {})[int(q)] = times
    return result


@pytest.mark.parametrize(
    ("section", "column"),
    [("PhysioNet 2012 in place of MIMIC-III", 1), ("ModelNet10, small scale", 2), ("CIFAR-10, small scale", 3)],
)
def test_factors_follow_from_the_tables_above_them(section: str, column: int) -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    (row,) = re.findall(r"^\| larger Q wins in time units.*$", page, re.MULTILINE)
    claim = row.split("|")[1 + column]
    for of_q in result_tables()[section].values():
        for place in (0, 1):
            fastest = min(of_q, key=lambda q: of_q[q][place])
            assert f"Q = {fastest}" in claim
            assert f"{of_q[1][place] / of_q[fastest][place]:.1f}" in claim
