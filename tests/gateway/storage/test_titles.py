"""Titles of lineages: what each began with."""

from adapters.messages import Attachment
from gateway.storage import attachments, inbox, titles
from tests.support.storage import Store, admit, begin_anew, begin_turn, claim_one, inbound, turn_of

FILES = [Attachment(name=name, kind="image", ref=name) for name in ("z.jpg", "a.jpg")]


def test_a_lineage_that_began_with_a_file_has_its_name(store: Store) -> None:
    """The first one, as the conversation had it then."""
    conversation, seq = store.run(admit, inbound(""))
    store.run(attachments.append, conversation, seq, FILES, 100)
    store.run(lambda conn: begin_turn(conn, claim_one(conn, conversation)))
    store.run(begin_anew, conversation)
    assert store.run(titles.of_segments, conversation) == {1: "z.jpg", 2: ""}


def test_a_lineage_in_which_nothing_was_asked_has_no_title(store: Store) -> None:
    """Begun anew twice in a row; the newest one is called as the conversation is."""
    conversation = store.run(turn_of, "where is it?").lease.conversation
    for _ in range(2):
        store.run(begin_anew, conversation)
    store.run(inbox.rename, conversation, "and now?")
    named = store.run(titles.of_segments, conversation)
    assert named == {1: "where is it?", 2: "", 3: "and now?"}


def test_a_long_question_is_cut_as_titles_are(store: Store) -> None:
    """To the same characters as when it named the conversation."""
    conversation = store.run(turn_of, "word " * 40).lease.conversation
    title = store.run(titles.of_segments, conversation)[1]
    store.run(begin_anew, conversation)
    assert store.run(titles.of_segments, conversation)[1] == title
