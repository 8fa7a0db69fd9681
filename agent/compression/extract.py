"""The extractor: a summary of what leaves the view, made without any model.

It stands in for the summary model where that fails, and its facts are what a model's summary is
checked against. A short narrative (agent/compression/narrative.py) is followed by an index of the
telling terms by place (agent/compression/terms.py): what is not told can be found and looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.compression import terms
from agent.compression.narrative import narrate
from agent.compression.sources import clip, read
from agent.redaction import Redactor
from agent.tokens import estimate_tokens

if TYPE_CHECKING:
    from agent.view import Entry

NARRATIVE_SHARE = 0.13
EARLIER_SHARE = 0.5
"""Most of the budget that a model's earlier summary takes, which is kept as it is."""

FIRST_SHARE = 0.85
LATER_SHARE = 0.5
"""How much of the index's free room one extraction may fill: the rest is for what comes later.

The first one fills more. What an index holds stays there, so this is what later parts live on.
"""

MOST_FACTS = 300
INTRODUCTION = (
    "Extracted without a model. Under Terms, #N: begins a stretch at message N and lists words that"
    " stand there; read_conversation(from_seq=N) returns the messages in full."
)
_TERMS = "## Terms"
_EARLIER = "## Earlier summary"
_ALSO = "Also mentioned:"


@dataclass(frozen=True, slots=True)
class Extract:
    """A summary made without a model.

    Attributes:
        text: The summary.
        facts: The most telling terms of what leaves the view, most telling first.
    """

    text: str
    facts: tuple[str, ...]


def extract(
    entries: "Sequence[Entry]", previous: str, budget_tokens: int, *, focus: str | None = None
) -> Extract:
    """Return a summary of what leaves the view and of what had left it before.

    The same arguments give the same text, in any process.

    Args:
        entries: The originals that leave the view now, in order of seq.
        previous: The summary of what had left before, an extract or a model's; "" for none.
        budget_tokens: Most tokens of the text, by `estimate_tokens` without a model.
        focus: What the summary is to dwell on.
    """
    pieces = read(entries)
    index, earlier = _carried(previous, budget_tokens)
    most = budget_tokens * 2 // 5 + 3000 + sum(len(line) for _, line in index)
    last_seq = entries[-1][0] if entries else 0
    found = terms.rank(pieces, last_seq, most, terms.words_of(focus or ""), _senior(pieces, budget_tokens) if index else 0)
    story = narrate(pieces, previous, int(budget_tokens * NARRATIVE_SHARE))
    room = budget_tokens - estimate_tokens("\n".join([INTRODUCTION, story, _TERMS, earlier]))
    index = _grown(index, found, room - 1)
    text = _assembled(story, index, earlier, budget_tokens)
    ranked = sorted(found.spellings, key=found.worth.__getitem__, reverse=True)
    return Extract(text, tuple(found.spellings[key] for key in ranked[:MOST_FACTS]))


SENIOR_CHARS = 7


def _senior(pieces, budget_tokens):
    left = budget_tokens * SENIOR_CHARS
    for piece in pieces:
        left -= len(piece.text)
        if left < 0:
            return piece.seq
    return 10**9


def _carried(previous: str, budget_tokens: int) -> tuple[terms.Index, str]:
    """Return the index of the previous summary and, where a model wrote one, what it wrote."""
    if previous.startswith(INTRODUCTION):
        ours, _, earlier = previous.partition(f"\n{_EARLIER}\n")
        return terms.parse_index(ours), earlier
    return [], previous


def _grown(index: terms.Index, found: terms.Vocabulary, room_tokens: int) -> terms.Index:
    """Return the index with the best of the new terms, in at most about `room_tokens`."""
    known = {term.lower() for _, line in index for term in line}
    new = [text for key, text in found.spellings.items() if key not in known]
    free = room_tokens - estimate_tokens(terms.index_text(index))
    share = LATER_SHARE if index else FIRST_SHARE
    return [*index, *terms.lay_out(terms.fitting(new, max(0, int(free * share))), found.places)]


def _assembled(story: str, index: terms.Index, earlier: str, budget_tokens: int) -> str:
    parts = [INTRODUCTION, story, _TERMS, terms.index_text(index)]
    if earlier:
        parts += [_EARLIER, earlier]
    text = Redactor().text("\n".join(filter(None, parts)))
    while estimate_tokens(text) > budget_tokens:
        text = text[: -max(1, len(text) // 50)]
    return text


def retained_share(facts: Sequence[str], text: str) -> float:
    """Return the share of facts whose words stand in the text; 1.0 where there are none."""
    words = terms.words_of(text)
    return sum(terms.words_of(f) <= words for f in facts) / len(facts) if facts else 1.0


def missing_facts_line(facts: Sequence[str], text: str, budget_tokens: int) -> str:
    """Return the facts that the text lacks, as a line to append; empty where none fits."""
    words = terms.words_of(text)
    line = ""
    for fact in facts:
        if not terms.words_of(fact) <= words:
            longer = f"{line} {fact}" if line else f"Also: {fact}"
            if estimate_tokens(longer) > budget_tokens:
                break
            line = longer
    return Redactor().text(line)
