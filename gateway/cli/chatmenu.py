"""The buttons of answers in `parley chat`: numbered lines; a number or a label is a press."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Button:
    """What stands on it, and what pressing it says."""

    label: str
    text: str


@dataclass(slots=True)
class Menu:
    """What can be chosen now; each number stands for one button until its question is answered."""

    _open: dict[int, tuple[Button, ...]] = field(default_factory=dict)

    def offer(self, buttons: Sequence[Button]) -> list[str]:
        """Add the buttons of an answer; return the lines that show them."""
        first = max((n + len(group) for n, group in self._open.items()), default=1)
        if buttons:
            self._open[first] = tuple(buttons)
        return [f"  {number}. {button.label}" for number, button in enumerate(buttons, first)]

    def close(self, number: int) -> None:
        """Take the buttons of a question away that is over."""
        for first, group in list(self._open.items()):
            if question_of(group) == str(number):
                del self._open[first]

    def said(self, line: str) -> str:
        """Return what a line says: the text of the button that it chooses, else itself.

        A choice takes the buttons of its answer away, any other message all but those of questions;
        a command leaves them.
        """
        chosen = [
            (first, button)
            for first, group in self._open.items()
            for number, button in enumerate(group, first)
            if line.casefold() in {str(number), button.label.casefold()}
        ]
        if len(chosen) == 1:
            [(first, button)] = chosen
            del self._open[first]
            return button.text
        if not line.startswith("/"):
            self._open = {n: group for n, group in self._open.items() if question_of(group)}
        return line


def question_of(buttons: Sequence[Button]) -> str:
    """Return the number of the question that the buttons answer: they name it; "" for none."""
    words = [word for button in buttons[:1] for word in button.text.split()[1:2]]
    return words[0] if words and words[0].isdecimal() else ""
