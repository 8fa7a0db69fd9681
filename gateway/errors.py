"""Errors of the gateway; the class says what to do next.

GatewayError
├── SettingsError        tell the operator which key to fix; nothing is started
├── StorageError
│   ├── StorageUnavailable   nothing of this transaction is stored: back off, try again
│   │   ├── CommitUnknown        it may be stored: try again all the same
│   │   └── DatabaseReplaced     it is not the file that was written to: stop admitting
│   ├── DatabaseLocked       another gateway process owns this database: do not start
│   ├── DatabaseTooNew       written by a newer Parley: do not start, nothing was changed
│   ├── LeaseLost            another worker owns the conversation now: drop the work
│   └── TurnCancelled        its user stopped the turn: end it as cancelled
├── NotFound             the operator named something that is not there
└── GatewayNotRunning    the command needs a running gateway
"""

from agent.errors import AttemptEnds


class GatewayError(Exception):
    """Base class of the gateway's errors."""


class SettingsError(GatewayError):
    """Unknown or invalid settings; one line each."""


class StorageError(GatewayError, AttemptEnds):
    """A database failure; an affected turn is retried later."""


class StorageUnavailable(StorageError):
    """The transaction was rolled back (disk full, read-only, I/O error, closed)."""


class CommitUnknown(StorageUnavailable):
    """The response to a commit was lost.

    A retry is safe: each transaction function is idempotent (by a unique key) or fenced.
    """


class DatabaseReplaced(StorageUnavailable):
    """The file was removed, replaced, truncated, or restored from an older copy."""


class DatabaseLocked(StorageError):
    """Another process uses the same SQLite file."""


class DatabaseTooNew(StorageError):
    """This version of Parley does not know the schema's revision."""


class LeaseLost(StorageError):
    """The fencing token is stale; nothing was written."""


class TurnCancelled(StorageError):
    """The turn lies at or below its conversation's `cancel_upto_seq`."""


class NotFound(GatewayError):
    """The row does not exist."""


class GatewayNotRunning(GatewayError):
    """No gateway runs in this PARLEY_HOME."""
