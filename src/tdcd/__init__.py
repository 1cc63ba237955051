"""tdcd: federated learning over data that is split both ways.

Vertically across organisations (silos), horizontally inside each (its clients). See ``Federation.from_silos`` and
``train`` for the Python interface, ``tdcd --help`` for the command line.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdcd import models, theory
    from tdcd.core import aggregators, codecs, objectives, optimizers
    from tdcd.costs import Costs
    from tdcd.data.federation import Federation, Silo
    from tdcd.data.samples import Samples
    from tdcd.data.sources import ArrayFile, RowSource
    from tdcd.errors import (
        ClusterError,
        DataError,
        DeploymentError,
        DivergedError,
        JobError,
        ModelError,
        RunError,
        TdcdError,
    )
    from tdcd.experiments.cross_validation import CrossValidation, cross_validate
    from tdcd.experiments.function_folds import cross_validate_function
    from tdcd.experiments.function_sweep import sweep_function
    from tdcd.experiments.sweep_file import Sweep, load_sweep
    from tdcd.experiments.sweep_run import SweepObserver, run_sweep
    from tdcd.experiments.tuning import tune
    from tdcd.jobs.data import JobData, load_data
    from tdcd.jobs.load import load_job
    from tdcd.jobs.refit import refit
    from tdcd.jobs.run import JobCallback, JobResult, run_job
    from tdcd.jobs.schema import Job
    from tdcd.reports.comparison import write_study
    from tdcd.reports.page import write_report
    from tdcd.reports.pricing import times, traffic_by_round
    from tdcd.reports.study import read_study
    from tdcd.runs.reader import read_run
    from tdcd.runs.records import Evaluation
    from tdcd.runs.store import load_blocks
    from tdcd.serving.assemble import assemble
    from tdcd.serving.export.directory import Export, export_model
    from tdcd.serving.model import Model, load_model
    from tdcd.training import callbacks, schedules
    from tdcd.training.callbacks import Callback, Stop
    from tdcd.training.constants import estimate_constants, estimate_decrease
    from tdcd.training.labels import Labels
    from tdcd.training.result import Result
    from tdcd.training.settings import Settings, SiloSettings
    from tdcd.training.simulation import Simulation
    from tdcd.training.state import State
    from tdcd.training.theory import measure_theory
    from tdcd.training.train import train

__version__ = "0.1.0"

# Where each public name lives. They are imported on first use: `tdcd --help` need not wait for torch.
_HOMES = {
    "ArrayFile": "tdcd.data.sources",
    "Callback": "tdcd.training.callbacks",
    "ClusterError": "tdcd.errors",
    "Costs": "tdcd.costs",
    "CrossValidation": "tdcd.experiments.cross_validation",
    "DataError": "tdcd.errors",
    "DeploymentError": "tdcd.errors",
    "DivergedError": "tdcd.errors",
    "Evaluation": "tdcd.runs.records",
    "Export": "tdcd.serving.export.directory",
    "Federation": "tdcd.data.federation",
    "Job": "tdcd.jobs.schema",
    "JobCallback": "tdcd.jobs.run",
    "JobData": "tdcd.jobs.data",
    "JobError": "tdcd.errors",
    "JobResult": "tdcd.jobs.run",
    "Labels": "tdcd.training.labels",
    "Model": "tdcd.serving.model",
    "ModelError": "tdcd.errors",
    "Result": "tdcd.training.result",
    "RowSource": "tdcd.data.sources",
    "RunError": "tdcd.errors",
    "Samples": "tdcd.data.samples",
    "Settings": "tdcd.training.settings",
    "Silo": "tdcd.data.federation",
    "SiloSettings": "tdcd.training.settings",
    "Simulation": "tdcd.training.simulation",
    "State": "tdcd.training.state",
    "Stop": "tdcd.training.callbacks",
    "Sweep": "tdcd.experiments.sweep_file",
    "SweepObserver": "tdcd.experiments.sweep_run",
    "TdcdError": "tdcd.errors",
    "assemble": "tdcd.serving.assemble",
    "cross_validate": "tdcd.experiments.cross_validation",
    "cross_validate_function": "tdcd.experiments.function_folds",
    "estimate_constants": "tdcd.training.constants",
    "estimate_decrease": "tdcd.training.constants",
    "export_model": "tdcd.serving.export.directory",
    "load_blocks": "tdcd.runs.store",
    "load_data": "tdcd.jobs.data",
    "load_job": "tdcd.jobs.load",
    "load_model": "tdcd.serving.model",
    "load_sweep": "tdcd.experiments.sweep_file",
    "measure_theory": "tdcd.training.theory",
    "read_run": "tdcd.runs.reader",
    "read_study": "tdcd.reports.study",
    "refit": "tdcd.jobs.refit",
    "run_job": "tdcd.jobs.run",
    "run_sweep": "tdcd.experiments.sweep_run",
    "tune": "tdcd.experiments.tuning",
    "sweep_function": "tdcd.experiments.function_sweep",
    "times": "tdcd.reports.pricing",
    "traffic_by_round": "tdcd.reports.pricing",
    "train": "tdcd.training.train",
    "write_report": "tdcd.reports.page",
    "write_study": "tdcd.reports.comparison",
}

_MODULES = {
    "aggregators": "tdcd.core.aggregators",
    "callbacks": "tdcd.training.callbacks",
    "codecs": "tdcd.core.codecs",
    "models": "tdcd.models",
    "objectives": "tdcd.core.objectives",
    "optimizers": "tdcd.core.optimizers",
    "schedules": "tdcd.training.schedules",
    "theory": "tdcd.theory",
}

__all__ = [
    "ArrayFile",
    "Callback",
    "ClusterError",
    "Costs",
    "CrossValidation",
    "DataError",
    "DeploymentError",
    "DivergedError",
    "Evaluation",
    "Export",
    "Federation",
    "Job",
    "JobCallback",
    "JobData",
    "JobError",
    "JobResult",
    "Labels",
    "Model",
    "ModelError",
    "Result",
    "RowSource",
    "RunError",
    "Samples",
    "Settings",
    "Silo",
    "SiloSettings",
    "Simulation",
    "State",
    "Stop",
    "Sweep",
    "SweepObserver",
    "TdcdError",
    "aggregators",
    "assemble",
    "callbacks",
    "codecs",
    "cross_validate",
    "cross_validate_function",
    "estimate_constants",
    "estimate_decrease",
    "export_model",
    "load_blocks",
    "load_data",
    "load_job",
    "load_model",
    "load_sweep",
    "measure_theory",
    "models",
    "objectives",
    "optimizers",
    "read_run",
    "read_study",
    "refit",
    "run_job",
    "run_sweep",
    "schedules",
    "sweep_function",
    "theory",
    "times",
    "traffic_by_round",
    "train",
    "tune",
    "write_report",
    "write_study",
]


if not TYPE_CHECKING:  # or type checkers would take any name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return import_module(_MODULES[name])
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'tdcd' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
