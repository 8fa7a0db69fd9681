"""What the scenarios need of a platform: people who write, and what stands in their chats."""

import asyncio
import html
import re
from typing import Any, Protocol

_ESCAPED = re.compile(r"\\([^\w\s])")


def plain(text: str) -> str:
    """Return a text without the marks of Discord's and Slack's markdown; code keeps its fences."""
    unmarked = text.replace("**", "").replace("\u200b", "")
    return html.unescape(_ESCAPED.sub(r"\1", unmarked))


class Room(Protocol):
    """One chat or thread as a person sees it; all texts are plain, without formatting."""

    async def say(self, text: str, *, image: bytes | None = None) -> str:
        """Write a message, with a PNG where one is given; return the platform's id of it."""
        ...

    async def edit(self, ref: str, text: str) -> None:
        """Change one's own message."""
        ...

    async def command(self, name: str) -> None:
        """Use a native command."""
        ...

    async def press(self, label: str) -> None:
        """Press a button."""
        ...

    def texts(self) -> list[str]:
        """Return what the bot says here, in order, as it stands now; files are left out."""
        ...

    def growing(self) -> list[str]:
        """Return what the bot shows here of answers that are not finished."""
        ...

    def files(self) -> list[tuple[str, bytes]]:
        """Return the files that the bot has shown here: name and bytes."""
        ...

    def buttons(self) -> list[str]:
        """Return the labels of the buttons that can be pressed here."""
        ...

    def marks(self, ref: str) -> list[str]:
        """Return the bot's reactions to a message: "received", "answered" or "failed"."""
        ...


class Driver(Protocol):
    """One platform: its loopback server, and the settings that point there.

    Attributes:
        once: Whether an answer is shown once even where the outcome of its send was not known;
            else it may be shown twice, the second one marked "(re-sent)".
        reacts: Whether the bot marks messages by reactions.
        has_strangers: Whether there are people whom the gateway does not know.
        slash: What a command that is typed begins with.
        changed: Notified whenever something has happened at the platform.
        violations: What a correct bot never does.
    """

    name: str
    once: bool
    reacts: bool
    has_strangers: bool
    slash: str

    @property
    def changed(self) -> asyncio.Condition: ...

    @property
    def violations(self) -> list[str]: ...

    def block(self) -> dict[str, Any]:
        """Return the settings of the platform's account; empty for the web chat."""
        ...

    def rotate(self) -> None:
        """Replace the bot's tokens; the old ones are refused from now on."""
        ...

    async def connected(self, port: int) -> None:
        """Return once the bot is connected; `port` is that of the gateway's HTTP server."""
        ...

    def person_id(self, person: int) -> str:
        """Return a person as `access.owners` names them: "platform:id"."""
        ...

    def direct(self, person: int = 1) -> Room:
        """Return the direct chat of a person with the bot."""
        ...

    async def mention(self, text: str, person: int = 1) -> Room:
        """Mention the bot in a group or channel; return the room in which it is to answer."""
        ...

    def elsewhere(self) -> list[str]:
        """Return what the bot says in the group's main channel, where no thread is answered."""
        ...

    def flood(self, retry_after_s: int) -> None:
        """Refuse the next message of the bot for so long, where the platform can."""
        ...

    def lose_reply(self) -> None:
        """Show the next message of the bot and cut the connection, where the platform can."""
        ...

    async def disconnect(self) -> None:
        """Break the connection over which the bot receives; it may come back at once."""
        ...

    async def redeliver(self, ref: str) -> None:
        """Deliver a message that was written before once more."""
        ...
