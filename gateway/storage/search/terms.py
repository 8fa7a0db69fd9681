"""From text to the terms that the search index holds, and from a question to those it asks for.

Words are folded (case, accents) and stemmed. Scripts that put no spaces between words, and Hangul,
whose endings grow together with the word, become overlapping pairs of characters. All of it is
pure: the same text always has the same terms, which is how they are taken out of the index again.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from agent.messages import ChatMessage, full_text, storable

VERSION = 3
"""Of what the index holds for a text: with another number it is built anew at the next start."""

MAX_CHARS = 50_000
"""Of a message that is indexed; longer ones are pasted files."""
TOOL_CHARS = 2_000
"""Of the beginning, and of the end, of a tool's result: what it is and how it ended stand there,
the middle is mostly data that would outweigh everything people said."""
COPYING = frozenset({
    "session_search",
    "read_conversation",
    "lcm_grep",
    "lcm_expand",
    "lcm_describe",
})
"""Tools that show what was said: their results are copies, and their arguments its words."""
MAX_TERM_CHARS = 40
"""Of a word; what is longer is data, and would be remembered whole (`KNOWN_WORDS`)."""
KNOWN_WORDS = 4096
"""Words whose stems are remembered: 0.6 MB. Of 152,000 words of English prose and code, 4,388 of
them different, one takes 95 ns with 4,000, 126 ns with 2,000 and 773 ns with none."""
MAX_QUERY_CHARS = 2_000
MAX_QUERY_TERMS = 16
"""Of a pasted question the longest words are looked for, which are the rarest."""

_SPACELESS = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # Hangul
    "\u3005\u3007\u3040-\u30ff\u31f0-\u31ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
# Accents, points and vowel signs: they belong to a word, and `\w` does not match them.
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0dff\u0f00-\u0fff"
_RUNS = re.compile(rf"(?P<pairs>[{_SPACELESS}]+)|(?:(?![{_SPACELESS}])[^\W_]|[{_MARKS}])+")
_ACCENTS = re.compile("[\u0300-\u036f]")

# What a question is made of beside its subject; in a list, since in a chat such words can be rare.
_STOP_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        """
    a about after again all also am an and any are as at be been before being but by can could d
    did do does doing done during each few for from further had has have having he her here hers
    him his how i if in into is it its just ll m may me might mine more most must my no not now of
    off on once only or other our ours out over own re s same shall she should so some such t than
    that the their theirs them then there these they this those through to too under until up us
    ve very was we were what when where which while who whom whose why will with would you your
    yours aren couldn didn doesn don hadn hasn haven isn shouldn wasn weren won wouldn
""",
    )
)

_IRREGULAR: dict[str, str] = dict(
    re.findall(
        "([a-z]+)/([a-z]+)",
        """
    ate/eat became/become began/begin begun/begin bought/buy broke/break broken/break
    brought/bring built/build came/come caught/catch children/child chose/choose chosen/choose
    drank/drink drawn/draw drew/draw driven/drive drove/drive eaten/eat fallen/fall feet/foot
    fell/fall felt/feel flew/fly flown/fly forgot/forget forgotten/forget fought/fight found/find
    gave/give given/give gone/go got/get gotten/get grew/grow grown/grow heard/hear held/hold
    hid/hide hidden/hide kept/keep knew/know knives/knife known/know led/lead left/leave lent/lend
    lives/life lost/lose made/make men/man met/meet mice/mouse paid/pay people/person ran/run
    ridden/ride rode/ride said/say sang/sing saw/see seen/see sent/send shot/shoot slept/sleep
    sold/sell spent/spend spoke/speak spoken/speak stole/steal stolen/steal stood/stand sung/sing
    swam/swim taken/take taught/teach teeth/tooth thought/think threw/throw thrown/throw told/tell
    took/take understood/understand went/go wives/wife woke/wake women/woman wore/wear worn/wear
    written/write wrote/write
