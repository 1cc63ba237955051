"""The authors' own program, round by round."""

import pytest

from tdcd.training.simulation import EngineName
from trajectories import FILES, check_trajectory


@pytest.mark.parametrize("engine", ["local", pytest.param("oracle", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_follows_the_authors_trajectory(name: str, engine: EngineName) -> None:
    check_trajectory(name, engine)
