"""Draw many more cases for the tests against independent references than the gate does.

    python benchmarks/references.py                       # ten times as many, from a new seed, which is printed
    python benchmarks/references.py --factor 100 --seed 7 # a night's worth; the same cases again with the same seed

Tables to rows, metrics, stops at random writes, hubs killed at random writes, sweeps whose runs fail, deployments with
absent clients in every label mode, and random federations against the oracle.
"""

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/experiments/test_rows.py::test_rows_are_those_of_the_reference",
    "tests/training/test_metrics.py",
    "tests/training/test_crashes.py::test_stopped_at_any_write_it_ends_where_it_would_have",
    "tests/training/test_crashes.py::test_more_rounds_end_where_a_run_of_so_many_ends",
    "tests/sites/test_endings.py::test_hubs_killed_at_any_write_end_with_weights_of_the_same_round",
    "tests/sites/test_absences.py::test_whoever_dies_whenever_the_rest_is_trained_on",
    "tests/experiments/test_sweep.py::test_whichever_runs_fail_all_others_are_trained",
)


def main() -> int:
    """Run the tests; return their exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=int, default=10, help="how many times as many cases as in the gate")
    parser.add_argument("--seed", type=int, default=None, help="draws the cases; default: a new one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else secrets.randbelow(2**32)
    print(f"seed {seed}, {chosen.factor} times as many cases as in the gate", flush=True)
    began = time.monotonic()
    command = [
        sys.executable, "-m", "pytest", *TESTS, f"--hypothesis-seed={seed}", "-n", str(chosen.jobs), "-p",
        "no:cacheprovider", "--dist", "load",
    ]  # fmt: skip
    environment = os.environ | {"TDCD_EXAMPLES": str(chosen.factor), "OMP_NUM_THREADS": "1"}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603
    print(f"seed {seed}: {'agreed' if code == 0 else 'DISAGREED'} after {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