""",
    )
)
_SUFFIXES = (
    *("ational", "ation", "ition", "ement", "ment", "ness", "able", "ible"),
    *("ion", "ive", "ful", "ing", "ed", "er", "or", "ly", "al"),
)
_SIBILANTS = ("sses", "shes", "ches", "xes", "zes")
_VOWELS = frozenset("aeiouy")
_SHORTEST_STEM = 3
_BEGINNING_CHARS = 5
"""What the forms of a word of another alphabet are taken to share: Cyrillic, Greek, Arabic, …
Source: measured, docs/recall.md."""
_ARTICLE = re.compile("^(?:[\u0648\u0628\u0643\u0641]?\u0627\u0644|\u0644\u0644)(?=\\w{3})")
"""The Arabic article, written together with its noun and with what stands before it."""


def terms_of(message: ChatMessage) -> frozenset[str]:
    """Return what the index holds for a message; nothing for what is not searched.

    That is what Parley wrote itself, system prompts, synthetic and ephemeral messages; and calls
    of tools that show what was said, with their results.
    """
    if message["role"] == "system" or message.get("synthetic") or message.get("ephemeral"):
        return frozenset()
    text = _own_text(message)
    if message["role"] == "tool" and len(text) > 2 * TOOL_CHARS:
        text = f"{text[:TOOL_CHARS]} {text[-TOOL_CHARS:]}"
    return frozenset(_terms(text[:MAX_CHARS]))


def _own_text(message: ChatMessage) -> str:
    """Return the text of a message without copies of what stands elsewhere."""
    if message["role"] == "tool" and message.get("name") in COPYING:
        return ""
    calls = message.get("tool_calls") or []
    own = [call for call in calls if call["function"]["name"] not in COPYING]
    if len(own) == len(calls):
        return full_text(message)
    return full_text({**message, "tool_calls": own})


def _terms(text: str) -> Iterator[str]:
    for run in _RUNS.finditer(_folded(text)):
        if run["pairs"] is None:
            yield stem(run[0][:MAX_TERM_CHARS])
        else:
            # The last character too: it begins no pair, and one is looked for by its beginning.
            yield from (run[0][n : n + 2] for n in range(len(run[0])))


def _folded(text: str) -> str:
    """Return text without case, accents and the widths of characters."""
    text = text.casefold()
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", storable(text))
    return unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed))


def asked_terms(question: str) -> list[str]:
    """Return the terms of a question, those that say most; one that ends in `*` is a beginning.

    Words that any question has are left out, unless there is nothing else in it.
    """
    found: dict[str, bool] = {}
    for run in _RUNS.finditer(_folded(question[:MAX_QUERY_CHARS])):
        if run["pairs"] is None:
            found[stem(run[0][:MAX_TERM_CHARS])] = run[0] in _STOP_WORDS
        else:
            found.update(dict.fromkeys(_asked_pairs(run[0]), False))
    terms = [term for term, common in found.items() if not common] or list(found)
    return sorted(terms, key=len, reverse=True)[:MAX_QUERY_TERMS]


def _asked_pairs(run: str) -> list[str]:
    return [run[n : n + 2] for n in range(len(run) - 1)] or [f"{run}*"]


@lru_cache(maxsize=KNOWN_WORDS)
def stem(word: str) -> str:
    """Return what the forms of a word have in common.

    Light on purpose. Of an English word endings are cut, and nothing is looked up but irregular
    forms; of one in another alphabet the beginning counts, an Arabic article left out.
    """
    word = _IRREGULAR.get(word, word)[:MAX_TERM_CHARS]
    if word.isalpha() and not word.isascii():
        return _ARTICLE.sub("", word)[:_BEGINNING_CHARS]
    if len(word) <= _SHORTEST_STEM or not (word.isascii() and word.isalpha()):
        return word
    return _ending(_without_suffix(_singular(word)))


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(_SIBILANTS):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _without_suffix(word: str) -> str:
    for suffix in _SUFFIXES:
        kept = word.removesuffix(suffix)
        if kept != word and len(kept) >= _SHORTEST_STEM and not _VOWELS.isdisjoint(kept):
            return kept[:-1] if _is_doubled(kept) else kept
    return word


def _is_doubled(word: str) -> bool:
    """Whether a consonant was doubled before the ending (`running`), and not `tell` or `miss`."""
    return len(word) > _SHORTEST_STEM and word[-1] == word[-2] and word[-1] not in "lsz"


def _ending(word: str) -> str:
    """Return a stem with the end its forms share: `love`, `loving`; `carry`, `carried`."""
    if len(word) > _SHORTEST_STEM and word[-1] == "e":
        word = word[:-1]
    if len(word) > _SHORTEST_STEM and word[-1] == "y":
        word = word[:-1] + "i"
    return word
