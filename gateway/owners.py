"""The owners as those who get told things: who they are, and in which chats they are reached.

Everything they are told is a row of the outbox, like all else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from adapters.messages import Choice
from gateway.access import Access
from gateway.storage import members, outbox
from gateway.storage.outbox import Renderer, parts_of


@dataclass(frozen=True, slots=True)
class Owners:
    """Finds the owners' chats and speaks there; part of the caller's transaction.

    Args:
        access: The settings' owners; those who were made one by a code stand in the database.
        renderers: By (platform, account): of the accounts that are on.
    """

    access: Access
    renderers: Mapping[tuple[str, str], Renderer]

    def everybody(self, conn: Connection) -> list[tuple[str, str]]:
        """Return (platform, sender) of all owners."""
        named = [owner.partition(":") for owner in self.access.settings.owners]
        made = members.owners(conn)
        return list(dict.fromkeys([*((platform, who) for platform, _, who in named), *made]))

    def chats(self, conn: Connection, owners: Sequence[tuple[str, str]]) -> list[Row[Any]]:
        """Return the direct chat of each owner; the web chat where no other can be reached."""
        accounts = self.renderers.keys()
        found = [members.newest_direct_chat(conn, *owner, accounts) for owner in owners]
        chats = [chat for chat in found if chat is not None]
        if chats:
            return chats
        web = members.newest_direct_chat(conn, "web", "web", accounts)
        return [] if web is None else [web]

    def say(
        self,
        conn: Connection,
        place: Row[Any],
        key: str,
        text: str,
        choices: tuple[Choice, ...] = (),
    ) -> bool:
        """Say something in a chat, an owner's or another one; False where the key is known.

        Args:
            conn: The writing connection.
            place: The row of the conversation; its account is on.
            key: Names the cause; a text with the same key is said once.
            text: Markdown.
            choices: Buttons below it.
        """
        render = self.renderers[place.platform, place.account]
        parts = parts_of(render, key, text, choices=choices)
        return outbox.append(conn, place.id, parts, inbox_seq=place.inbox_head)
