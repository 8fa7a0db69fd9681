"""The errors of a platform; the class says what to do next.

AdapterError
├── SendDelayed        the platform refused for now: the same row again after `retry_after_s`
├── SendUnknown        the request went out without an answer: the row's outcome is unknown
├── SendRejected       never again: bury the row with its reason
├── ChatMoved          the chat has another id now: re-key its conversations, then send again
├── FetchDelayed       the attachment cannot be downloaded now: try again
├── FetchRejected      the attachment can never be downloaded (gone, too large)
├── AdapterDisconnected  connection or server trouble: the supervisor restarts the adapter
└── AdapterRefused     wrong or revoked credentials: stop this adapter, leave the others running
"""

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)
"""Raised for an answer of the wrong shape, by an SDK or by its reader."""


class AdapterError(Exception):
    """Base of all errors of an adapter."""


class SendDelayed(AdapterError):
    """Nothing was shown; try the same row again after `retry_after_s` seconds (None: back off)."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class SendUnknown(AdapterError):
    """The request may have been carried out; send again only with `Outgoing.outcome_unknown`."""


class SendRejected(AdapterError):
    """The platform will never accept this message (blocked, kicked, chat deleted, malformed)."""


class ChatMoved(AdapterError):
    """Nothing was shown: the chat goes on under another id (a group became a supergroup)."""

    def __init__(self, new_chat: str) -> None:
        super().__init__(f"the chat has moved to {new_chat}")
        self.new_chat = new_chat


class FetchDelayed(AdapterError):
    """An attachment cannot be downloaded now."""


class FetchRejected(AdapterError):
    """An attachment can never be downloaded; the message says why, for the model."""


class AdapterDisconnected(AdapterError):
    """The platform cannot be reached; `run` may be called again."""


class AdapterRefused(AdapterError):
    """The platform refuses the credentials."""
