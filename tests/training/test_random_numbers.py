"""Random numbers belong to the user: a training draws from streams of its own."""

import subprocess
import sys

import pytest

SCRIPT = """
import random
import numpy as np
import torch
import tdcd

random.seed(1)
torch.manual_seed(1)
python, numpy, torchs = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
job = tdcd.load_job("breast-cancer")
job = job.model_copy(update={"training": job.training.model_copy(update={"rounds": 2}), "baselines": []})
tdcd.run_job(job, callbacks=CALLBACKS)
assert random.getstate() == python, "Python's"
assert all(map(np.array_equal, np.random.get_state(), numpy)), "numpy's"
assert torch.equal(torch.random.get_rng_state(), torchs), "torch's"
"""


@pytest.mark.parametrize("callbacks", ["[]", "[tdcd.callbacks.Progress()]"])
def test_the_first_training_of_a_process_leaves_all_streams_alone(callbacks: str) -> None:
    """In a process of its own: what is imported on first use may draw, too."""
    script = SCRIPT.replace("CALLBACKS", callbacks)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
