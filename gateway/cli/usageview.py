"""What `parley usage` prints: a table with a sum below it, or JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from agent.safety.redaction import printable
from gateway.storage.reports.ledger import Group, Spent

if TYPE_CHECKING:
    from rich.console import Console

NUMBERS = ("calls", "input", "cache read", "write 5m", "write 1h", "output", "hits")
LEAST = "x least"
"""What prompts were billed in multiples of the least that they could have been."""


def show(groups: Sequence[Group], total: Spent, by: str, console: "Console") -> None:
    """Print one line for each group, and the sum.

    Args:
        groups: In order.
        total: The sum, of groups on other pages too.
        by: What the calls of a group have in common: the heading of its name.
        console: Where to.
    """
    turns = sum(group.turns or 0 for group in groups)
    table = Table(box=None, pad_edge=False)
    table.add_column(by, overflow="fold")
    if by == "outcome":
        table.add_column("turns", justify="right")
        table.add_column("share", justify="right")
    for name in NUMBERS if by == "outcome" else (*NUMBERS, LEAST):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cost", justify="right")
    for group in groups:
        table.add_row(*_cells(_named(group), _counted(group, turns), group.spent))
    counted = (f"{turns:,}", "") if by == "outcome" else ()
    table.add_row(*_cells("total", counted, total), style="bold")
    console.print(table)


def _counted(group: Group, turns: int) -> tuple[str, ...]:
    """Return a group's turns and their share of all; dashes for what no turn has done."""
    if group.turns is None:
        return ()
    return (f"{group.turns:,}", f"{group.turns / turns:.1%}") if group.turns else ("-", "-")


def _named(group: Group) -> str:
    return " ".join(f"{group.name} {group.title}".split())


def _cells(name: str, counted: Sequence[str], spent: Spent) -> list[Text]:
    """Return a line; `counted` are turns and their share by outcome, where nothing is compared."""
    usage, hits, least = spent.usage, spent.hit_ratio, spent.prompts.ratio
    numbers = (
        spent.calls,
        usage.input_tokens,
        usage.cache_read_tokens,
        usage.cache_write_5m_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
    )
    cells = (name, *counted, *(f"{number:,}" for number in numbers))
    ratios = ["-" if hits is None else f"{hits:.1%}"]
    if not counted:
        ratios.append("-" if least is None else f"{least:.2f}")
    return [Text(printable(cell)) for cell in (*cells, *ratios, spent.money.text())]


def as_data(
    groups: Sequence[Group], total: Spent, facts: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield groups for JSON, and at last their sum with what else is to be said about them."""
    for group in groups:
        yield (
            {"name": group.name}
            | ({"title": group.title} if group.title else {})
            | ({} if group.turns is None else {"turns": group.turns})
            | _figures(group.spent)
        )
    yield {"total": _figures(total), **facts}


def _figures(spent: Spent) -> dict[str, Any]:
    """Return a sum as data; `usd` is null, not 0, where no price is known."""
    usage, money = spent.usage, spent.money
    all_unknown = 0 < spent.calls == money.unknown_calls
    return {
        "calls": spent.calls,
        "input_tokens": usage.input_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_5m_tokens": usage.cache_write_5m_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
        "output_tokens": usage.output_tokens,
        "hit_ratio": spent.hit_ratio,
        "billed_to_least_ratio": spent.prompts.ratio,
        "usd": None if all_unknown else money.usd,
        "unknown_calls": money.unknown_calls,
        "estimated": money.estimated,
    }
