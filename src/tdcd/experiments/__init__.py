"""Jobs: one file that says what to train on what, and how."""

from tdcd.experiments.job import Job, load_job
from tdcd.experiments.run import JobObserver, JobResult, run_job

__all__ = ["Job", "JobObserver", "JobResult", "load_job", "run_job"]
