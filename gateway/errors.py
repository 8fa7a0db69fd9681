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
    """Base of everything the gateway raises on purpose."""


class SettingsError(GatewayError):
    """A setting is unknown or has a value that is not allowed; one line for each."""


class StorageError(GatewayError, AttemptEnds):
    """A failure of the database; a turn that meets it is tried again later."""


class StorageUnavailable(StorageError):
    """The transaction was rolled back (disk full, read-only, I/O error, closed)."""


class CommitUnknown(StorageUnavailable):
    """The answer to a commit was lost.

    Trying again is safe: each transaction function does nothing the second time (by a unique key),
    or is fenced.
    """


class DatabaseReplaced(StorageUnavailable):
    """The file was removed, replaced or cut, or an older copy was put in its place."""


class DatabaseLocked(StorageError):
    """A second process on the same SQLite file."""


class DatabaseTooNew(StorageError):
    """The schema's revision is unknown to this version of Parley."""


class LeaseLost(StorageError):
    """The fencing token is stale; nothing was written."""


class TurnCancelled(StorageError):
    """The turn lies at or below its conversation's `cancel_upto_seq`."""


class NotFound(GatewayError):
    """There is no such row."""


class GatewayNotRunning(GatewayError):
    """No gateway listens in this PARLEY_HOME."""
