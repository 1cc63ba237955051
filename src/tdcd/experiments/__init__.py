"""Jobs: one file that says what to train on what, and how."""

from tdcd.experiments.data import JobData, load_data
from tdcd.experiments.job import Job, load_job
from tdcd.experiments.run import JobObserver, JobResult, run_job

__all__ = ["Job", "JobData", "JobObserver", "JobResult", "load_data", "load_job", "run_job"]
