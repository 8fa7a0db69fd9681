"""Pages of the commands: each ends with what the next one is called with; wrong places are told."""

import re
from collections.abc import Iterator

import orjson
import pytest

from agent.messages import Usage
from gateway.storage.reports import spending
from tests.support.command_line import Run, one_line
from tests.support.lists import CONVERSATIONS, fill_lists
from tests.support.searching import feed
from tests.support.storage import Store, model_call
from tests.support.thorough import products

LISTS = (
    "sessions list",
    "dead-letters list",
    "pair list",
    "usage --by sender",
    "usage --by conversation",
)
_MORE = re.compile(r"There is more: the same command with --after (\S+)\n")


@pytest.fixture
def lived(store: Store) -> Store:
    """Something in each list, and calls by several people that cost the same."""
    fill_lists(store)
    feed(store)
    for n in range(1, CONVERSATIONS + 1):
        store.run(spending.book, n, n, f"telegram:{n % 4}", [model_call(Usage(10))])
    return store


def pages(parley: Run, command: str, limit: int) -> Iterator[list[object]]:
    """Yield the lines of each page as JSON, following what stands below its table."""
    place: list[str] = []
    while True:
        arguments = [*command.split(), "--limit", str(limit), *place]
        rows = map(orjson.loads, parley(*arguments, "--json").out.splitlines())
        yield [row for row in rows if "total" not in row and row.pop("left_s", 1)]
        more = _MORE.search(parley(*arguments).out)
        if more is None:
            return
        place = ["--after", more[1]]


@pytest.mark.thorough
@pytest.mark.parametrize("command", LISTS)
def test_the_pages_of_a_command_are_its_whole_list(parley: Run, lived: Store, command: str) -> None:
    """Nothing twice, nothing left out, and the last one says that there is no more."""
    [whole] = pages(parley, command, 50)
    assert len(whole) >= 4
    read = list(pages(parley, command, 2))
    assert [row for page in read for row in page] == whole
    assert {len(page) for page in read[:-1]} == {2}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sessions list --after x", "'x' is not a conversation id"),
        (f"sessions list --after {10**20}", "is not a conversation id"),
        ("dead-letters list --after t99", "there is no dead letter t99 to go on behind"),
        ("pair list --after NOBODY", "there is no NOBODY to go on behind"),
        ("usage --by sender --after telegram:99", "there is no telegram:99 to go on behind"),
        ("usage --by conversation --after x", "there is no x to go on behind"),
    ],
)
def test_a_place_that_is_none_is_told(parley: Run, lived: Store, command: str, told: str) -> None:
    """In one line, and not as an empty page that looks like the end."""
    assert told in one_line(parley(*command.split()))


@pytest.mark.parametrize("by", ["day", "model", "outcome"])
def test_what_has_no_pages_takes_no_place(parley: Run, lived: Store, by: str) -> None:
    """It would be passed over in silence."""
    result = parley("usage", "--by", by, "--after", "x")
    assert (result.code, result.out) == (2, "")
    assert "--by sender" in result.err


@pytest.mark.parametrize(
    ("command", "last"),
    [
        ("sessions list", "1"),
        ("dead-letters list", "t1"),
        ("pair list", "telegram:m1"),
    ],
)
def test_behind_the_end_of_a_list_there_is_nothing_more(
    parley: Run, lived: Store, command: str, last: str
) -> None:
    """That is said, and not that there is nothing at all."""
    result = parley(*command.split(), "--after", last)
    assert (result.code, result.out.strip()) == (0, "there is nothing more")


@pytest.mark.parametrize(("command", "limit"), products([*LISTS], ["0", "-1", "10001", "many"]))
def test_a_page_has_a_line_at_least(parley: Run, lived: Store, command: str, limit: str) -> None:
    """And not too many; the error names the option."""
    result = parley(*command.split(), "--limit", limit)
    assert (result.code, result.out) == (2, "")
    assert "--limit" in result.err
