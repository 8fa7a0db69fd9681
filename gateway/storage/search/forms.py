"""What forms and compounds of a word share, for all languages with Latin letters at once.

A message in such a language holds words that grew at their end (Finnish `talossamme`, Turkish
`evlerimizden`, Hungarian `kertünkben`) or grew together (`Zahnarzttermin`, `verjaardagsfeest`,
`sommarstuga`). Nobody tells which language it is, and a question may be one word; so what is
looked for is wider than a form and worth less: beginnings, parts of a long word, and long words
that end in the word that is asked for. Words are folded: case, accents and marks are gone.

The index holds two kinds of terms for that, both with signs that no word has:
`=ev`: a root of up to three letters of a longer word, too short to be looked for by beginnings;
`==mrettzranhaz`: a long word backwards, without its endings; who ends in `termin` begins with
`==mret`.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gateway.storage.search.stems import stem

LONG_CHARS = 7
"""Shorter words are hardly grown together: `Haustür` has 7."""
LEAST_PART = 4
"""Letters of a part of a compound; a third of all English words end in some word of three."""
LEAST_BEGINNING = 4
SHORT_ROOT = 3
COMPOUND_CHARS = 9
COMPOUND_BEGINNING = 6
"""Letters that words share with one of `COMPOUND_CHARS` where its first part is in both."""
_VOWELS = frozenset("aeiouy")

ENDING_CHARS = 5
# Endings of one step: Dutch, German, Scandinavian, Romance; and of Finnish words their last vowel.
_ENDINGS = re.compile(
    "(?:(?:t)?jes?|ernas?|ornas?|arnas?|ern|ens?|ets?|ers?|ors?|ar|em|es|na|n|s|[aeiouy])$"
)
# Endings that are put behind one another: cases, persons, plurals of Finnish, Turkish, Hungarian.
_CASES = frozenset((
    *("ssamme", "stamme", "llamme", "ssani", "stani", "llani", "ssasi", "ssansa", "lleni"),
    *("kaan", "kin", "ssa", "sta", "lla", "lta", "lle", "ksi", "tta", "nsa", "mme", "nne", "ni"),
    *("larimiz", "lerimiz", "lari", "leri", "lar", "ler", "imiz", "umuz", "iniz", "unuz"),
    *("daki", "deki", "taki", "teki", "nin", "nun", "den", "dan", "ten", "tan", "yle", "yla"),
    *("de", "da", "te", "ta", "ye", "ya", "yi", "yu", "im", "um", "in", "un"),
    *("jaink", "jeink", "jaim", "jeim", "jaid", "aink", "eink", "aim", "eim", "aid", "eid"),
    *("unk", "ink", "ban", "ben", "bol", "bel", "rol", "tol", "nak", "nek", "val", "vel"),
    *("hoz", "hez", "ert", "kent", "ig", "ra", "re", "ba", "be", "on", "en"),
    *("ak", "ek", "ok", "at", "et", "ot", "am", "em", "om", "ai", "ei", "aj"),
))
_CASE_LENGTHS = range(max(map(len, _CASES)), 1, -1)
_GRADES = (
    *(("pp", "p"), ("tt", "t"), ("kk", "k"), ("nt", "nn"), ("nk", "ng"), ("mp", "mm")),
    *(("lt", "ll"), ("rt", "rr"), ("p", "v"), ("t", "d"), ("k", "")),
)
"""Finnish: how the consonant before the last vowel changes in an open and in a closed syllable."""
_VOICED = str.maketrans("ptkbdg", "bdgptk")
"""Turkish: a last consonant, and the same before a vowel (`kitap`, `kitabi`)."""


class Shared(NamedTuple):
    """What else than a word's own term is looked for; terms of the index, `*` ends a beginning.

    Attributes:
        near: Forms of the word, words that begin with it, and the first part of a compound.
        ends: Words that end in it, and the last part of a compound.
    """

    near: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


def shortened(word: str, least: int = LEAST_PART) -> list[str]:
    """Return a word, then what is left of it without one ending after the other."""
    found = [word]
    while (ending := _ENDINGS.search(word, max(0, len(word) - ENDING_CHARS))) and (
        ending.start() >= least
    ):
        word = word[: ending.start()]
        found.append(word)
    return found


def bare(word: str) -> str:
    """Return a word without all the endings that are put behind one another, longest first."""
    while (rest := _without_case(word)) != word:
        word = rest
    return word


def _without_case(word: str) -> str:
    for length in _CASE_LENGTHS:
        if word[-length:] in _CASES:
            rest = word[:-length]
            return rest if len(rest) > 1 and not _VOWELS.isdisjoint(rest) else word
    return word


def shared_terms(word: str) -> tuple[str, ...]:
    """Return what the index holds for a word beside its stem."""
    if not word.isascii() or not word.isalpha():
        return ()
    found = []
    if len(word) >= LONG_CHARS:
        found.append(f"=={shortened(word)[-1][::-1]}")
    if len(word) > SHORT_ROOT and len(short := bare(word)) <= SHORT_ROOT:
        found.append(f"={short}")
    return tuple(found)


def sought(word: str) -> Shared:
    """Return what to look for beside the stem of a word that is asked for."""
    if not word.isascii() or not word.isalpha():
        return Shared()
    if len(word) <= SHORT_ROOT:
        return Shared((f"={word}",))
    forms = shortened(word)[:2]
    forms = list(dict.fromkeys((*forms[-1:], *map(bare, forms))))
    near = [f"{each}*" for each in forms if len(each) >= LEAST_BEGINNING]
    near += [term for each in forms if len(each) <= SHORT_ROOT for term in (each, f"={each}")]
    near += [f"{each}*" for form in forms for each in _graded(form)]
    near += [stem(word[:end]) for end in range(LEAST_PART, min(COMPOUND_BEGINNING, len(word) - 1))]
    near += [f"{word[:COMPOUND_BEGINNING]}*"] if len(word) >= COMPOUND_CHARS else []
    ends = [f"=={each[::-1]}*" for each in shortened(word, SHORT_ROOT)]
    parts = [word[start:] for start in range(SHORT_ROOT, len(word) - LEAST_PART + 1)]
    ends += [each for part in parts for each in (stem(part), *shortened(part)[1:2])]
    return Shared(tuple(dict.fromkeys(near)), tuple(dict.fromkeys(ends)))


def _graded(word: str) -> Iterator[str]:
    """Yield a word with its last consonants as other forms of it have them."""
    if word[-1] in "ptkbdg" and len(word) >= LEAST_BEGINNING:
        yield word[:-1] + word[-1].translate(_VOICED)
    stem, vowel = word[:-1], word[-1]
    if vowel not in _VOWELS:
        return
    for strong, weak in _GRADES:
        for one, other in ((strong, weak), (weak, strong)):
            if one and stem.endswith(one) and len(word) - len(one) + len(other) >= LEAST_BEGINNING:
                yield stem.removesuffix(one) + other + vowel
