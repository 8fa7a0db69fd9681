"""`/retry`: asks the newest question again.

The answer that it had leaves the view and stays on record. With the number of an edited message in
the inbox, which a button gives, it asks the newest wording of that.
"""

from gateway.commands.registry import QUEUED, Command, QueuedContext
from gateway.storage.conversation import turns
from gateway.storage.conversation.message_content import content_of, origins_of
from gateway.storage.conversation.turns import AskedQuestion
from gateway.storage.queue import overheard
from gateway.storage.queue.inbox import InboxEntry

LONGEST_NUMBER = 18
"""Digits; longer numbers do not fit into the database's integers."""
NOTHING_TO_RETRY = "There is nothing to ask again."


@Command("retry", "ask the last question again", QUEUED, 110)
def ask_again(context: QueuedContext) -> AskedQuestion | str:
    """Return the question that is asked again."""
    conn, lease = context.conn, context.held.lease
    if edited := _edited(context):
        others = turns.senders_of(lease, [edited])
        here, text = lease.conversation, edited.text
        asked = content_of(conn, here, [edited], text)
        origins = origins_of(conn, here, [edited])
        return AskedQuestion(asked, others, origins=origins) if asked else NOTHING_TO_RETRY
    # Both are read before the turn is hidden: afterwards it is not the newest any more.
    others, retries = turns.asked_newest(conn, lease)
    question = turns.hide_newest(conn, lease.conversation)
    return AskedQuestion(question, others, retries) if question else NOTHING_TO_RETRY


def _edited(context: QueuedContext) -> InboxEntry | None:
    """Return the edit of the message that is named by its number; None where none is named."""
    number = context.entry.argument
    if not (number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER):
        return None
    return overheard.wording(context.conn, context.entry.conversation, int(number))
