"""Slack's rules for texts and blocks; see docs.slack.dev/reference/block-kit."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.support.slack.faults import ApiError, Json

MARKDOWN_CHARS = 12_000
UPDATE_TEXT_BYTES = 4_000
TEXT_CHARS = 40_000
PAYLOAD_CHARS = 13_200
"""Blocks with more than this in all are refused. Source: slackapi/bolt-js#2509."""
MAX_BLOCKS = 50
CHOICE_VALUE_CHARS = 2_000
LABEL_CHARS = 75

MASS_PING = re.compile(r"<!(?:channel|here|everyone|group|subteam\^)[^>]*>")
"""What rings the bell of everybody when it stands in a text of the bot."""
PING = re.compile(r"<@[UWB][A-Z0-9]+[^>]*>")
"""What rings the bell of one person when it is posted; an edit does not."""

TS = re.compile(r"\d{10}\.\d{6}")


def markup_of(blocks: Sequence[Json]) -> str:
    """Return the text that blocks show, buttons left out."""
    texts = (_text_of(block) for block in blocks if block.get("type") != "actions")
    return "\n".join(text for text in texts if text)


def button_labels(blocks: Sequence[Json]) -> list[str]:
    """Return the labels of all buttons, in order."""
    return [button["text"]["text"] for button in buttons_of(blocks)]


def buttons_of(blocks: Sequence[Json]) -> Iterator[Json]:
    """Yield all buttons, each with the id of its block."""
    for block in blocks:
        for element in block.get("elements", []) if block.get("type") == "actions" else []:
            if element.get("type") == "button":
                yield element | {"block_id": block.get("block_id", "")}


def check_blocks(blocks: Any) -> list[Json]:
    """Return the blocks of a request if Slack would take them."""
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ApiError("invalid_blocks_format")
    if len(blocks) > MAX_BLOCKS:
        raise invalid(f"no more than {MAX_BLOCKS} items allowed [json-pointer:/blocks]")
    for block in blocks:
        check = _CHECKS.get(str(block.get("type")))
        if check is None:
            raise invalid(f"unsupported type: {block.get('type')} [json-pointer:/blocks]")
        check(block)
    if sum(len(block["text"]) for block in blocks if block["type"] == "markdown") > MARKDOWN_CHARS:
        raise ApiError("msg_blocks_too_long")
    if len(json.dumps(blocks, ensure_ascii=False)) > PAYLOAD_CHARS:
        raise ApiError("msg_blocks_too_long")
    return blocks


def invalid(reason: str) -> ApiError:
    """Return Slack's error for blocks, with the reason where Slack gives it."""
    return ApiError("invalid_blocks", response_metadata={"messages": [f"[ERROR] {reason}"]})


def _check_section(block: Json) -> None:
    texts = [block["text"]] if "text" in block else block.get("fields", [])
    if not texts:
        raise invalid("section without text or fields")
    for text in texts:
        _check_text(text, 3_000)


def _check_markdown(block: Json) -> None:
    if not isinstance(block.get("text"), str) or not 1 <= len(block["text"]) <= MARKDOWN_CHARS:
        raise invalid("markdown text must have 1 to 12000 characters")


def _check_actions(block: Json) -> None:
    elements = block.get("elements")
    if not isinstance(elements, list) or not 1 <= len(elements) <= 25:
        raise invalid("1 to 25 elements are required")
    ids = [element.get("action_id") for element in elements if "action_id" in element]
    if len(set(ids)) != len(ids):
        raise invalid("action_id already exists")
    for element in elements:
        _check_button(element)


def _check_button(element: Json) -> None:
    if element.get("type") != "button":
        raise invalid(f"unsupported element {element.get('type')}")
    if element.get("text", {}).get("type") != "plain_text":
        raise invalid("a button needs a plain_text")
    _check_text(element["text"], LABEL_CHARS)
    if (
        len(element.get("value", "")) > CHOICE_VALUE_CHARS
        or len(element.get("action_id", "")) > 255
    ):
        raise invalid("must be less than 2001 characters")
    if element.get("style", "primary") not in {"primary", "danger"}:
        raise invalid("unknown style")


def _check_context(block: Json) -> None:
    elements = block.get("elements")
    if not isinstance(elements, list) or not 1 <= len(elements) <= 10:
        raise invalid("1 to 10 elements are required")
    for element in elements:
        if element.get("type") != "image":
            _check_text(element, 2_000)


def _check_header(block: Json) -> None:
    _check_text(block.get("text"), 150)


def _check_text(text: Any, limit: int) -> None:
    if not isinstance(text, dict) or text.get("type") not in {"plain_text", "mrkdwn"}:
        raise invalid("a text object is required")
    if not isinstance(text.get("text"), str) or not 1 <= len(text["text"]) <= limit:
        raise invalid(f"must be 1 to {limit} characters")


def _no_check(_block: Json) -> None:
    """Accept a block whose content the double does not know."""


_CHECKS: dict[str, Callable[[Json], None]] = {
    "section": _check_section,
    "markdown": _check_markdown,
    "actions": _check_actions,
    "context": _check_context,
    "header": _check_header,
    "divider": _no_check,
    "rich_text": _no_check,
    "image": _no_check,
    "file": _no_check,
    "table": _no_check,
}


def _text_of(block: Json) -> str:
    text = block.get("text", "")
    if isinstance(text, dict):
        return str(text.get("text", ""))
    if text:
        return str(text)
    elements = block.get("elements", [])
    return " ".join(str(e["text"]) for e in elements if isinstance(e.get("text"), str))
