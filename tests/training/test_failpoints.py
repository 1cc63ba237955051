"""Every moment before and after a file lasts: a training that ends there goes on to where it would have ended."""

import re
from collections import Counter
from pathlib import Path

import pytest

from support import same
from tdcd.failpoints import watching
from tdcd.runs.reader import read_history

from .test_crashes import CrashError, run

BEST = {"select": "best", "rounds": 8, "checkpoint_every": 3}
FILES = (
    "environment.json",
    "federation.json",
    "job.toml",
    "rosters.safetensors",
    "checkpoint.safetensors",
    "best-N.safetensors",
    "a.safetensors",
    "result.json",
)
STEPS = ("before writing {}", "before fsync of {}", "before rename to {}", "after rename to {}", "after writing {}")
MOMENTS = {step.format(file) for file in FILES for step in STEPS} | {
    "before appending to history.jsonl",
    "before fsync of history.jsonl",
    "after appending to history.jsonl",
    "before rename of checkpoint.safetensors",
    "after rename of checkpoint.safetensors",
    "before removing best-N.safetensors",
    "after removing best-N.safetensors",
}
"""What a training with best weights comes by, at least."""


def named(moment: str) -> str:
    """Return a moment's name without numbers of rounds."""
    return re.sub(r"best-\d+", "best-N", moment)


class Ending:
    """Ends a training when it comes to a moment for the n-th time; from then on it does nothing more."""

    def __init__(self, moment: str = "", time: int = 0) -> None:
        self.moment, self.time = moment, time
        self.visited: Counter[str] = Counter()
        self.dead = False

    def __call__(self, moment: str) -> None:
        self.visited[named(moment)] += 1
        if self.dead or (named(moment) == self.moment and self.visited[self.moment] == self.time):
            self.dead = True
            raise CrashError


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    watch = Ending()
    with watching(watch):
        run(tmp_path_factory.mktemp("whole") / "run", **BEST)
    return watch.visited


def test_all_moments_are_known(visited: Counter[str]) -> None:
    assert set(visited) >= MOMENTS
    kinds = re.compile(r"(before|after) (writing|fsync of|rename to|rename of|appending to|removing) ")
    assert all(kinds.match(moment) for moment in visited)


def test_it_goes_on_from_every_moment(visited: Counter[str], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", **BEST)
    history = [line.train for line in read_history(tmp_path / "whole")]
    tried = 0
    for number, (moment, times) in enumerate(sorted(visited.items())):
        for time in sorted({1, times}):
            path = tmp_path / f"{number}-{time}"
            ending = Ending(moment, time)
            with pytest.raises(CrashError), watching(ending):
                run(path, **BEST)
            assert ending.dead
            assert same(run(path, **BEST).blocks, whole.blocks), (moment, time)
            assert [line.train for line in read_history(path)] == history, (moment, time)
            tried += 1
    assert tried >= len(MOMENTS)
