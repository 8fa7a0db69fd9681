"""`/retry`: asks the newest question again.

The old answer leaves the view but stays stored. With the number of an edited message, as sent by a
button, it asks the newest wording of that message.
"""

from gateway.commands.registry import QUEUED, Command, QueuedContext
from gateway.storage.conversation import turns
from gateway.storage.conversation.message_content import content_of, origins_of
from gateway.storage.conversation.turns import AskedQuestion
from gateway.storage.queue import overheard
from gateway.storage.schema import id_in

NOTHING_TO_RETRY = "There is nothing to ask again."


@Command("retry", "ask the last question again", QUEUED, 110)
def ask_again(context: QueuedContext) -> AskedQuestion | str:
    """Ask the question again."""
    conn, lease = context.conn, context.held.lease
    number = id_in(context.entry.argument)
    edited = None if number is None else overheard.wording(conn, context.entry.conversation, number)
    if edited:
        others = turns.senders_of(lease, [edited])
        here, text = lease.conversation, edited.text
        asked = content_of(conn, here, [edited], text)
        origins = origins_of(conn, here, [edited])
        return AskedQuestion(asked, others, origins=origins) if asked else NOTHING_TO_RETRY
    # Read before the turn is hidden: afterwards it is no longer the newest.
    others, retries = turns.asked_newest(conn, lease)
    question = turns.hide_newest(conn, lease.conversation)
    return AskedQuestion(question, others, retries) if question else NOTHING_TO_RETRY
