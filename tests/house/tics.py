"""Count phrases that read like a translation, and name the places.

`python -m tests.house.tics [FILE OR FOLDER …]` prints each place with its pattern. A text is one
docstring, one block of comments, one help text of the CLI or one paragraph of a page.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.source import PACKAGES

ROOT = Path(__file__).resolve().parents[2]

TICS = {
    "return what, whose, which": r"\b(?:return|say|tell|yield) (?:after |from |of |to )?"
    r"(?:what|whose|which|where|who|how|that)\b",
    "where for if or when": r"^where\b|[;,:] (?:and |but )?(?:none |only )?where\b"
    r"|\b(?:none|only|also|even|but|except) where\b",
    "somebody, nobody, whoever": r"\b(?:some|no|any|every)body\b|\bwho(?:m|se)?ever\b"
    r"|\b(?:to|from|for|of|by|with) (?:those )?who(?:m|se)?\b|(?:^|, |; )who\b|\bthose who\b",
    "stands": r"\bst(?:and|ands|ood) (?!for\b|up\b|down\b|by\b)",
    "is told, tells of": r"\b(?:is|are|was|were|be|been|being) told\b|\b(?:tell|tells|told) of\b",
    "is no X": r"\b(?:is|are|was|were|be) no\b(?! (?:longer|more|less|later|earlier|one)\b)",
    "as it is, as far as": r"\bas (?:it|they) (?:is|are|was|were|stands?)\b|\bas far as\b",
    "there is": r"\bthat there (?:is|are|was|were)\b|\b(?:what|all|whether|which|is|are) there\b",
    "holds for is valid": r"\bhold(?:s)? (?:for|again|if|as long|once|until|only|true|everywhere)\b"
    r"|\b(?:that|which|still|no longer|this) holds?[.,;:]",
    "goes by": r"\b(?:go|goes|going|went) by\b",
    "is to be": r"\b(?:is|are|was|were) to (?:be|have)\b",
    "begin anew": r"\banew\b",
    "mend": r"\bmend(?:s|ed|ing)?\b",
    "look": r"\b(?:a|its|the|each|one|first|next|last) looks?\b|\blooks? (?:at|after|again|for)\b",
    "beside": r"\bbeside\b",
}
"""What is counted, by name: regular expressions without regard to case."""
PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in TICS.items()}
CODE = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"|<[^>]*>|\[[^\]]*\]\([^)]*\)", re.DOTALL)
HELP_CALLS = ("Argument", "Option")


@dataclass(frozen=True, slots=True)
class Text:
    """One text that developers or users read.

    Attributes:
        kind: "docstring", "comment", "help" or "paragraph".
        place: Its file and line.
        words: The text itself.
    """

    kind: str
    place: str
    words: str

    @property
    def tics(self) -> list[str]:
        """The names of the patterns that match, code and quotations left out."""
        plain = CODE.sub("X", self.words).strip()
        return [name for name, pattern in PATTERNS.items() if pattern.search(plain)]


def texts(paths: Iterable[Path]) -> Iterator[Text]:
    """Yield the texts of Python files and Markdown pages."""
    for path in paths:
        if path.suffix == ".md":
            yield from paragraphs(path)
        else:
            tree = ast.parse(path.read_text("utf-8"))
            yield from docstrings(path, tree)
            yield from helps(path, tree)
            yield from comments(path)


def docstrings(path: Path, tree: ast.Module) -> Iterator[Text]:
    """Yield docstrings, those of attributes too."""
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield Text("docstring", _place(path, value.lineno), value.value)


def helps(path: Path, tree: ast.Module) -> Iterator[Text]:
    """Yield the help texts of commands and their options."""
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    keywords = [
        each
        for call in calls
        if ast.unparse(call.func).endswith(HELP_CALLS)
        for each in call.keywords
    ]
    for each in keywords:
        if each.arg == "help" and isinstance(each.value, ast.Constant):
            yield Text("help", _place(path, each.value.lineno), str(each.value.value))


def comments(path: Path) -> Iterator[Text]:
    """Yield blocks of comments, those of tools left out."""
    block: list[str] = []
    start = last = -1
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type != tokenize.COMMENT:
                continue
            words = token.string.lstrip("#! ")
            if re.match(r"noqa|type:|pragma|isort|usr/bin", words):
                continue
            if token.start[0] != last + 1 and block:
                yield Text("comment", _place(path, start), " ".join(block))
                block = []
            start = start if block else token.start[0]
            last = token.start[0]
            block.append(words)
    if block:
        yield Text("comment", _place(path, start), " ".join(block))


def paragraphs(path: Path) -> Iterator[Text]:
    """Yield the paragraphs, items of lists and rows of tables of a page."""
    text = re.sub(
        r"```.*?```", lambda code: "\n" * code[0].count("\n"), path.read_text(), flags=re.S
    )
    block: list[str] = []
    start = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if block and (not line.strip() or re.match(r"\s*(?:[-*|#]|\d+\.)\s?", line)):
            yield Text("paragraph", _place(path, start), " ".join(block))
            block = []
        if line.strip():
            start = start if block else number
            block.append(line.strip().lstrip("-*|# "))


def _place(path: Path, line: int) -> str:
    return f"{path}:{line}"


def product_texts(root: Path = ROOT) -> list[Text]:
    """List the texts of the product and of its pages."""
    sources = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    return list(texts([*sources, *pages]))


def main(arguments: list[str]) -> None:
    """Print the places and a table of shares."""
    given = [Path(each).resolve() for each in arguments]
    files = [
        p for g in given for p in ([g] if g.is_file() else [*g.rglob("*.py"), *g.rglob("*.md")])
    ]
    found = list(texts(sorted(files))) if given else product_texts()
    for each in found:
        place = each.place.removeprefix(f"{ROOT}/")
        for tic in each.tics:
            print(f"{place}: {tic}: {' '.join(each.words.split())[:120]}")
    for kind in ("docstring", "comment", "help", "paragraph"):
        ours = [each for each in found if each.kind == kind]
        hits = sum(bool(each.tics) for each in ours)
        print(f"{kind}: {hits} of {len(ours)} = {100 * hits / max(len(ours), 1):.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
