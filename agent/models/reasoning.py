"""Splits what a model thought off what it says (a stream of text in, visible text out).

Servers without a field for reasoning, or whose parser for it is off, leave it in the text, between
marks that each family of models has of its own. Pure but for its own buffers; used by
agent/models/draft.py, for every wire.
"""

import re
import unicodedata
from functools import cache

_TAGS = (
    *("think", "thinking", "thought", "thoughts", "antthinking", "reason", "reasoning"),
    *("reasoning_scratchpad", "scratchpad", "inner_monologue", "reflection"),
)
_FINALS = ("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>")
CLOSERS: dict[str, tuple[str, ...]] = {
    **{f"<{tag}>": (f"</{tag}>",) for tag in (*_TAGS, "seed:think", "longcat_think")},
    **{f"<|{tag}|>": (f"<|/{tag}|>", f"</{tag}>") for tag in ("think", "thinking")},
    "[think]": ("[/think]",),  # Magistral
    "◁think▷": ("◁/think▷",),  # Kimi
    "<|begin_of_thought|>": ("<|end_of_thought|>",),  # OpenThinker
    "<|start_thinking|>": ("<|end_thinking|>",),  # Command A
    "<|channel>thought": ("<channel|>",),  # Gemma
    "<unused94>thought": ("<unused95>",),  # MedGemma
    "<|channel|>analysis": ("<|end|>", *_FINALS),  # gpt-oss (harmony)
    "<|channel|>commentary": ("<|end|>", "<|call|>", *_FINALS),
}
"""All marks, in lower case: what begins a thought, and what may end it."""
_NOISE = (
    *("<|start|>assistant", "<|end|>", "<|return|>", "<|call|>"),
    *("<|begin_of_solution|>", "<|end_of_solution|>"),
)
"""Tokens that Harmony and OpenThinker put around their messages; always hidden."""
_LONE = tuple({mark for marks in CLOSERS.values() for mark in marks if mark not in _NOISE})
_ATTRIBUTE_CHARS = 60
_LONGEST = max(map(len, (*CLOSERS, *_LONE, *_NOISE))) + _ATTRIBUTE_CHARS
_TAG = re.compile(r"<\s*(/?)\s*([\w:]*)(\s[^<>\n]*)?(>?)")
_PAIR_IN_PASSING = re.compile(r" \S{1,9} ")
"""The text between two tags that a sentence only mentions: "<think> and </think>"."""
_SPOKEN_HARMONY = re.compile(r"analysis(?=\S)(.+?)assistantfinal", re.DOTALL)
"""Harmony's marks once a server has left out what is special in them."""
_CJK = "\u2e80"


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = map(_pattern, sorted(marks, key=len, reverse=True))
    return re.compile("|".join(longest_first), re.IGNORECASE | re.ASCII)


def _pattern(mark: str) -> str:
    tag = _TAG.fullmatch(mark)
    if tag is None:
        return re.escape(mark)
    more = rf"(?:\s+[\w:-]+\s*=[^<>\n]{{0,{_ATTRIBUTE_CHARS}}})?\s{{0,9}}"
    return rf"<\s{{0,9}}{tag[1]}\s{{0,9}}{tag[2]}{more}>"


def _plain(mark: str) -> str:
    """Return a mark, or the beginning of one, as in the table: without blanks and attributes."""
    tag = _TAG.fullmatch(mark)
    if tag is None:
        return mark
    slash, name, more, end = tag.groups()
    return f"<{slash}{name}{'>' if more or end else ''}"


_MARK = _any_of((*CLOSERS, *_LONE, *_NOISE))
_OPENING = _any_of(tuple(CLOSERS))


def _is_around(char: str) -> bool:
    """Whether a character may be one of a pair around a quoted word."""
    return char != "" and (char in "\"'" or unicodedata.category(char) in {"Ps", "Pe", "Pi", "Pf"})


def _is_in_code(text: str, line: str) -> bool:
    """Whether what follows is code: who writes about a tag puts it there. `line` ends `text`."""
    fenced = text.count("```") % 2 or text.count("~~~") % 2
    # An indented line of a thought may end with a closing mark.
    is_first = not line.strip() or _OPENING.search(line)
    indented = is_first and line.expandtabs().startswith(" " * 4) and text.strip() != line.strip()
    return bool(fenced or line.count("`") % 2 or line.endswith("``") or indented)


def _may_end(line: str) -> bool:
    """Whether a sentence may end here: with its mark, or cut off without a space."""
    if line[-1].isalnum() and line[-1] < _CJK:
        return True
    last = line.rstrip()[-1]
    kind = unicodedata.category(last)
    return last != "," and kind[0] in "PS" and kind not in {"Pd", "Ps", "Pi"}


