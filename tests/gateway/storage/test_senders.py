"""A turn knows whose words its question holds."""

from sqlalchemy import update

from agent.messages import assistant_message
from gateway.storage import endings, hiding, inbox
from gateway.storage.models import turn
from gateway.storage.turns import Turn
from tests.support.storage import BASE, Store, admit, begin, claim_one, inbound
from tests.support.turns import ANSWERED, resume


def test_a_turn_knows_whose_words_it_holds(store: Store) -> None:
    """Its entries' senders and others; also when it is resumed, and asked again."""
    chat, _ = store.run(admit, inbound("one", sender="ann"))
    lease = store.run(claim_one, chat)
    waiting = store.run(inbox.queued, chat)
    current = store.run(begin, lease, waiting, "one", BASE, ["telegram:bo"])
    whose = ("telegram:ann", "telegram:bo")
    again = resume(store, current)
    assert (current.senders, again.senders) == (whose, whose)
    store.run(endings.commit, again, [assistant_message("hi")], [], ANSWERED)
    assert store.run(hiding.newest_senders, again.lease) == whose


def test_a_turn_of_an_older_version_holds_its_entries_words(store: Store, current: Turn) -> None:
    """It was written without senders, before the migration."""
    store.run(lambda conn: conn.execute(update(turn).values(senders=None)))
    assert resume(store, current).senders == current.senders != ()


def test_nobody_asked_what_cannot_be_asked_again(store: Store) -> None:
    """In a conversation without a turn."""
    chat, _ = store.run(admit, inbound())
    assert store.run(hiding.newest_senders, store.run(claim_one, chat)) == ()
