"""Breakpoints of the provider's prompt cache, set in a request just before it is sent.

A provider stores a prompt only up to a breakpoint, at most four per request, and searches its cache
backwards from each breakpoint for up to 20 blocks. Marking is the last step before the wire format
and changes no byte but the markers; agent/models/anthropic/wire.py moves markers that their block
cannot carry.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Literal, cast
from urllib.parse import urlsplit

from agent.messages import ChatMessage
from agent.view.view import MARKER

CacheLayout = Literal["native", "envelope"]
"""Format of prompt-cache breakpoints: as in Anthropic's own API, or inside the content parts of an
OpenAI-like request (OpenRouter)."""
MAX_BREAKPOINTS = 4
"""The API refuses more (docs/caching.md)."""
LOOK_BACK = 20
"""Blocks that a breakpoint searches backwards, including its own (docs/caching.md)."""
ROLLING_MESSAGES = 3
KEY = "cache_control"
STRATEGIES = ("system_and_3", "anchored")

_MARKERS = {"5m": {"type": "ephemeral"}, "1h": {"type": "ephemeral", "ttl": "1h"}}


def apply_cache_control(
    messages: Sequence[ChatMessage],
    *,
    ttl: str = "5m",
    strategy: str = "system_and_3",
    native: bool = True,
    settled: Sequence[int] = (),
) -> list[ChatMessage]:
    """Mark at most four messages as breakpoints; unmarked messages are the input objects.

    Text becomes one text block with the marker; in a list the last block gets it; a message without
    content (and a tool message) carries it as its own key. Earlier markers are removed; the input
    is not modified.

    Args:
        messages: About to be sent, with an optional system message first.
        ttl: Lifetime of entries since their last use: "5m" or "1h".
        strategy: "system_and_3": the system prompt and the last three other messages; "anchored":
            see `anchored_places`.
        native: Whether the request goes to Anthropic's own API; otherwise only `anchored` marks a
            tool message, on its text.
        settled: More positions for `anchored`; see `agent.view.view.View.settled`.

    Raises:
        ValueError: An unknown `ttl` or `strategy`.
    """
    if ttl not in _MARKERS:
        raise ValueError(f"the cache keeps entries for {' or '.join(_MARKERS)}, not {ttl!r}")
    if strategy not in STRATEGIES:
        raise ValueError(f"caching strategies are {', '.join(STRATEGIES)}, not {strategy!r}")
    # Markers of an earlier request would count among the four, and the API refuses a fifth.
    marked = [_unmarked(message) if is_marked(message) else message for message in messages]
    anchored = strategy == "anchored"
    places = anchored_places(messages, settled) if anchored else system_and_3_places(messages)
    for place in places:
        message = marked[place]
        # Anthropic accepts a tool message's marker on the result; an envelope has it on a part.
        if message["role"] != "tool" or (anchored and not native):
            marked[place] = _marked(message, ttl)
        elif native:
            marked[place] = _with_key(message, ttl)
    return marked


def system_and_3_places(messages: Sequence[ChatMessage]) -> set[int]:
    """Return the positions of the system prompt and the last three other messages."""
    newest = reversed(range(len(messages)))
    others = (n for n in newest if messages[n]["role"] != "system")
    return {*_system_place(messages), *islice(others, ROLLING_MESSAGES)}


def anchored_places(messages: Sequence[ChatMessage], settled: Sequence[int] = ()) -> set[int]:
    """Return the positions that let a request find everything stored by earlier ones.

    If the view only grew, the end of the previous request can be found, otherwise the parts that a
    compaction left unchanged. The positions depend only on the stored view, so a restart changes
    nothing. The candidates, most valuable first:

    - the end: everything new is stored for the next request to read;
    - the end of the previous request, if the look-back from the end does not reach it. It is the
      message before the newest answer; many concurrent calls put more than 20 blocks between the
      two;
    - in a compacted view the end of the head, after which the next compaction writes another
      summary. The look-back from there reaches the system prompt, the only part that stays when the
      first compaction appends its note; if the head is too long for that, the prompt is marked as
      well. In an uncompacted view it is the system prompt, which other conversations share;
    - the ends of rewritten old messages (`settled`). The next compaction rewrites only what
      follows, and then finds the entry stored now;
    - the end of the summary, which a compaction that only prunes leaves in place.

    A spare breakpoint goes to the end of the previous request even if within reach: one block here
    may be several for the provider.
    """
    end = len(messages) - 1
    # The end comes first: without it the next request would find nothing new.
    places = {end} if messages else set()
    wanted = _lasting(messages, [place for place in settled if place < end])
    newest = reversed(range(1, len(messages)))
    # The end of the request that led to the newest answer, if any.
    before = next((n - 1 for n in newest if messages[n]["role"] == "assistant"), None)
    if before is not None:
        near = _within_reach(messages, before, end)
        wanted = [*wanted, before] if near else [before, *wanted]
    for place in wanted:
        if len(places) < MAX_BREAKPOINTS:
            places.add(place)
    return places


def cache_layout_of(provider: str, name: str, base_url: str | None) -> CacheLayout | None:
    """Return the breakpoint format of a model, or None if it takes none, like all but Claude.

    `base_url` is None for the provider's default address.
    """
    if not is_claude(name):
        return None
    if provider == "anthropic":
        return "native"
    host = urlsplit(base_url or "").hostname or ""
    routed = host == "openrouter.ai" or host.endswith(".openrouter.ai")
    return "envelope" if provider == "openrouter" or (provider == "openai" and routed) else None


def is_claude(name: str) -> bool:
    """Return whether a name, with or without vendor prefix, is one of Anthropic's models."""
    return "claude" in name.lower()