class ReasoningFilter:
    """Takes deltas cut anywhere; the result does not depend on where they were cut.

    A mark inside a code span, a code fence or quotes is text. A block that never ends is reasoning
    if nothing visible came before it (the model was cut short), else it was a mention and is text.
    A closing mark without an opening one, which templates put into the prompt, makes a thought of
    all that was visible before it, unless it stands in the middle of a sentence.

    Attributes:
        takes_back: Whether what was visible before the last call was a thought, and is no more.
        began_inside: Whether the text began with a thought that had no opening mark.
    """

    def __init__(self, *, opened: bool = False) -> None:
        """`opened`: the last answer of the model began with a thought, without a mark."""
        self.takes_back = False
        self._pending = ""
        self._visible: list[str] = []
        self._new: list[str] = []
        self._opener = ""
        self._is_in_passing = False
        self._closers = _LONE if opened else ()
        self._block: list[str] = []
        self._thoughts: list[str] = []
        self._trim = False
        self._is_over = False
        self.began_inside = opened

    @property
    def reasoning(self) -> str:
        """The blocks found so far, stripped and joined by newlines."""
        return "\n".join(thought for thought in self._thoughts if thought)

    @property
    def held_back(self) -> str:
        """All that was taken and not shown: the blocks, and what may yet become a part of one."""
        block = self._block if self._closers else []
        return "".join([*self._thoughts, *block, self._pending])

    def feed(self, delta: str) -> str:
        """Take the next piece of text; return what is certainly visible by now, and was not yet."""
        self.takes_back = False
        self._new = []
        self._pending += delta
        while self._end_block() if self._closers else self._find_mark():
            pass
        return "".join(self._new)

    def close(self, *, cut: bool = False) -> str:
        """Take the end of the text, or of a part of it; return the visible rest.

        `cut`: the model was not done, so that a thought may lack its end.
        """
        self._is_over = True
        self.feed("")
        block = "".join([*self._block, self._pending])
        if not self._closers:
            self._show(self._pending)
        elif self._said_nothing() and (self._opener or cut or not block.strip()):
            # A model may close it with another mark of the table than it opened it with.
            ends = [] if cut else [each.span() for each in _any_of(_LONE).finditer(block)]
            start, end = ends[-1] if ends else (len(block), len(block))
            self._end_thought(block[:start])
            self._show(block[end:])
        else:
            self.began_inside = self.began_inside and bool(self._opener)
            self._show(self._opener + block)
        self._closers, self._pending, self._is_over = (), "", False
        text = "".join(self._visible)
        if spoken := _SPOKEN_HARMONY.match(text):
            self._take_back(spoken[1])
            self._show(text[spoken.end() :])
        return "".join(self._new)

    def _find_mark(self) -> bool:
        """Show what comes before the next mark; return whether there may be more to do."""
        match = _MARK.search(self._pending)
        if match is None:
            self._show_settled()
            return False
        self._show(self._pending[: match.start()])
        self._pending = self._pending[match.start() :]
        mark, after = _plain(match[0].lower()), self._pending[len(match[0]) :]
        meaning = self._is_meant(mark, after)
        if meaning is None:
            return False
        self._pending = after
        if not meaning:
            self._show(match[0])
        elif mark in CLOSERS:
            line = "".join(self._visible).rpartition("\n")[2]
            self._is_in_passing = bool(line.strip()) and not _may_end(line)
            self._opener, self._closers, self._block = match[0], CLOSERS[mark], []
        elif mark in _NOISE:
            self._trim = self._said_nothing()
        else:
            self.began_inside = self.began_inside or not self._said_nothing()
            self._take_back("".join(self._visible))
        return True

    def _is_meant(self, mark: str, after: str) -> bool | None:
        """Whether a mark is one, and not text about it; None until more of the text is here."""
        text = "".join(self._visible)
        line = text.rpartition("\n")[2]
        if _is_in_code(text, line):
            return False
        if _is_around(line[-1:]):
            if not (after or self._is_over):
                return None
            if _is_around(after[:1]):
                return False
        if mark not in _LONE or not line.strip() or _may_end(line):
            return True
        rest = after.lstrip(" \t")
        return rest[0] in "\r\n" if rest else (False if self._is_over else None)

    def _take_back(self, thought: str) -> None:
        """Make a thought of what was visible."""
        self.takes_back = self.takes_back or bool(self._visible)
        self._visible.clear()
        self._new.clear()
        self._end_thought(thought)

    def _end_block(self) -> bool:
        """Collect the block up to its closing mark; return whether the mark was there."""
        match = _any_of(self._closers).search(self._pending)
        if match is None:
            keep = _LONGEST - 1
            self._block.append(self._pending[:-keep])
            self._pending = self._pending[-keep:]
            return False
        block = "".join([*self._block, self._pending[: match.start()]])
        self._pending = self._pending[match.end() :]
        self._closers = ()
        if self._is_in_passing and _PAIR_IN_PASSING.fullmatch(block):
            self._show(f"{self._opener}{block}{match[0]}")
        else:
            self._end_thought(block)
        return True

    def _end_thought(self, thought: str) -> None:
        # Where one was expected without an opening mark, it may have one all the same.
        opening = _OPENING.match(thought)
        thought = thought[opening.end() :] if opening else thought
        self._thoughts.append(thought.removeprefix("<|message|>").strip())
        self._trim = self._said_nothing()

    def _show_settled(self) -> None:
        """Show all but an ending that may become a mark."""
        # A mark may come in several deltas; what was shown is taken back only where it must be.
        tail = self._pending[1 - _LONGEST :].lower()
        starts = (n for n, char in enumerate(tail) if char in "<[◁")
        marks = (*CLOSERS, *_LONE, *_NOISE)
        found = (n for n in starts if any(mark.startswith(_plain(tail[n:])) for mark in marks))
        keep = len(tail) - next(found, len(tail))
        end = len(self._pending) - keep
        self._show(self._pending[:end])
        self._pending = self._pending[end:]

    def _show(self, text: str) -> None:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if text:
            self._visible.append(text)
            self._new.append(text)

    def _said_nothing(self) -> bool:
        return not "".join(self._visible).strip()
