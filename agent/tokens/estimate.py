"""Token estimates of texts, messages and calls, for whichever model.

Used wherever a provider has not reported yet: cold views, usage of models without a report. With
the name of an OpenAI-family model a tokenizer counts (agent/tokens/tiktoken.py), else the bytes do
(agent/tokens/rough.py). What the providers do report is agent/context/meter.py's.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson

from agent.messages import ToolSchema
from agent.tokens.rough import message_tokens, rough_tokens
from agent.tokens.tiktoken import counter_for, is_openai_family

CALL_TOKENS = 40
"""Overhead of one tool call, its id included, for models that a tokenizer does not count.

Source: 763 billed answers of Claude 4.5 that call tools, median.
"""


def estimate_tokens(
    text_or_messages: str | Iterable[Mapping[str, Any]], model: str | None = None
) -> int:
    """Return about how many tokens a text or a list of chat messages has, rounded up.

    Args:
        text_or_messages: Any text in any language, where 0 is only for the empty one; or messages
            in OpenAI's format, also with missing keys and unknown parts.
        model: Name of the model, a vendor prefix allowed. OpenAI-family: counted by tiktoken,
            which is loaded by the first such call. Claude: mean error 9 to 11 %. None or unknown:
            like the newest Claude, whose estimates are the larger ones.
    """
    if not isinstance(text_or_messages, str):
        return estimate_messages(text_or_messages, model)
    if model and is_openai_family(model):
        return counter_for(model).count_text(text_or_messages)
    return rough_tokens(text_or_messages, model)


def estimate_message(message: Mapping[str, Any], model: str | None = None) -> int:
    """Return the estimate of one message: text, tool calls, images, overhead.

    `reasoning` and `opaque` are not counted: most requests leave them out.
    """
    if model and is_openai_family(model):
        return counter_for(model).count_message(message)
    return message_tokens(message, partial(rough_tokens, model=model), CALL_TOKENS)


def estimate_messages(messages: Iterable[Mapping[str, Any]], model: str | None = None) -> int:
    """Return the sum of `estimate_message` over messages."""
    return sum(estimate_message(message, model) for message in messages)


def estimate_tools(tools: Sequence[ToolSchema], model: str | None = None) -> int:
    """Return the estimate of what offering these tools adds to a request."""
    if not tools:
        return 0
    schemas = [[tool.name, tool.description, tool.parameters] for tool in tools]
    return estimate_tokens(orjson.dumps(schemas).decode(), model)
