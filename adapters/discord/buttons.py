"""Slash commands and buttons, and their acknowledgement within 3 s.

An interaction is committed like any other message, then acknowledged. For 14 minutes a slash
command's answer replaces "thinking…"; the message's ref contains the data that `send` needs.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import structlog
from pydantic import Field, ValidationError

from adapters.base import Intake
from adapters.discord.client import Api, PendingKeys
from adapters.discord.errors import ALREADY_ANSWERED, CodedRefusal, mapped_call
from adapters.discord.inbound import (
    ChannelKind,
    GuildMember,
    Id,
    User,
    address_in,
    chat_kind,
    kind_of,
    unread,
)
from adapters.errors import AdapterError
from adapters.messages import Admission, InboundMessage, Poison, Text, WirePart, raw_json

log = structlog.get_logger()

# Source: https://discord.com/developers/docs/interactions/application-commands: the longest
# description, the type of a slash command, the type of a string option.
_DESCRIPTION_CHARS = 100
_CHAT_INPUT = 1
_STRING = 3
OPTION = "text"
"""Name of a command's one option."""
ANSWERABLE_S = 14 * 60.0
"""Seconds during which an answer may replace "thinking…"; tokens expire after 15 minutes."""
# Ids contain milliseconds since the start of 2015 above the lowest 22 bits. Source:
# https://discord.com/developers/docs/reference#snowflakes
_EPOCH_MS = 1_420_070_400_000
_PREFIX = "interaction:"
_EPHEMERAL = 1 << 6
# Source: https://discord.com/developers/docs/resources/message#create-message ("up to 2000")
_MAX_TEXT_CHARS = 2000
# Source: https://discord.com/developers/docs/interactions/receiving-and-responding
_COMMAND, _COMPONENT = 2, 3
_MESSAGE, _DEFERRED, _UPDATE = 4, 5, 7
_NOBODY: dict[str, list[str]] = {"parse": []}
_DENIED = "You cannot use this bot here."
_NOT_TAKEN = "I could not take this just now. Please try again."


