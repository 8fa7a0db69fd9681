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
├── AttemptEnds            no tool's failure, even if raised within one: leave the turn as it is
│   └── TurnSuspended          a person must answer first: give the lease back
├── SecretUnreadable       a secret is not where the settings say: the one before goes on
└── RecordingMismatch      a recorded conversation does not fit what was asked
"""

from datetime import datetime
from typing import Literal

from agent.usage import Usage


class AgentError(Exception):
    """Base of everything the agent raises on purpose."""


class ModelError(AgentError):
    """A model call failed; subclasses say what to do. Messages never hold a key.

    A stream that is cut is billed all the same.

    Attributes:
        usage: What the provider had reported by then, its output estimated; None where it had
            reported nothing.
        written_tokens: Estimate of what it had streamed by then. Where there is no report, this is
            all that tells that the call is billed: many report at the end alone.
    """

    usage: Usage | None = None
    written_tokens: int = 0


class RateLimited(ModelError):
    """Too many requests or overloaded; `retry_after_s` is what the provider asked for."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class ModelUnreachable(ModelError):
    """No connection, a server error, a stream that was cut or fell silent."""


class ContextOverflow(ModelError):
    """The request does not fit into the model's window.

    Attributes:
        window_tokens: How large it is, if the refusal says so.
    """

    window_tokens: int | None = None


class CredentialsRefused(ModelError):
    """The key is wrong, revoked, or may not do this."""


class CreditUsedUp(CredentialsRefused):
    """The key is good, but its account has no money left, or a limit of spending is reached.

    What is next is the same as for a refused key: another key may be of another account.
    """


class ModelNotFound(ModelError):
    """The provider does not know the model."""


class BadRequest(ModelError):
    """The provider rejects the request's form.

    Attributes:
        output_tokens: The longest answer that may be asked for, if the refusal says so.
        is_unexplained: Nothing known says what it was refused for; it may be its size. Of a turn's
            request: and it is a large one.
    """

    output_tokens: int | None = None
    is_unexplained: bool = False


class ModelRefused(ModelError):
    """The provider declines to answer this content."""


class SpendLimitReached(AgentError):
    """A budget is used up. `scope` says whose, `limit_usd` how much; it starts anew at `until`."""

    def __init__(self, scope: Literal["all", "sender"], limit_usd: float, until: datetime) -> None:
        super().__init__(f"budget of {limit_usd:g} US dollars a day ({scope}) used up")
        self.scope = scope
        self.limit_usd = limit_usd
        self.until = until


class SummaryFailed(AgentError):
    """The summary model gave nothing usable.

    `cooldown_s` is how long it is not asked again: 60 s after passing trouble, 600 s where no
    provider can do it.
    """

    def __init__(self, reason: str, cooldown_s: float = 60) -> None:
        super().__init__(reason)
        self.cooldown_s = cooldown_s


class SummaryOverflow(SummaryFailed):
    """The material for a summary does not fit into the window of the model that is asked next.

    `window_tokens` is that window, as it is known by now.
    """

    def __init__(self, window_tokens: int) -> None:
        super().__init__(f"the material does not fit into {window_tokens} tokens")
        self.window_tokens = window_tokens


class SummaryTooLong(SummaryFailed):
    """The summary is longer than was asked for, or than its source: worth one shorter attempt."""


class PluginRefused(AgentError):
    """A plugin, or a context engine, cannot be used; the text says why and how to fix it."""


class ToolError(AgentError):
    """A tool cannot do what was asked; the text is written for the model."""


class AttemptEnds(AgentError):
    """The attempt cannot go on; the turn can, later. Also what its records raise (gateway)."""


class TurnSuspended(AttemptEnds):
    """The turn waits for a person; it goes on where its records end once they have answered."""


class RecordingMismatch(AgentError):
    """The recording has no answer at this place."""


class SecretUnreadable(AgentError):
    """What the settings refer to cannot be read; the text goes on behind the reference.

    It holds neither the secret nor a part of it.
    """
