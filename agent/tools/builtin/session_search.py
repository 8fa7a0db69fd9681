"""The tool `session_search`: finds what was said earlier, by words."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from agent.errors import ToolError
from agent.ports import PastMessage
from agent.tools.context import Findings, Hit, SearchQuery, ToolContext
from agent.tools.excerpt import place_of
from agent.tools.registry import Arguments, Tool

TOTAL_CHARS = 10_000
"""Text of one answer; 4 bytes each, and marks beside them, stay under tools.output.max_bytes."""
FOUND_SHARES = 3
"""What was found is shown in so many times the length of a neighbour."""
LEAST_CHARS = 60
LEAD_CHARS = 80
"""Of a cut text, how much stands before the word of the query that it is cut around."""
MARKS = "> holds the words, ~ was found because it stands next to such a message. "
"""Told with what was found rather than in every request."""

_Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


class SearchArguments(Arguments):
    """What to look for, and where."""

    query: _Words = Field(description="Words, or a plain question; no operators")
    limit: int = Field(10, ge=1, le=30)
    role: Literal["user", "assistant", "tool"] | None = None
    since: str | None = Field(None, description="ISO 8601, UTC")
    until: str | None = None
    neighbours: int = Field(1, ge=0, le=3, description="Shown around each")


async def session_search(context: ToolContext, arguments: SearchArguments) -> str:
    """Return what was found among its neighbours, best first, and where was looked."""
    if context.services.searcher is None:
        raise ToolError("there is nothing to search here")
    findings = await context.services.searcher.search(
        SearchQuery(
            text=arguments.query,
            limit=arguments.limit,
            neighbours=arguments.neighbours,
            role=arguments.role,
            since=arguments.since,
            until=arguments.until,
        )
    )
    return "\n".join(_shown(findings, arguments.query))


def _shown(findings: Findings, query: str) -> Iterator[str]:
    if not findings.hits:
        yield "Nothing was found. Other words may help: only words are compared, not meanings."
    passages = _passages(findings.hits)
    share = _share(passages)
    for hit, seqs, messages in passages:
        yield f"--- {_place(hit)}"
        for message in messages:
            room = share * (FOUND_SHARES if message.seq in seqs else 1)
            mark = seqs.get(message.seq, " ")
            text = _cut(message, room, query if message.seq in seqs else "")
            yield f"{mark} #{message.seq} {message.role} {message.at}: {text}"
    yield f"[{MARKS if findings.hits else ''}{findings.scope}]"


Passage = tuple[Hit, dict[int, str], list[PastMessage]]
"""The best hit of a passage, the seqs that were found in it with their marks, and its messages in
order."""


def _passages(hits: Sequence[Hit]) -> list[Passage]:
    """Return hits in order of their worth; one among another's messages is shown there."""
    passages: list[Passage] = []
    for hit in hits:
        same = (each for each in passages if each[0].conversation == hit.conversation)
        known = next((each for each in same if _meet(each[2], hit)), None)
        if known is None:
            passages.append((hit, {hit.seq: _mark(hit)}, list(hit.messages)))
            continue
        merged = {message.seq: message for message in (*known[2], *hit.messages)}
        known[1][hit.seq] = _mark(hit)
        known[2][:] = [merged[seq] for seq in sorted(merged)]
    return passages


def _meet(messages: Sequence[PastMessage], hit: Hit) -> bool:
    return not {message.seq for message in messages}.isdisjoint(each.seq for each in hit.messages)


def _mark(hit: Hit) -> str:
    return ">" if hit.holds else "~"


def _share(passages: Sequence[Passage]) -> int:
    """Return how many characters of each neighbour are shown."""
    shares = sum(
        FOUND_SHARES if message.seq in seqs else 1
        for _, seqs, messages in passages
        for message in messages
    )
    return max(LEAST_CHARS, TOTAL_CHARS // max(1, shares))


def _place(hit: Hit) -> str:
    if hit.here:
        return "this conversation"
    return f"another direct chat of the same sender: {' '.join(hit.title.split()) or 'no title'}"


def _cut(message: PastMessage, room: int, look_for: str) -> str:
    """Return a text, of a long one what stands around a word that was looked for."""
    text = message.text
    if len(text) <= room:
        return text
    start = max(0, min(place_of(look_for, text) - LEAD_CHARS, len(text) - room))
    end = start + room
    before = "[…] " if start else ""
    left = len(text) - end
    return f"{before}{text[start:end]}" + (f" [+{left:,} characters]" if left else "")


TOOL = Tool(
    name="session_search",
    description=(
        "Finds messages by their words: in this conversation from its first one on, also those no"
        " longer in view, and from a direct chat in the same sender's other direct chats; never in"
        " other people's. read_conversation reads on from a number (#12) of this conversation."
    ),
    effect="read",
    arguments=SearchArguments,
    run=session_search,
)
