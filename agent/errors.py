"""Errors of a turn; the class determines the next step (table: docs/models.md).

AgentError ├── ModelError │   ├── RateLimited        wait `retry_after_s`, retry, then the next
model (429, 529, 503 with it) │   ├── ModelUnreachable   retry with back-off, then the next model
(connection, 5xx, cut stream) │   ├── ContextOverflow    the request is larger than the window (also
HTTP 413): fit it, retry │   ├── CredentialsRefused next key or model; if none is left, notify user
and admin (401, 403) │   │   └── CreditUsedUp   the account has no money left: likewise, no wait and
no retry (402) │   ├── ModelNotFound      next model │   ├── BadRequest         the provider calls
the request malformed: repair it once, retry │   └── ModelRefused       the provider declines the
content: notify the user ├── SpendLimitReached      a budget is used up: make no call, notify the
user ├── SummaryFailed          the summary model returned nothing usable: use the extractor's
summary │   ├── SummaryOverflow    the prompt does not fit the model's window: ask in smaller parts
│   └── SummaryTooLong     ask once more for a shorter one ├── PluginRefused          skip the
plugin; replace a context engine by the built-in one ├── ToolError              its text goes to the
model as the tool's result ├── AttemptEnds            not a tool's failure, even if raised within
one: keep the turn unchanged │   └── TurnSuspended          a person must answer first: release the
lease ├── SecretUnreadable       a reference cannot be read: keep the previous secret └──
RecordingMismatch      a recorded conversation does not match the request
"""

from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Helper processes import this file: it uses only the standard library.
    from agent.messages import Usage


class AgentError(Exception):
    """Base of all errors that the agent raises deliberately."""


class ModelError(AgentError):
    """A model call failed; subclasses determine the next step. Messages never contain a key.

    A cut stream is billed.

    Attributes:
        usage: The provider's report so far, its output estimated; None without a report.
        written_tokens: Estimate of the streamed output. Many providers report only at the end:
            without a report this is the only sign that the call is billed.
    """

    usage: "Usage | None" = None
    written_tokens: int = 0


class RateLimited(ModelError):
    """Too many requests or overloaded; `retry_after_s` comes from the provider."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class ModelUnreachable(ModelError):
    """No connection, a server error, or a stream that was cut or fell silent."""


class ContextOverflow(ModelError):
    """The request exceeds the model's window; the refusal may contain the window's size."""

    window_tokens: int | None = None


class CredentialsRefused(ModelError):
    """The key is wrong, revoked or lacks permission."""


class CreditUsedUp(CredentialsRefused):
    """The key's account has no money left, or a spending limit is reached.

    As for a refused key, another key may belong to another account.
    """


class ModelNotFound(ModelError):
    """The provider does not know the model."""


class BadRequest(ModelError):
    """The provider rejects the request's form.

    Attributes:
        output_tokens: The longest answer allowed, if the refusal names it.
        is_unexplained: The reason is unknown and may be the size, as a turn's request is large.
    """

    output_tokens: int | None = None
    is_unexplained: bool = False


class ModelRefused(ModelError):
    """The provider declines to answer this content."""


class SpendLimitReached(AgentError):
    """The budget `limit_usd` of `scope` is used up; it renews at `until`."""

    def __init__(self, scope: Literal["all", "sender"], limit_usd: float, until: datetime) -> None:
        super().__init__(f"budget of {limit_usd:g} US dollars a day ({scope}) used up")
        self.scope = scope
        self.limit_usd = limit_usd
        self.until = until


class SummaryFailed(AgentError):
    """The summary model returned nothing usable.

    It is not asked again for `cooldown_s`: 60 s after a transient failure, 600 s if no provider can
    answer.
    """

    def __init__(self, reason: str, cooldown_s: float = 60) -> None:
        super().__init__(reason)
        self.cooldown_s = cooldown_s


class SummaryOverflow(SummaryFailed):
    """The material for a summary exceeds the next model's window, as known so far."""

    def __init__(self, window_tokens: int) -> None:
        super().__init__(f"the material does not fit into {window_tokens} tokens")
        self.window_tokens = window_tokens


class SummaryTooLong(SummaryFailed):
    """The summary exceeds its budget or its source: request a shorter one once."""


class PluginRefused(AgentError):
    """A plugin or context engine is unusable; the text says why and how to fix it."""


class ToolError(AgentError):
    """A tool cannot do what was requested; the text is written for the model."""


class AttemptEnds(AgentError):
    """The attempt must stop; the turn can resume later. Also raised by the gateway's records."""


class TurnSuspended(AttemptEnds):
    """The turn waits for a person and resumes from its records after the answer."""


class RecordingMismatch(AgentError):
    """The recording has no answer at this position."""


class SecretUnreadable(AgentError):
    """A secret reference in the settings cannot be read; the message follows the reference.

    It contains no part of the secret.
    """
