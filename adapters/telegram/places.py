"""Addresses and message ids as parameters of the Bot API; pure."""

from telegram import ReplyParameters

from adapters.messages import Address


def is_group(chat: str) -> bool:
    """Groups and supergroups have negative ids."""
    return chat.startswith("-")


def topic(address: Address) -> int | None:
    """Return the `message_thread_id`; without one, a message goes to the chat itself."""
    return None if address.thread is None else int(address.thread)


def reply_to(ref: str | None) -> ReplyParameters | None:
    """Point at the message that is answered, if it still exists."""
    if ref is None:
        return None
    return ReplyParameters(int(ref), allow_sending_without_reply=True)
