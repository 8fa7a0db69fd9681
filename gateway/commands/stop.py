"""`/stop`: ends the answer in progress, drops queued messages, and withdraws open questions.

It applies to everything before it in the inbox, even if the process ends before the turn notices:
the conversation's row stores its position.
"""

from adapters.messages import MessageRef
from gateway.commands.registry import IMMEDIATE, Command, CommandContext, CommandResult
from gateway.storage.conversation import conversations, questions, turns
from gateway.storage.queue import inbox


@Command("stop", "stop the current answer and drop queued messages", IMMEDIATE, 20, urgent=True)
def stop(context: CommandContext) -> CommandResult:
    """Stop everything in the conversation before the command."""
    conn, conversation_id = context.conn, context.conversation
    # Read before anything changes: the answer reports what was stopped.
    waiting = inbox.queued(conn, conversation_id)
    was_running = turns.has_running(conn, conversation_id)
    dropped = inbox.cancel_queued(conn, conversation_id)
    conversations.stop_upto(conn, conversation_id, context.seq)
    if questions.cancel(conn, conversation_id):
        # Claim the conversation, so that the waiting turn ends.
        conversations.make_ready(conn, conversation_id)
    address = context.message.address
    return CommandResult(
        stop_text(was_running=was_running, dropped=dropped),
        stops=True,
        dropped=[MessageRef(address, entry.sender, entry.message_ref) for entry in waiting],
    )


def stop_text(*, was_running: bool, dropped: int) -> str:
    """Return the answer to `/stop`; `dropped` is the number of waiting messages."""
    if not was_running and not dropped:
        return "There is nothing to stop."
    text = "Stopped." if was_running else "Nothing was running."
    if dropped == 1:
        text += " One queued message was dropped."
    elif dropped:
        text += f" {dropped} queued messages were dropped."
    return text
