"""Signed thinking of Claude: kept with the message that it led to, and sent back in its place.

`opaque["anthropic"]` holds the blocks as they came. Where one of them did not stand in front of
everything, `opaque["anthropic_places"]` says for each what came before it: characters of the text,
and tool calls. The API takes the blocks back only in their order.
"""

from typing import TYPE_CHECKING, Any

from agent.messages import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Iterable


Block = dict[str, Any]
Place = tuple[int, int]

_TYPES = frozenset({"thinking", "redacted_thinking"})


def opaque_fields(thoughts: "Iterable[tuple[Block, Place]]") -> dict[str, Any]:
    """Return what a message keeps of its thinking: blocks with a signature, and their places."""
    kept = [(block, place) for block, place in thoughts if _is_replayable(block)]
    if not kept:
        return {}
    fields: dict[str, Any] = {"anthropic": [block for block, _ in kept]}
    if any(place != (0, 0) for _, place in kept):
        fields["anthropic_places"] = [list(place) for _, place in kept]
    return fields


def with_thinking(message: ChatMessage, said: list[Block]) -> list[Block]:
    """Return the blocks of an assistant message with its thinking where it stood.

    Thinking that nothing follows is left out: the API refuses a message that ends with it.

    Args:
        message: The message, as stored.
        said: Its text and tool_use blocks in the order of the wire; not changed. A text block that
            thinking stood in the middle of is split, and a marker on it stays with its end.
    """
    opaque = message.get("opaque") or {}
    thoughts: list[Block] = opaque.get("anthropic") or []
    places = opaque.get("anthropic_places") or [(0, 0)] * len(thoughts)
    blocks = list(said)
    for thought, (chars, calls) in reversed(list(zip(thoughts, places, strict=False))):
        index = _behind_calls(blocks, calls) if calls else _behind_text(blocks, chars)
        blocks.insert(index, thought)
    while blocks and blocks[-1].get("type") in _TYPES:
        blocks.pop()
    return blocks


def _behind_calls(blocks: list[Block], calls: int) -> int:
    """Return the index behind so many calls, the end if there are fewer."""
    ends = [n + 1 for n, block in enumerate(blocks) if block.get("type") == "tool_use"]
    return ends[calls - 1] if calls <= len(ends) else len(blocks)


def _behind_text(blocks: list[Block], chars: int) -> int:
    """Return the index behind so many characters of text; the block around it is split."""
    for index, block in enumerate(blocks):
        if chars <= 0 or block.get("type") == "tool_use":
            return index
        size = len(block.get("text", ""))
        if chars < size:
            blocks[index : index + 1] = _split(block, chars)
            return index + 1
        chars -= size
    return len(blocks)


def _split(block: Block, chars: int) -> list[Block]:
    text = block["text"]
    return [{"type": "text", "text": text[:chars]}, {**block, "text": text[chars:]}]


def _is_replayable(block: Block) -> bool:
    # Without its signature the API does not take a block back.
    return block["type"] == "redacted_thinking" or bool(block.get("signature"))
