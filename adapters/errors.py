"""Errors of a platform; the class determines the next step.

AdapterError ├── SendDelayed        the platform refused for now: retry the same row after
`retry_after_s` ├── SendUnknown        the request was sent but not answered: the row's outcome is
unknown ├── SendRejected       never retry: bury the row with its reason ├── ChatMoved          the
chat has a new id: re-key its conversations, then resend ├── FetchDelayed       the attachment
cannot be downloaded now: retry ├── FetchRejected      the attachment can never be downloaded (gone,
too large) ├── AdapterDisconnected  connection or server failure: the supervisor restarts the
adapter └── AdapterRefused     wrong or revoked credentials: stop this adapter, keep the others
running
"""

UNREADABLE = (LookupError, TypeError, ValueError, AttributeError)
"""Raised for a malformed answer, by an SDK or by the code that reads it."""


class AdapterError(Exception):
    """Base of all adapter errors."""


class SendDelayed(AdapterError):
    """The message was not shown; retry the row after `retry_after_s` seconds (None: back off)."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class SendUnknown(AdapterError):
    """The message may have been shown; resend only with `Outgoing.outcome_unknown`."""


class SendRejected(AdapterError):
    """The platform will never accept this message (blocked, kicked, chat deleted, malformed)."""


class ChatMoved(AdapterError):
    """The message was not shown: the chat has a new id (a group became a supergroup)."""

    def __init__(self, new_chat: str) -> None:
        super().__init__(f"the chat has moved to {new_chat}")
        self.new_chat = new_chat


class FetchDelayed(AdapterError):
    """An attachment cannot be downloaded now."""


class FetchRejected(AdapterError):
    """An attachment can never be downloaded; the message gives the reason, for the model."""


class AdapterDisconnected(AdapterError):
    """The platform is unreachable; `run` may be called again."""


class AdapterRefused(AdapterError):
    """The platform refused the credentials."""
