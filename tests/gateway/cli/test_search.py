"""`parley search`: looks through the database's file, and builds the index without a gateway."""

from functools import partial

import orjson
import pytest

from gateway.cli.search import HEADER, SHOWN_CHARS
from tests.support.command_line import Run, one_line
from tests.support.searching import chat, found, said, talk, tell
from tests.support.storage import Store


@pytest.fixture
def search(parley: Run) -> Run:
    """Run `parley search …`."""
    return partial(parley, "search")


def test_everybodys_messages_are_found(search: Run, store: Store) -> None:
    """With where they are, as they are, not too long; of one conversation where that is asked."""
    one = talk(store, "[red]a zebra[/red]")
    two = talk(store, f"a zebra {'x' * SHOWN_CHARS}", user="8")
    lines = search("find", "zebras").out
    assert lines.startswith(HEADER)
    assert f"  {one} #1 user" in lines
    assert "[red]a zebra[/red]" in lines
    assert "x…" in lines
    line = search("find", "zebra", "--conversation", str(two), "--json").out
    only = orjson.loads(line)
    assert (only["conversation"], only["seq"], only["role"]) == (two, 1, "user")


def test_what_was_found_by_its_neighbours_is_marked(search: Run, store: Store) -> None:
    """It holds none of the words itself."""
    here = talk(store, "a zebra", "indeed")
    lines = search("find", "zebra").out.splitlines()
    assert [line[:6] for line in lines[1:]] == [f"  {here} #1", f"~ {here} #2"]


def test_nothing_found_and_what_is_not_indexed(search: Run, store: Store) -> None:
    """Both are said."""
    store.run(tell, chat(store), [said("a zebra")])
    assert search("find", "zebra").out.splitlines() == [
        "nothing was found",
        "1 messages are not in the index yet; `parley run` feeds it",
    ]


def test_a_conversation_that_is_not_there(search: Run, store: Store) -> None:
    """An error, and not "nothing was found"."""
    talk(store, "a zebra")
    result = search("find", "zebra", "--conversation", "99")
    assert "there is no conversation 99" in one_line(result)


@pytest.mark.usefixtures("sqlite_alone")
def test_the_index_is_built_anew(search: Run, store: Store) -> None:
    """From the transcripts; directly where no gateway runs."""
    here = talk(store, "a zebra", "indeed")
    store.close()
    assert search("reindex").out.strip() == "2 messages were read again"
    again = Store(store.path)
    assert found(again, [here], "zebra") == [1, 2]
    again.close()
