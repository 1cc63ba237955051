"""The documentation keeps up with the code."""

import re
import tomllib
from pathlib import Path

import pytest

from tdcd.experiments.job import Data, Job, SiloJob, parse_job
from tdcd.models.spec import KINDS
from tdcd.training.schedules import SCHEDULE_TAGS
from tdcd.training.settings import Settings

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
JOB_PAGE = (ROOT / "docs" / "job-file.md").read_text()


def test_the_job_in_the_docs_is_valid_and_names_every_key() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", JOB_PAGE, re.DOTALL)
    table = tomllib.loads(text)
    parse_job(table, "docs")
    assert set(table) | {"workers"} == set(Job.model_fields)
    assert "# workers =" in text
    assert set(table["data"]) == set(Data.model_fields)
    assert set(table["silos"]["left"]) == set(SiloJob.model_fields)
    assert set(table["training"]) | {"clip_norm"} == set(Settings.model_fields)
    assert "# clip_norm =" in text


def test_every_kind_is_documented() -> None:
    for kind in (*KINDS, *SCHEDULE_TAGS):
        assert f"| `{kind}` |" in JOB_PAGE


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