def menu_of(commands: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the menu in Discord's format; each command has one optional text option."""
    option = {"type": _STRING, "name": OPTION, "description": "What to say with it"}
    return [
        {
            "type": _CHAT_INPUT,
            "name": name.removeprefix("/").lower(),
            "description": description[:_DESCRIPTION_CHARS],
            "options": [option],
        }
        for name, description in commands
    ]


def is_same(menu: Sequence[dict[str, Any]], registered: Any) -> bool:
    """Whether Discord's list and the menu have the same names and descriptions."""

    def words(commands: Any) -> set[tuple[str, ...]]:
        parts = ((each, *(each.get("options") or ())) for each in commands)
        return {
            tuple(word for it in own for word in (it["name"], it["description"])) for own in parts
        }

    return words(menu) == words(registered)


async def sync_menu(api: Api, application: str, commands: Sequence[tuple[str, str]]) -> None:
    """Set the application's global commands if they differ; a failure only affects the menu."""
    menu = menu_of(commands)
    path = "/applications/{application_id}/commands"
    try:
        with mapped_call():
            registered = await api.get(path, application_id=application)
            # Each change counts against a daily limit and makes clients reload the menu.
            if is_same(menu, registered):
                return
            await api.call("PUT", path, menu, application_id=application)
    except AdapterError as exc:
        log.warning("discord_commands_not_set", reason=str(exc))
    else:
        log.info("discord_commands_set", commands=len(menu))


@dataclass(frozen=True, slots=True)
class Callback:
    """The data that an answer needs to replace "thinking…"."""

    application: str
    token: str
    id: str

    @classmethod
    def parse(cls, ref: str | None) -> "Callback | None":
        """Parse a callback from a `message_ref`; None if it names a message."""
        if ref is None or not ref.startswith(_PREFIX):
            return None
        application, token, number = ref.removeprefix(_PREFIX).split(":", 2)
        return cls(application, token, number)

    @property
    def ref(self) -> str:
        """The `message_ref` that contains it."""
        return f"{_PREFIX}{self.application}:{self.token}:{self.id}"

    @property
    def age_s(self) -> float:
        """Seconds since the interaction."""
        return time.time() - snowflake_s(self.id)


@dataclass(frozen=True, slots=True)
class Interaction:
    """A command, or a button press with its message's content in `pressed`."""

    callback: Callback
    message: InboundMessage
    pressed: str | None = None
    label: str = ""


def snowflake_s(number: str) -> float:
    """Return an id's creation time, in seconds since 1970."""
    return ((int(number) >> 22) + _EPOCH_MS) / 1000


def snowflake_at(seconds: float) -> int:
    """Return the smallest possible id of a time in seconds since 1970."""
    # Negative values predate all ids, so everything in the channel is newer.
    return max(int(seconds * 1000) - _EPOCH_MS, 0) << 22


def to_interaction(
    data: Any, account: str, channel_kind: ChannelKind | None
) -> Interaction | Poison | None:
    """Read an interaction; return Poison if undecodable, None for unused kinds.

    `channel_kind` is None if the interaction contains its channel.
    """
    try:
        decoded = _Interaction.model_validate(data)
        channel_kind = channel_kind if channel_kind is not None else kind_of(decoded.channel)
    except (ValidationError, LookupError, TypeError):
        return unread(data, account, "an interaction that cannot be read")
    user = decoded.member.user if decoded.member else decoded.user
    if not (text := decoded.text) or user is None:
        return None
    callback = Callback(decoded.application_id, decoded.token, decoded.id)
    address = address_in(decoded.channel_id or str(decoded.channel["id"]), account, channel_kind)
    message = InboundMessage(
        address=address,
        chat_kind=chat_kind(address, channel_kind),
        sender=user.id,
        sender_name=(decoded.member and decoded.member.nick) or user.name,
        text=text,
        dedupe_key=decoded.id,
        raw=raw_json(data),
        message_ref=callback.ref if decoded.type == _COMMAND else None,
        pressed=decoded.message is not None,
    )
    if decoded.message is None:
        return Interaction(callback, message)
    chosen = decoded.data.custom_id
    buttons = (button for row in decoded.message.components for button in row.components)
    labels = (it.label for it in buttons if it.custom_id == chosen and it.label)
    return Interaction(callback, message, decoded.message.content, next(labels, chosen))


class Buttons:
    """Acknowledges interactions of one account."""

    def __init__(self, api: Api, intake: Intake) -> None:
        self.pending = PendingKeys()
        self._api = api
        self._intake = intake

    async def take(self, interaction: Interaction) -> Admission:
        """Commit an interaction; if the intake raises, ask the user to retry and re-raise."""
        key = interaction.callback.id
        self.pending.begin(key)
        try:
            return (await self._intake.accept([interaction.message]))[0]
        except Exception:
            self.pending.end(key)
            await self._respond(interaction, _said(_NOT_TAKEN))
            raise

    async def acknowledge(self, interaction: Interaction, admission: Admission) -> None:
        """Acknowledge an interaction after its commit; best effort."""
        try:
            # The first copy of a duplicate was acknowledged; Discord refuses a second answer.
            if admission.outcome != "duplicate":
                await self._respond(interaction, _response(interaction, admission))
        finally:
            self.pending.end(interaction.callback.id)

    async def _respond(self, interaction: Interaction, response: dict[str, Any]) -> None:
        callback = interaction.callback
        path = "/interactions/{webhook_id}/{webhook_token}/callback"
        try:
            with mapped_call():
                await self._api.callback(
                    "POST", path, response, webhook_id=callback.id, webhook_token=callback.token
                )
        except AdapterError as exc:
            if not (isinstance(exc, CodedRefusal) and exc.code == ALREADY_ANSWERED):
                log.warning("discord_interaction_not_answered", reason=str(exc))


class _Member(GuildMember):
    user: User


class _Option(WirePart):
    name: str
    value: Text | int | float | bool | None = None


class _Button(WirePart):
    custom_id: str | None = None
    label: Text | None = None
    components: list["_Button"] = Field(default_factory=list)


class _Pressed(WirePart):
    id: Id
    content: Text = ""
    components: list[_Button] = Field(default_factory=list)


class _Data(WirePart):
    name: str = ""
    type: int = 1
    options: list[_Option] = Field(default_factory=list)
    custom_id: str = ""


class _Interaction(WirePart):
    # Unused types (pings, menus, forms) are decoded as well, so they are not Poison.
    id: Id
    application_id: Id
    type: Literal[1, 2, 3, 4, 5]
    # The `message_ref` of an interaction uses colons as separators.
    token: str = Field(pattern=r"^[^:]+$")
    channel_id: Id | None = None
    channel: dict[str, Any] = Field(default_factory=dict)
    member: _Member | None = None
    user: User | None = None
    data: _Data = _Data()
    message: _Pressed | None = None

    @property
    def text(self) -> str:
        """The text of the command or button; "" for other interactions."""
        if self.type == _COMPONENT:
            return self.data.custom_id
        if self.type != _COMMAND or self.data.type != _CHAT_INPUT:
            return ""
        given = [str(option.value) for option in self.data.options if option.value is not None]
        return " ".join([f"/{self.data.name}", *given])


def noted(content: str, note: str) -> str:
    """Append a note to a message if it fits."""
    text = f"{content}\n-# {note}".strip()
    # Discord refuses a text that is too long, and the buttons would stay.
    return text if len(text) <= _MAX_TEXT_CHARS else content


def _response(interaction: Interaction, admission: Admission) -> dict[str, Any]:
    if admission.outcome in {"denied", "ignored"}:
        return _said(admission.told or _DENIED)
    # "Thinking…": without a response Discord shows an error after 3 s.
    if interaction.pressed is None:
        return {"type": _DEFERRED}
    if admission.answer == "refused":
        return _said(admission.told)
    content = noted(interaction.pressed, admission.over or f"✓ {interaction.label}")
    changed = {"content": content, "components": [], "allowed_mentions": _NOBODY}
    return {"type": _UPDATE, "data": changed}


def _said(text: str) -> dict[str, Any]:
    """Return a response that only the user sees, such as a refusal."""
    data = {"content": text, "flags": _EPHEMERAL, "allowed_mentions": _NOBODY}
    return {"type": _MESSAGE, "data": data}
