"""Session keys: which conversation a message belongs to (invariant 12)."""

from typing import Literal

from adapters.messages import Address, InboundMessage

GroupSessions = Literal["per_user", "shared"]


def session_key(message: InboundMessage, groups: GroupSessions) -> str:
    """Return `platform:account:chat[:thread][:user]`.

    A direct chat is one conversation, a thread is shared by all who write in it, and a group is
    one conversation per sender or one for all, as `sessions.groups` says. A sender stands behind an
    empty thread, so that it is not taken for one.
    """
    key = address_key(message.address)
    if message.chat_kind == "group" and groups == "per_user":
        key += f"::{_quoted(message.sender)}"
    return key


def sole_sender(message: InboundMessage, groups: GroupSessions) -> str | None:
    """Return whose conversation it is; None for one that several people share."""
    private = message.chat_kind == "dm" or (message.chat_kind == "group" and groups == "per_user")
    return message.sender if private else None


def address_key(address: Address) -> str:
    """Return the key of a direct chat or a thread."""
    parts = [address.platform, address.account, address.chat]
    if address.thread is not None:
        parts.append(address.thread)
    return ":".join(_quoted(part) for part in parts)


def _quoted(part: str) -> str:
    """Keep the parts of a key apart also where an id has a colon."""
    return part.replace("%", "%25").replace(":", "%3A")
