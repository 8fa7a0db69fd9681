"""What can go wrong in a turn; the class says what to do next (table: docs/models.md).

AgentError
├── ModelError
│   ├── RateLimited        wait `retry_after_s`, retry, then the next model (429, 529, 503 with it)
│   ├── ModelUnreachable   retry with back-off, then the next model (connection, 5xx, cut stream)
│   ├── ContextOverflow    the request is larger than the window (also HTTP 413): fit it, retry
│   ├── CredentialsRefused next key or model; none left: tell the user and the admin (401, 403)
│   │   └── CreditUsedUp   the account has no money left: likewise, no wait and no retry (402)
│   ├── ModelNotFound      next model
│   ├── BadRequest         the provider calls the request malformed: repair it once, retry
│   └── ModelRefused       the provider declines the content: tell the user
├── SpendLimitReached      a budget is used up: no call is made, the user is told
├── SummaryFailed          the summary model gave nothing usable: the extractor's summary is used
│   ├── SummaryOverflow    the prompt does not fit into the model's window: ask in smaller parts
│   └── SummaryTooLong     ask once more for a shorter one
├── PluginRefused          a plugin is left out; a context engine is replaced by the built-in
├── ToolError              its text goes to the model as the tool's result
├── AttemptEnds            not a tool's failure, even if raised within one: keep the turn as it is
│   └── TurnSuspended          a person must answer first: give the lease back
├── SecretUnreadable       a reference cannot be read: keep the secret read before
└── RecordingMismatch      a recorded conversation does not fit what was asked
"""

from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Helper processes run on this file: it imports the standard library alone.
    from agent.messages import Usage


class AgentError(Exception):
    """Base of everything the agent raises on purpose."""


class ModelError(AgentError):
    """A model call failed; subclasses say what to do. Messages never contain a key.

    A stream that is cut is billed.

    Attributes:
        usage: The provider's report until then, its output estimated; None without a report.
        written_tokens: Estimate of the streamed output. Many providers report at the end alone:
            without a report only this shows that the call is billed.
    """

    usage: "Usage | None" = None
    written_tokens: int = 0


class RateLimited(ModelError):
    """Too many requests or overloaded; `retry_after_s` is the provider's."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class ModelUnreachable(ModelError):
    """No connection, a server error, a stream that was cut or fell silent."""


class ContextOverflow(ModelError):
    """The request does not fit into the model's window, whose size the refusal may name."""

    window_tokens: int | None = None


class CredentialsRefused(ModelError):
    """The key is wrong, revoked, or may not do this."""


class CreditUsedUp(CredentialsRefused):
    """The key's account has no money left, or a limit of spending is reached.

    Another key may be of another account, as for a refused key.
    """


class ModelNotFound(ModelError):
    """The provider does not know the model."""


class BadRequest(ModelError):
    """The provider rejects the request's form.

    Attributes:
        output_tokens: The longest answer allowed, if the refusal names it.
        is_unexplained: The reason is unknown; it may be the size. A turn's request is a large one.
    """

    output_tokens: int | None = None
    is_unexplained: bool = False


class ModelRefused(ModelError):
    """The provider declines to answer this content."""


class SpendLimitReached(AgentError):
    """The budget `limit_usd` of `scope` is used up; it is renewed at `until`."""

    def __init__(self, scope: Literal["all", "sender"], limit_usd: float, until: datetime) -> None:
        super().__init__(f"budget of {limit_usd:g} US dollars a day ({scope}) used up")
        self.scope = scope
        self.limit_usd = limit_usd
        self.until = until


class SummaryFailed(AgentError):
    """The summary model gave nothing usable.

    It is not asked again for `cooldown_s`: 60 s after passing trouble, 600 s if no provider can do
    it.
    """

    def __init__(self, reason: str, cooldown_s: float = 60) -> None:
        super().__init__(reason)
        self.cooldown_s = cooldown_s


class SummaryOverflow(SummaryFailed):
    """The material for a summary does not fit into the next model's window, as known by now."""

    def __init__(self, window_tokens: int) -> None:
        super().__init__(f"the material does not fit into {window_tokens} tokens")
        self.window_tokens = window_tokens


class SummaryTooLong(SummaryFailed):
    """The summary is longer than its budget or its source: worth one shorter attempt."""


class PluginRefused(AgentError):
    """A plugin, or a context engine, cannot be used; the text says why and how to fix it."""


class ToolError(AgentError):
    """A tool cannot do what was asked; the text is written for the model."""


class AttemptEnds(AgentError):
    """The attempt cannot go on; the turn can, later. Also raised by its records (gateway)."""


class TurnSuspended(AttemptEnds):
    """The turn waits for a person; it goes on from its records once they have answered."""


class RecordingMismatch(AgentError):
    """The recording has no answer at this place."""


class SecretUnreadable(AgentError):
    """A reference of the settings cannot be read; the text continues the reference.

    It contains no part of the secret.
    """
