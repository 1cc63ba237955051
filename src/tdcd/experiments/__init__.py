"""Jobs: one file that says what to train on what, and how."""

from tdcd.jobs.data import JobData, load_data
from tdcd.jobs.load import load_job
from tdcd.jobs.run import JobCallback, JobResult, run_job
from tdcd.jobs.schema import Job

__all__ = ["Job", "JobCallback", "JobData", "JobResult", "load_data", "load_job", "run_job"]
