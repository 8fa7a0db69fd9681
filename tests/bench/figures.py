"""One measured figure beside its target, and how it is printed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

WIDE = 6
"""A table of so many columns is printed with less room for names."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A result; `at_most` and `at_least` are targets in the same unit, None where there is none.

    Attributes:
        cells: What is shown instead of value and target, where the section has `COLUMNS`.
    """

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    cells: tuple[str, ...] = ()

    @override
    def __str__(self) -> str:
        if self.cells:
            width = 76 if len(self.cells) < WIDE else 38
            return f"  {self.name:<{width}}" + "".join(f" {cell:>13}" for cell in self.cells)
        return f"  {self.name:<66}{_number(self.value):>9} {self.unit:<9}{self._verdict()}"

    @property
    def reached(self) -> bool:
        """Whether the target holds; also where there is none."""
        high = self.at_most is None or self.value <= self.at_most
        return high and (self.at_least is None or self.value >= self.at_least)

    @property
    def number(self) -> str:
        """The value, with as many digits as are worth reading."""
        return _number(self.value)

    @property
    def verdict(self) -> tuple[str, str]:
        """The target, and whether it is reached; empty where there is none."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}", "reached" if self.reached else "**over**"
        if self.at_least is not None:
            return f"≥ {self.at_least:g}", "reached" if self.reached else "**under**"
        return "", ""

    def showing(self, *cells: str) -> "Figure":
        """Return it with these cells."""
        return replace(self, cells=cells)

    def _verdict(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:<7g}{'OK' if self.reached else 'OVER'}"
        if self.at_least is not None:
            return f">= {self.at_least:<7g}{'OK' if self.reached else 'UNDER'}"
        return ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What could not be measured here, and why; the run fails."""

    name: str
    reason: str
    reached = False

    @override
    def __str__(self) -> str:
        return f"  {self.name}: left out, {self.reason}"


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
