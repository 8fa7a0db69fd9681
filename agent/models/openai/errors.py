"""What the openai SDK raises becomes a ModelError: by status, code and type of the error.

The text of a message decides only inside one status, where compatible servers have no code.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import openai

from agent.errors import (
    ContextOverflow,
    CredentialsRefused,
    CreditUsedUp,
    ModelError,
    ModelNotFound,
    ModelRefused,
    ModelUnreachable,
    RateLimited,
)
from agent.models.api import UNREADABLE, build_error, describe, error_class

_BY_CODE: dict[str | None, type[ModelError]] = {
    "insufficient_quota": CreditUsedUp,
    "billing_hard_limit_reached": CreditUsedUp,
    "invalid_api_key": CredentialsRefused,
    "model_not_found": ModelNotFound,
    "context_length_exceeded": ContextOverflow,
    "exceed_context_size_error": ContextOverflow,
    "rate_limit_exceeded": RateLimited,
    "rate_limit_error": RateLimited,
    "content_filter": ModelRefused,
    "content_policy_violation": ModelRefused,
}
# Status, text, what it means then. vLLM, llama.cpp, Ollama, OpenRouter and its upstreams say of a
# request that is too large only in words; OpenAI says of one above its rate limit alone. OpenRouter
# has no code for a key whose own limit of spending is reached.
_BY_TEXT: tuple[tuple[int, str, type[ModelError]], ...] = (
    (400, "context length", ContextOverflow),
    (400, "context size", ContextOverflow),
    (400, "context window", ContextOverflow),
    (400, "prompt is too long", ContextOverflow),
    (400, "input token count", ContextOverflow),
    (429, "request too large for", ContextOverflow),
    (403, "key limit exceeded", CreditUsedUp),
)
_TOO_LARGE = 413
_FORBIDDEN = 403


@contextmanager
def openai_errors(key: str) -> Iterator[None]:
    """Map what the SDK raises to agent/errors.py; the messages do not hold `key`."""
    try:
        yield
    except openai.APIStatusError as exc:
        raise _from_api_error(exc, exc.status_code, exc.response.headers, key) from exc
    except (openai.APIConnectionError, *UNREADABLE) as exc:
        raise ModelUnreachable(f"OpenAI API: {type(exc).__name__}") from exc
    except openai.APIError as exc:
        # An error event inside a stream; OpenRouter puts an HTTP status into its code.
        status = int(exc.code) if exc.code and exc.code.isdecimal() else 500
        raise _from_api_error(exc, status, {}, key) from exc


def _from_api_error(
    exc: openai.APIError, status: int, headers: Mapping[str, str], key: str
) -> ModelError:
    body = exc.body if isinstance(exc.body, dict) else {}
    message = body.get("message")
    message = message if isinstance(message, str) else ""
    # A body may hold anything at the place of the type.
    label = exc.code or (exc.type if isinstance(exc.type, str) else None)
    reason = describe(status, label, message, key)
    return build_error(_classify(exc, status, body), status, reason, headers)


def _classify(exc: openai.APIError, status: int, body: dict[str, Any]) -> type[ModelError]:
    metadata = body.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    text = f"{body.get('message')} {metadata.get('raw')}".lower()
    for known_status, sign, kind in _BY_TEXT:
        if status == known_status and sign in text:
            return kind
    if status == _TOO_LARGE:
        return ContextOverflow
    if status == _FORBIDDEN and metadata.get("reasons"):
        return ModelRefused  # OpenRouter's moderation flagged the input
    by_code = _BY_CODE.get(exc.code) or _BY_CODE.get(str(exc.type))
    return by_code or error_class(status)
