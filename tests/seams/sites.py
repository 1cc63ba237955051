"""A few rounds at sites, in memory, and the same in a simulation."""

import asyncio
from pathlib import Path
from typing import Any

import torch

from sites.memory import Federation, run_virtually
from sites.test_rounds import job, patient, training_of
from tdcd.core.state import SiloState, States
from tdcd.engines import LocalEngine
from tdcd.jobs.load import parse_job
from tdcd.jobs.schema import Job

ROUNDS = 3


def wanted(
    labels: dict[str, Any] | None = None, own: dict[str, Any] | None = None, silos: int = 2, **training: Any
) -> Job:
    """Return a job of two silos, or more, with these settings."""
    table = patient(job(silos, 3, own)).as_table()
    table["training"] |= training
    return parse_job(table | ({"labels": labels} if labels else {}), "job")


def at_sites(job: Job, folder: Path) -> dict[str, SiloState]:
    """Run some rounds at sites."""
    federation = Federation(job, folder, compute="loop")

    async def run() -> dict[str, SiloState]:
        await federation.start()
        states = {silo: hub.setup.first_state() for silo, hub in federation.hubs.items()}
        for number in range(1, ROUNDS + 1):
            done = await asyncio.gather(*(hub.run_round(states[s], number) for s, hub in federation.hubs.items()))
            states = {silo: state for silo, (state, _) in zip(federation.hubs, done, strict=True)}
        await federation.stop()
        return states

    return run_virtually(run())


def simulated(job: Job) -> States:
    """Run the same rounds in a simulation, one client after the other."""
    engine = LocalEngine(training_of(job), "loop")
    states: States = engine.training.initial()
    for number in range(1, ROUNDS + 1):
        states, _ = engine.round(states, number)
    return states


def check_equal(there: States, here: States, atol: float = 0.0) -> None:
    """Check that all that silos carry is the same at sites and in a simulation: to the bit, or nearly."""
    for silo, state in here.items():
        found, wanted = tensors(there[silo]), tensors(state)
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            nearly = atol > 0 and torch.allclose(found[name], tensor, rtol=0, atol=atol)
            assert nearly or torch.equal(found[name], tensor), (silo, name)


def tensors(state: SiloState) -> dict[str, Any]:
    """Return all that a silo carries, by name."""
    return {**state.weights, **{f"memory/{name}": tensor for name, tensor in state.memory.items()}}
