"""Splits what a model thought off what it says (a stream of text in, visible text out).

Servers without a field for reasoning put it into the text, as `<think>` or `<REASONING_SCRATCHPAD>`
blocks. Pure but for its own buffers; used by agent/models/openai/client.py and for summaries.
"""

import re

_NAMES = ("think", "reasoning_scratchpad")
_OPENERS = tuple(f"<{name}>" for name in _NAMES)
_OPENER = re.compile(rf"<({'|'.join(_NAMES)})>", re.IGNORECASE | re.ASCII)


class ReasoningFilter:
    """Takes deltas cut anywhere; the result does not depend on where they were cut.

    A tag inside a code span or a code fence is text. A block that never ends is reasoning if
    nothing visible came before it (the model was cut short), else it was a mention and is text.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._visible: list[str] = []
        self._opener = ""
        self._block: list[str] = []
        self._thoughts: list[str] = []
        self._trim = False

    @property
    def reasoning(self) -> str:
        """The blocks found so far, stripped and joined by newlines."""
        return "\n".join(thought for thought in self._thoughts if thought)

    @property
    def held_back(self) -> str:
        """All that was taken and not shown: the blocks, and what may yet become a part of one."""
        block = self._block if self._opener else []
        return "".join([*self._thoughts, *block, self._pending])

    def feed(self, delta: str) -> str:
        """Take the next piece of text; return what is certainly visible by now."""
        before = len(self._visible)
        self._pending += delta
        while self._end_block() if self._opener else self._find_block():
            pass
        return "".join(self._visible[before:])

    def close(self) -> str:
        """Take the end of the text; return the visible rest."""
        before = len(self._visible)
        if not self._opener:
            self._show(self._pending)
        elif self._said_nothing():
            self._thoughts.append("".join([*self._block, self._pending]).strip())
        else:
            self._show("".join([self._opener, *self._block, self._pending]))
        self._opener = self._pending = ""
        return "".join(self._visible[before:])

    def _find_block(self) -> bool:
        """Show what comes before the next opening tag; return whether there may be more to do."""
        match = _OPENER.search(self._pending)
        if match is None:
            self._show_settled()
            return False
        self._show(self._pending[: match.start()])
        self._pending = self._pending[match.end() :]
        if self._in_code():
            self._show(match[0])
        else:
            self._opener, self._block = match[0], []
        return True

    def _end_block(self) -> bool:
        """Collect the block up to its closing tag; return whether the tag was there."""
        closer = f"</{self._opener[1:]}"
        match = re.search(re.escape(closer), self._pending, re.IGNORECASE | re.ASCII)
        if match is None:
            keep = len(closer) - 1
            self._block.append(self._pending[:-keep])
            self._pending = self._pending[-keep:]
            return False
        self._thoughts.append("".join([*self._block, self._pending[: match.start()]]).strip())
        self._pending = self._pending[match.end() :]
        self._opener = ""
        self._trim = self._said_nothing()
        return True

    def _show_settled(self) -> None:
        """Show all but an ending that may become an opening tag."""
        # A tag may come in several deltas; what was shown cannot be taken back.
        start = self._pending.rfind("<")
        tail = self._pending[start:] if start >= 0 else ""
        if not any(opener.startswith(tail.lower()) for opener in _OPENERS):
            tail = ""
        self._show(self._pending.removesuffix(tail))
        self._pending = tail

    def _show(self, text: str) -> None:
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        if text:
            self._visible.append(text)

    def _in_code(self) -> bool:
        text = "".join(self._visible)
        # Who writes about the tag puts it into code; that is no thought.
        return text.endswith("`") or text.count("```") % 2 == 1

    def _said_nothing(self) -> bool:
        return not "".join(self._visible).strip()
