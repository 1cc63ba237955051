"""What users import is pinned: a change here is a change for them and belongs into the CHANGELOG."""

import inspect
import subprocess
import sys

import tdcd

PUBLIC = {
    "ArrayFile", "Callback", "ClusterError", "Costs", "CrossValidation", "DataError", "DeploymentError",
    "DivergedError", "Evaluation", "Export", "Federation", "Job", "JobCallback", "JobData", "JobError", "JobResult",
    "Labels", "Model", "ModelError", "Result", "RowSource", "RunError", "Samples", "Settings", "Silo", "SiloSettings",
    "Simulation", "State", "Stop", "Sweep", "SweepObserver", "TdcdError", "aggregators", "assemble", "callbacks",
    "codecs", "cross_validate", "cross_validate_function", "estimate_constants", "estimate_decrease", "export_model",
    "load_blocks", "load_data", "load_job", "load_model", "load_sweep", "measure_theory", "models", "objectives",
    "optimizers", "read_run", "read_study", "refit", "run_job", "run_sweep", "schedules", "sweep_function", "theory",
    "times", "traffic_by_round", "train", "tune", "write_report", "write_study",
}  # fmt: skip
CALLBACKS = {"Callback", "EarlyStopping", "FinishedRound", "GradientRecorder", "Progress", "Start", "Stop"}
MODELS = {"CNN", "LSTM", "MLP", "MODEL_TAGS", "Imported", "Linear", "Model", "ModelSpec", "ResNet18", "build"}
SETTINGS = {
    "loss", "rounds", "local_steps", "batch_size", "rate", "schedule", "participation", "silo_dropout", "averaging",
    "aggregator", "optimizer", "carry_optimizer", "proximal", "codec", "codec_for", "weight_decay", "clip_norm",
    "precision", "seed", "evaluate_every", "select", "select_by", "patience", "checkpoint_every",
}  # fmt: skip


def test_public_names() -> None:
    assert set(tdcd.__all__) == PUBLIC
    assert set(tdcd.models.__all__) == MODELS
    assert set(tdcd.callbacks.__all__) == CALLBACKS
    for name in PUBLIC:
        assert getattr(tdcd, name) is not None
    for name in MODELS:
        assert getattr(tdcd.models, name) is not None


def test_errors_share_one_root() -> None:
    for name in PUBLIC:
        if name.endswith("Error"):
            assert issubclass(getattr(tdcd, name), tdcd.TdcdError)


def test_signatures() -> None:
    simulated = [
        "federation", "models", "settings", "objective", "optimizer", "aggregator", "codec", "silos", "labels",
        "validation", "test", "initial", "batches", "engine", "compute", "workers", "device",
        "address",
    ]  # fmt: skip
    assert list(inspect.signature(tdcd.Simulation).parameters) == [*simulated, "on_gradients"]
    assert list(inspect.signature(tdcd.train).parameters) == [
        *simulated, "directory", "resume", "job", "variant", "callbacks",
    ]  # fmt: skip
    assert list(inspect.signature(tdcd.Federation.from_silos).parameters) == ["silos", "labels", "label_ids"]
    assert list(inspect.signature(tdcd.Silo).parameters) == ["name", "features", "clients", "ids"]
    assert list(inspect.signature(tdcd.run_job).parameters) == ["job", "directory", "resume", "callbacks", "where"]
    assert list(inspect.signature(tdcd.load_job).parameters) == ["path", "overrides", "clients"]
    assert set(tdcd.Settings.model_fields) == SETTINGS


def test_names_that_are_not_imported_yet_are_listed() -> None:
    code = "import sys, tdcd; print(set(tdcd.__all__) - set(dir(tdcd)), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set() False\n"


def test_unknown_names_are_refused() -> None:
    assert not hasattr(tdcd, "nonsense")
