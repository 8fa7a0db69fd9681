"""Long lists are read page by page, by an index: the newest first, nothing twice or left out."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import update

from gateway.errors import NotFound
from gateway.storage.people import members, notebook
from gateway.storage.queue import dead_letters
from gateway.storage.reports import history, steps
from gateway.storage.schema import inquiry, turn
from tests.support.lists import fill_lists
from tests.support.storage import Store, admit, inbound

BIG = ("conversation", "turn", "outbox", "step", "message", "inbox", "inquiry", "session", "member")
IN_ORDER = (
    "SCAN conversation",  # by its key, from the newest on
    "SCAN turn USING INDEX ix_turn_dead",
    "SCAN outbox USING INDEX ix_outbox_dead",
    "SCAN member USING INDEX ix_member_at",
)
"""What is read from its beginning on, in the order that is shown, up to the limit."""


def costly(plans: list[str]) -> list[str]:
    """Return the steps that take the longer the more there is."""
    read = tuple(f"SCAN {table}" for table in BIG)
    found = [plan for plan in plans if plan.startswith(("USE TEMP B-TREE", *read))]
    return [plan for plan in found if plan not in IN_ORDER]


@pytest.fixture
def lived(store: Store) -> Store:
    """Six lines and more in each list."""
    fill_lists(store)
    return store


def paged(read: Callable[[Any], list[Any]], name: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """Yield what each page of four lines names, from the first to the last."""
    after = None
    while page := read(after):
        yield [name(row) for row in page]
        after = name(page[-1])


def of_conversations(store: Store, limit: int, after: Any) -> list[Any]:
    return store.run(history.overviews, limit, after)


def of_letters(store: Store, limit: int, after: Any) -> list[Any]:
    return store.run(dead_letters.find_all, limit, after)


def of_calls(store: Store, limit: int, after: Any) -> list[Any]:
    return store.run(steps.calls, limit, before=after)


def of_notes(store: Store, limit: int, after: Any) -> list[Any]:
    return store.run(notebook.all_notes, "telegram:42", limit, after)


def of_people(store: Store, limit: int, after: Any) -> list[Any]:
    return store.run(members.listed, limit, after)


def place(row: Any) -> Any:
    """Return what `--after` is for a row."""
    if isinstance(row, members.Member):
        return f"{row.platform}:{row.sender}"
    if isinstance(row, members.PairingRequest):
        return row.code
    return (row.turn, row.number) if isinstance(row, steps.AuditRow) else row.id


LISTS = [
    (of_conversations, list(range(6, 0, -1))),
    (
        of_letters,
        [name for n in (6, 5, 4, 3, 2, 1) for name in (f"s{n}.{n}", f"t{n}")],
    ),
    (of_calls, [(n, k) for n in range(6, 0, -1) for k in (2, 1, 0)]),
    (of_notes, list(range(6, 0, -1))),
    (
        of_people,
        [f"CODE{n}" for n in range(6, 0, -1)] + [f"telegram:m{n}" for n in (6, 5, 4, 3, 2, 1)],
    ),
]


@pytest.mark.parametrize(("read", "all_of_it"), LISTS)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_pages_follow_each_other(
    lived: Store, read: Callable[..., list[Any]], all_of_it: list[Any], limit: int
) -> None:
    """Together they are the whole list in order, whatever the size of a page."""
    pages = list(paged(lambda after: read(lived, limit, after), place))
    assert [name for page in pages for name in page] == all_of_it
    assert all(len(page) == limit for page in pages[:-1])


@pytest.mark.usefixtures("sqlite_alone")
@pytest.mark.parametrize("read", [read for read, _ in LISTS])
def test_a_page_reads_what_it_shows(lived: Store, read: Callable[..., list[Any]]) -> None:
    """No table that grows is looked through or sorted for it, on the first page or a later one."""
    first = read(lived, 2, None)
    for after in (None, place(first[-1])):
        with lived.explained() as plans:
            read(lived, 2, after)
        assert costly(plans) == []


@pytest.mark.usefixtures("sqlite_alone")
def test_calls_of_one_tool_or_conversation_are_paged_too(lived: Store) -> None:
    """By the same order, and by index."""
    for wanted in ({"tool": "look"}, {"conversation": 3}):
        found = lived.run(steps.calls, 2, **wanted)  # type: ignore[arg-type]
        last = found[-1].turn, found[-1].number
        later = lived.run(steps.calls, 2, before=last, **wanted)  # type: ignore[arg-type]
        names = [place(row) for row in (*found, *later)]
        assert names == sorted(names, reverse=True)
        with lived.explained() as plans:
            lived.run(steps.calls, 2, **wanted)  # type: ignore[arg-type]
        assert costly(plans) == []


def test_a_call_that_nobody_answered_yet_has_its_place(lived: Store) -> None:
    """What only an inquiry tells of stands among the calls of its turn."""
    asked = {"turn_id": 6, "conversation": 6, "call_id": "c9", "kind": "approval", "tool": "act"}
    rest = {"definition": "", "question": "?", "state": "pending", "expires_at": 4e9, "at": 99.0}
    lived.run(lambda conn: conn.execute(inquiry.insert().values(**asked, **rest)))
    assert [row.tool for row in of_calls(lived, 2, None)] == ["act", "look"]
    assert [place(row) for row in of_calls(lived, 2, (6, 1))] == [(6, 0), (5, 2)]


def test_a_letter_that_left_the_list_still_marks_a_place(lived: Store) -> None:
    """The operator drops the last one of a page, and goes on behind it."""
    lived.run(dead_letters.drop, "t4")
    assert [letter.id for letter in of_letters(lived, 2, "t4")] == ["s3.3", "t3"]


def test_a_turn_that_was_put_back_still_marks_a_place(lived: Store) -> None:
    """It was given up when it was; what is asked again is another turn."""
    lived.run(dead_letters.retry, "t4")
    assert [letter.id for letter in of_letters(lived, 2, "t4")] == ["s3.3", "t3"]


def test_a_send_that_was_put_back_marks_none(lived: Store) -> None:
    """Its time is that of the retry: a page behind it would begin at the top again."""
    lived.run(dead_letters.retry, "s4.4")
    with pytest.raises(NotFound, match=r"no dead letter s4\.4 to go on behind"):
        of_letters(lived, 2, "s4.4")


def test_a_turn_that_was_answered_is_no_place(lived: Store) -> None:
    """It was never given up."""
    lived.run(lambda conn: conn.execute(update(turn).values(state="done")))
    with pytest.raises(NotFound, match="no dead letter t4 to go on behind"):
        of_letters(lived, 2, "t4")


@pytest.mark.parametrize(
    ("read", "after"),
    [(of_letters, "t99"), (of_letters, "x"), (of_people, "GONE"), (of_people, "telegram:gone")],
)
def test_a_place_that_never_was_is_named(
    lived: Store, read: Callable[..., list[Any]], after: str
) -> None:
    """Better than an empty page that looks like the end."""
    with pytest.raises(NotFound, match="to go on behind; begin without it"):
        read(lived, 2, after)


def test_new_rows_move_no_page(lived: Store) -> None:
    """What comes meanwhile stands before the first page, and shifts nothing."""
    second = of_conversations(lived, 2, 5)
    lived.run(admit, inbound(chat="new"))
    assert of_conversations(lived, 2, 5) == second
