"""Breakpoints of the provider's prompt cache: where a request is marked, just before it is sent.

A provider stores a prompt only up to a breakpoint, at most four in a request, and searches its
cache from each breakpoint back, 20 blocks far. Marking is the last step on the way to the wire and
changes no byte but the markers; agent/models/anthropic/wire.py moves those that cannot be carried.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Literal, cast
from urllib.parse import urlsplit

from agent.messages import ChatMessage
from agent.view.view import MARKER

CacheLayout = Literal["native", "envelope"]
"""How a provider takes breakpoints of its prompt cache: as Anthropic's own API does, or inside the
content parts of an OpenAI-like request (OpenRouter)."""
MAX_BREAKPOINTS = 4
"""The API refuses more (docs/caching.md)."""
LOOK_BACK = 20
"""Blocks that a breakpoint reaches back, its own included (docs/caching.md)."""
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
    """Return the messages with at most four of them marked; unmarked ones are the same objects.

    Text becomes one text block with the marker, of a list the last block gets it, and a message
    without content (and a tool message) carries it as a key of its own. Earlier markers are left
    out; nothing given is changed.

    Args:
        messages: About to be sent, the system message first if there is one.
        ttl: Life of the entries from their last use: "5m" or "1h".
        strategy: "system_and_3": the system prompt and the last three other messages; "anchored":
            see `anchored_places`.
        native: Whether the request goes to Anthropic's own API; in the envelope of another one a
            tool message is marked by `anchored` alone, on its text.
        settled: More places for `anchored`; see `agent.view.view.View.settled`.

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
        # Anthropic takes the marker of a tool message on the result; an envelope has it on a part.
        if message["role"] != "tool" or (anchored and not native):
            marked[place] = _marked(message, ttl)
        elif native:
            marked[place] = _with_key(message, ttl)
    return marked


def system_and_3_places(messages: Sequence[ChatMessage]) -> set[int]:
    """Return the places of the system prompt and of the last three other messages."""
    newest = reversed(range(len(messages)))
    others = (n for n in newest if messages[n]["role"] != "system")
    return {*_system_place(messages), *islice(others, ROLLING_MESSAGES)}


def anchored_places(messages: Sequence[ChatMessage], settled: Sequence[int] = ()) -> set[int]:
    """Return the places that let a request find all that earlier ones have stored.

    It can find the end of the request before if the view only grew, else the parts that a
    compaction left unchanged. The places follow from the stored view alone, so a restart moves
    nothing. The four, most valuable first:

    - the end: everything new is stored, and the next request reads it;
    - the end of the request before, if the look-back from the end does not reach it. It is the
      message before the newest answer; many calls at once put more than 20 blocks between the two;
    - in a compacted view the end of the head, behind which the next compaction writes another
      summary. The look-back from there reaches the system prompt, which alone stays when the first
      compaction appends its note; if the head is too long for that, the prompt is marked too. In a
      view that is not compacted it is the system prompt: other conversations begin with it;
    - the ends of old messages that were rewritten (`settled`). The next compaction rewrites only
      what follows, and then finds the entry that is stored now;
    - the end of the summary, which a compaction that only prunes leaves in its place.

    A place that is left goes to the end of the request before, also within reach: one block here
    may be several for the provider.
    """
    end = len(messages) - 1
    # The end comes first: without it the next request would find nothing new.
    places = {end} if messages else set()
    wanted = _lasting(messages, [place for place in settled if place < end])
    newest = reversed(range(1, len(messages)))
    # The end of the request that led to the newest answer, if there is one.
    before = next((n - 1 for n in newest if messages[n]["role"] == "assistant"), None)
    if before is not None:
        near = _within_reach(messages, before, end)
        wanted = [*wanted, before] if near else [before, *wanted]
    for place in wanted:
        if len(places) < MAX_BREAKPOINTS:
            places.add(place)
    return places


def cache_layout_of(provider: str, name: str, base_url: str | None) -> CacheLayout | None:
    """Return how a model takes breakpoints, or None if it takes none, as all but Claude.

    `base_url` is None for the provider's own address.
    """
    if not is_claude(name):
        return None
    if provider == "anthropic":
        return "native"
    host = urlsplit(base_url or "").hostname or ""
    routed = host == "openrouter.ai" or host.endswith(".openrouter.ai")
    return "envelope" if provider == "openrouter" or (provider == "openai" and routed) else None


def is_claude(name: str) -> bool:
    """Whether a name, with or without a vendor in front, is one of Anthropic's."""
    return "claude" in name.lower()


def is_marked(message: ChatMessage) -> bool:
    """Whether there is a marker on a message or on a part of it."""
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
    # A quotation of a summary costs a breakpoint at most.
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
    """Whether the look-back from one message gets past another one's last block.

    That may be the note of the system prompt, which is new where it matters most.
    """
    # The breakpoint's own block counts as one of the twenty.
    return sum(map(_blocks_of, messages[low + 1 : high + 1])) + 1 < LOOK_BACK


def _blocks_of(message: ChatMessage) -> int:
    """Count a message's blocks; the provider may count some of them as one."""
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
