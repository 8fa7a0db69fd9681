"""How well the rules find what a reader marks as a standing instruction.

python -m tests.bench instructions                # precision and recall by language
python -m tests.bench instructions FILE           # of another file of marked sentences
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.context.instructions import instructions_in

MARKED = Path(__file__).parent / "probes" / "instructions.txt"


@dataclass(frozen=True, slots=True)
class MarkedSentence:
    """A sentence, and whether a reader takes it for a standing instruction."""

    text: str
    language: str
    stands: bool


@dataclass(frozen=True, slots=True)
class Score:
    """What the rules found of marked sentences."""

    precision: float
    recall: float
    wrong: Sequence[str]
    missed: Sequence[str]


def marked(path: Path = MARKED) -> list[MarkedSentence]:
    """Return the marked sentences of a file: "+ en Call me Jo." or "- en Call me later."."""
    lines = (line for line in path.read_text("utf-8").splitlines() if line[:1] in {"+", "-"})
    parts = (line.split(" ", 2) for line in lines)
    return [MarkedSentence(text, language, mark == "+") for mark, language, text in parts]


def scored(probes: Sequence[MarkedSentence]) -> Score:
    """Return precision and recall of the rules, and where they are wrong."""
    found = {each.text for each in probes if instructions_in(each.text)}
    stands = {each.text for each in probes if each.stands}
    both = len(found & stands)
    return Score(
        precision=both / max(1, len(found)),
        recall=both / max(1, len(stands)),
        wrong=sorted(found - stands),
        missed=sorted(stands - found),
    )


def main(arguments: Sequence[str]) -> None:
    """Print the figures."""
    probes = marked(Path(arguments[0]) if arguments else MARKED)
    for language in (*dict.fromkeys(each.language for each in probes), "all"):
        of_it = [each for each in probes if language in {each.language, "all"}]
        score = scored(of_it)
        figures = f"precision {score.precision:.3f}, recall {score.recall:.3f}"
        print(f"{language}: {len(of_it)} sentences, {figures}")
        if language != "all":
            for label, texts in (("wrong", score.wrong), ("missed", score.missed)):
                print("\n".join(f"   {label}: {text}" for text in texts)) if texts else None
    began = time.perf_counter()
    for each in probes:
        instructions_in(each.text)
    print(f"{(time.perf_counter() - began) / len(probes) * 1e6:.0f} us a sentence")


if __name__ == "__main__":
    main(sys.argv[1:])
