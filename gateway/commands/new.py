"""`/new`: continues the conversation in a new lineage.

Earlier messages stay stored but leave the view. `sessions.reset` does the same without a command.
"""

from gateway.commands.registry import NEW_BEGINNING, Command, QueuedContext
from gateway.storage.conversation import turns
from gateway.storage.conversation.message_content import content_of, origins_of
from gateway.storage.conversation.turns import AskedQuestion
from gateway.storage.queue import overheard

NEW_TEXT = "A new conversation begins here. What was said before stays on record."


@Command("new", "start afresh; the old conversation stays on record", NEW_BEGINNING, 10)
def begin_anew(context: QueuedContext) -> AskedQuestion | str:
    """Start a new conversation; text after the command becomes its first message."""
    conn, lease, entry = context.conn, context.held.lease, context.entry
    # Earlier messages belong to the old conversation.
    overheard.take_noted(conn, lease.conversation, entry.seq)
    turns.begin_anew(conn, lease, "new", entry.argument)
    asked = content_of(conn, lease.conversation, [entry], entry.argument)
    origins = origins_of(conn, lease.conversation, [entry])
    return AskedQuestion(asked, origins=origins) if asked else NEW_TEXT