def is_marked(message: ChatMessage) -> bool:
    """Return whether a message or one of its parts has a marker."""
    content = message.get("content")
    return KEY in message or (isinstance(content, list) and any(KEY in part for part in content))


def marker_of(message: ChatMessage) -> dict[str, str] | None:
    """Return the marker of a message, else the last one on its parts, or None."""
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    on_parts = (part[KEY] for part in reversed(parts) if KEY in part)
    return message.get("cache_control") or next(on_parts, None)


def _system_place(messages: Sequence[ChatMessage]) -> list[int]:
    return [0] if messages and messages[0]["role"] == "system" else []


def _lasting(messages: Sequence[ChatMessage], settled: Sequence[int]) -> list[int]:
    """Return the ends of the parts that a compaction leaves unchanged, most valuable first."""
    system = _system_place(messages)
    # A quoted summary wastes one breakpoint at most.
    contents = enumerate(message.get("content") for message in messages)
    summaries = [n for n, text in contents if isinstance(text, str) and text.startswith(MARKER)]
    if not summaries:
        return [*system, *settled]
    head, summary = summaries[0] - 1, summaries[-1]
    if head <= 0:
        return [*system, *settled, summary]
    front = [head] if _within_reach(messages, 0, head) else [head, *system]
    return [*front, *settled, summary]


def _within_reach(messages: Sequence[ChatMessage], low: int, high: int) -> bool:
    """Return whether the look-back from one message reaches beyond another one's last block.

    That block may be the system prompt's note, which is new in the most important case.
    """
    # The breakpoint's own block counts as one of the twenty.
    return sum(map(_blocks_of, messages[low + 1 : high + 1])) + 1 < LOOK_BACK


def _blocks_of(message: ChatMessage) -> int:
    """Count a message's blocks; the provider may merge some of them."""
    content = message.get("content")
    parts = len(content) if isinstance(content, list) else 1
    thoughts = message.get("opaque", {}).get("anthropic", ())
    return parts + len(message.get("tool_calls") or ()) + len(thoughts)


def _unmarked(message: ChatMessage) -> ChatMessage:
    plain = {key: value for key, value in message.items() if key != KEY}
    if isinstance(content := message.get("content"), list):
        plain["content"] = [{k: v for k, v in part.items() if k != KEY} for part in content]
    return cast("ChatMessage", plain)


def _marked(message: ChatMessage, ttl: str) -> ChatMessage:
    content = message.get("content")
    if not content:
        return _with_key(message, ttl)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    last = {**parts[-1], KEY: dict(_MARKERS[ttl])}
    return cast("ChatMessage", {**message, "content": [*parts[:-1], last]})


def _with_key(message: ChatMessage, ttl: str) -> ChatMessage:
    return cast("ChatMessage", {**message, KEY: dict(_MARKERS[ttl])})
