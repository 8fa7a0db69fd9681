"""What a freeze asks the database for."""

from agent.messages import assistant_message
from gateway.freezing import Freezer
from gateway.settings import QueueSettings, SessionSettings
from gateway.storage import endings
from tests.support.storage import BASE, Store, admit, inbound, turn_of
from tests.support.turns import ANSWERED

FREEZER = Freezer(QueueSettings(), SessionSettings(), 4_000, lambda _model: BASE, {})


def test_a_plain_message_is_frozen_in_few_statements(store: Store) -> None:
    """Its conversation is looked at once, and nobody asks for files where none came."""
    answered = store.run(turn_of, "hello")
    store.run(endings.commit, answered, [assistant_message("hi")], [], ANSWERED)
    store.run(admit, inbound("how are you?"))
    assert store.statements(FREEZER.freeze, answered.lease) == [
        "SELECT conversation",
        "SELECT inbox",
        "SELECT inbox",
        "SELECT session",
        "INSERT turn",
        "UPDATE inbox",
        "UPDATE conversation",
        "INSERT message",
    ]
