"""Everything tdcd says to its user when something is wrong.

    TdcdError
    ├── JobError        a setting: unknown, of the wrong type, or in conflict with another
    ├── DataError       features, labels or IDs that cannot be trained on
    ├── ModelError      a silo's network that fails or has the wrong shape
    ├── RunError        a run directory that is missing, damaged, or of another job
    │   └── DamagedError  a file that is not what was written
    ├── DivergedError   training left the finite numbers
    ├── ClusterError    a cluster that is not there, or does not fit
    │   └── LostClusterError  one that went away, or lost too much, while it computed
    └── DeploymentError sites that do not find, trust or understand one another
        └── AbsentError hubs or clients that did not come in time

A message is complete in itself: it names the file, key, silo or client and says what to do, so that nobody
needs the traceback. The command line prints it and exits with 2, or with 75 where it is enough to try again later.
A training that has ended and made a model of no use is no error; it exits with 3.
"""

import difflib
from collections.abc import Iterable

LEARNED_NOTHING = 3
"""What a command ends with whose training went to its end and made a model of no use."""


class TdcdError(Exception):
    """A problem that the user can solve; its message says how."""

    exit_code = 2
    """What a command ends with."""


class JobError(TdcdError):
    """A job file or a setting is wrong."""


class DataError(TdcdError):
    """Features, labels or IDs cannot be trained on."""


class ModelError(TdcdError):
    """A silo's network fails or has the wrong shape."""


class RunError(TdcdError):
    """A run directory is missing, damaged, in use, or belongs to another job."""


class DamagedError(RunError):
    """A file of a run is not what was written."""


class DivergedError(TdcdError):
    """The weights or the loss are no longer finite numbers."""


class ClusterError(TdcdError):
    """A cluster is not there, or has another version or too little memory."""


class LostClusterError(ClusterError):
    """A cluster went away while it computed: what was done is kept, and resuming goes on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong here, try again later


class DeploymentError(TdcdError):
    """Hubs and clients at different sites do not find, trust or understand one another."""


class AbsentError(DeploymentError):
    """Hubs or clients that are needed did not come in time: what was done is kept, and starting again goes on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong here, try again later


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` or the list of what there is, to end a message about an unknown word."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; there is {join_names(known)}" if known else ""


def join_names(words: Iterable[object], most: int = 5) -> str:
    """Write a list for a sentence, cut after ``most`` of its words: ``a, b, c and 4 more``."""
    texts = [str(word) for word in words]
    if len(texts) > most:
        return f"{', '.join(texts[:most])} and {len(texts) - most} more"
    return ", ".join(texts)
