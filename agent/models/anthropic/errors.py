"""What the anthropic SDK raises becomes a ModelError: by code, status and type of the error.

The text of a message decides only inside one status and type, where the API has nothing else.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import anthropic

from agent.errors import (
    BadRequest,
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    LongContextRefused,
    ModelError,
    ModelNotFound,
    ModelUnreachable,
    RateLimited,
)
from agent.models.api import CLEAR_STATUS, UNREADABLE, build_error, describe, error_class

_BY_TYPE: dict[str | None, type[ModelError]] = {
    "authentication_error": CredentialsRefused,
    "billing_error": CreditUsedUp,
    "permission_error": CredentialsRefused,
    "not_found_error": ModelNotFound,
    "rate_limit_error": RateLimited,
    "overloaded_error": RateLimited,
    "request_too_large": ContextOverflow,
    "invalid_request_error": BadRequest,
    "timeout_error": ModelUnreachable,
    "api_error": ModelUnreachable,
}
_BY_CODE: dict[str | None, type[ModelError]] = {
    "contract_spend_limit_reached": CreditUsedUp,
    "enforced_spend_limit_reached": CreditUsedUp,
    "organization_on_hold": CredentialsRefused,
    "request_body_too_large_after_decoding": ContextOverflow,
}
_LONG_CONTEXT_BETA = ("long context beta is not yet available", LongContextRefused)
# The API has no code for these: a class by its other signs, the text, and what it means then.
# Source: issues of anthropics/claude-code, e.g. 42616 and 50784 (429, also for small requests).
_BY_TEXT: dict[type[ModelError], tuple[tuple[str, type[ModelError]], ...]] = {
    BadRequest: (
        ("prompt is too long", ContextOverflow),
        ("exceed context limit", ContextOverflow),
        ("context window", ContextOverflow),
        ("credit balance is too low", CreditUsedUp),
        _LONG_CONTEXT_BETA,
    ),
    CredentialsRefused: (_LONG_CONTEXT_BETA,),
    RateLimited: (("extra usage is required for long context", LongContextRefused),),
}


@contextmanager
def anthropic_errors(key: str) -> Iterator[None]:
    """Map what the SDK raises to agent/errors.py; the messages do not hold `key`.

    Source: ErrorType and ErrorDetails in anthropic.types.shared, SDK 2.12.0.
    """
    try:
        yield
    except anthropic.APIStatusError as exc:
        reason = describe(exc.status_code, _text(exc.type), _text(exc.api_message), key)
        raise build_error(_classify(exc), exc.status_code, reason, exc.response.headers) from exc
    except (anthropic.APIError, *UNREADABLE) as exc:
        raise ModelUnreachable(f"Anthropic: {type(exc).__name__}") from exc


def _classify(exc: anthropic.APIStatusError) -> type[ModelError]:
    if by_code := _BY_CODE.get(exc.error_code):
        return by_code
    status = exc.status_code
    kind = CLEAR_STATUS.get(status) or _BY_TYPE.get(_text(exc.type)) or error_class(status)
    text = _text(exc.api_message).lower()
    return next((meant for sign, meant in _BY_TEXT.get(kind, ()) if sign in text), kind)


def _text(value: object) -> str:
    """Return a field of an error's body, which may be anything."""
    return value if isinstance(value, str) else ""
