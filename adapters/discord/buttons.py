"""Slash commands and buttons, and how Discord is told within 3 s that they were received.

An interaction is committed like any other message and acknowledged after that. A slash command's
answer takes the place of "thinking…" for 14 minutes; what `send` needs for it is the message's ref.
The menu is set as the application's global commands, and only when it has changed.
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
from adapters.messages import Admission, InboundMessage, Poison
from adapters.wire import Text, WirePart, raw_json

log = structlog.get_logger()

# Source: https://discord.com/developers/docs/interactions/application-commands: the longest
# description, the type of a slash command, the type of an option that is a text.
_DESCRIPTION_CHARS = 100
_CHAT_INPUT = 1
_STRING = 3
OPTION = "text"
"""Name of a command's one option."""
ANSWERABLE_S = 14 * 60.0
"""How long an answer may take the place of "thinking…". Source: tokens live 15 minutes."""
# Ids count milliseconds from the beginning of 2015, above 22 bits of something else.
# Source: https://discord.com/developers/docs/reference#snowflakes
_EPOCH_MS = 1_420_070_400_000
_PREFIX = "interaction:"
_EPHEMERAL = 1 << 6
# Source: https://discord.com/developers/docs/resources/message#create-message ("up to 2000")
_MAX_TEXT_CHARS = 2000
# Types of interactions, and of answers to them.
# Source: https://discord.com/developers/docs/interactions/receiving-and-responding
_COMMAND, _COMPONENT = 2, 3
_MESSAGE, _DEFERRED, _UPDATE = 4, 5, 7
_NOBODY: dict[str, list[str]] = {"parse": []}
_DENIED = "You cannot use this bot here."
_NOT_TAKEN = "I could not take this just now. Please try again."


def menu_of(commands: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the menu as Discord takes it: each command has one optional text option."""
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
    """Whether Discord's list says the same as the menu, in whatever order and wrapping."""
    return _words(menu) == _words(registered)


def _words(commands: Any) -> set[tuple[str, ...]]:
    parts = ((each, *(each.get("options") or ())) for each in commands)
    return {tuple(word for it in own for word in (it["name"], it["description"])) for own in parts}


async def sync_menu(api: Api, application: str, commands: Sequence[tuple[str, str]]) -> None:
    """Make Discord's menu the same as ours; a failure costs only the menu."""
    menu = menu_of(commands)
    path = "/applications/{application_id}/commands"
    try:
        with mapped_call():
            registered = await api.get(path, application_id=application)
            # Each change counts against a daily limit, and clients load the menu anew.
            if is_same(menu, registered):
                return
            await api.call("PUT", path, json=menu, application_id=application)
    except AdapterError as exc:
        log.warning("discord_commands_not_set", reason=str(exc))
    else:
        log.info("discord_commands_set", commands=len(menu))


@dataclass(frozen=True, slots=True)
class Callback:
    """What it takes to put an answer in the place of "thinking…"."""

    application: str
    token: str
    id: str

    @classmethod
    def parse(cls, ref: str | None) -> "Callback | None":
        """Return the callback that a `message_ref` holds, None if it is that of a message."""
        if ref is None or not ref.startswith(_PREFIX):
            return None
        application, token, number = ref.removeprefix(_PREFIX).split(":", 2)
        return cls(application, token, number)

    @property
    def ref(self) -> str:
        """The `message_ref` that holds it."""
        return f"{_PREFIX}{self.application}:{self.token}:{self.id}"

    @property
    def age_s(self) -> float:
        """How long ago the interaction was made."""
        return time.time() - snowflake_s(self.id)


@dataclass(frozen=True, slots=True)
class Interaction:
    """A command or a pressed button.

    Attributes:
        pressed: Of a button: the message's content; else None.
    """

    callback: Callback
    message: InboundMessage
    pressed: str | None = None
    label: str = ""


def snowflake_s(number: str) -> float:
    """Return when an id was made, in seconds since 1970."""
    return ((int(number) >> 22) + _EPOCH_MS) / 1000


def snowflake_at(seconds: float) -> int:
    """Return the least id that could have been made then."""
    # Below 0 there were no ids yet: everything in the channel is newer.
    return max(int(seconds * 1000) - _EPOCH_MS, 0) << 22


def to_interaction(
    data: Any, account: str, channel_kind: ChannelKind | None
) -> Interaction | Poison | None:
    """Return what an interaction says, Poison if it cannot be decoded, None if nothing.

    Args:
        channel_kind: Where it happened, if that is known; else the interaction tells.
    """
    try:
        decoded = _Interaction.model_validate(data)
        channel_kind = channel_kind if channel_kind is not None else kind_of(decoded.channel)
    except (ValidationError, LookupError, TypeError):
        return unread(data, account, "an interaction that cannot be read")
    text = _text(decoded)
    user = decoded.member.user if decoded.member else decoded.user
    if text is None or user is None:
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
    # What stands on the pressed button.
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
        """Commit an interaction; whatever the intake raises, the person is told and it goes on."""
        key = interaction.callback.id
        self.pending.begin(key)
        try:
            return (await self._intake.accept([interaction.message]))[0]
        except Exception:
            self.pending.end(key)
            await self._respond(interaction, _said(_NOT_TAKEN))
            raise

    async def acknowledge(self, interaction: Interaction, admission: Admission) -> None:
        """Tell Discord that an interaction was received; best effort."""
        try:
            # The first one was answered; a second answer is refused by Discord.
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
    id: Id
    application_id: Id
    type: Literal[1, 2, 3, 4, 5]
    # The `message_ref` of an interaction is split at colons.
    token: str = Field(pattern=r"^[^:]+$")
    channel_id: Id | None = None
    channel: dict[str, Any] = Field(default_factory=dict)
    member: _Member | None = None
    user: User | None = None
    data: _Data = _Data()
    message: _Pressed | None = None


def _text(decoded: _Interaction) -> str | None:
    if decoded.type == _COMPONENT:
        return decoded.data.custom_id or None
    if decoded.type != _COMMAND or decoded.data.type != _CHAT_INPUT:
        return None
    given = [str(option.value) for option in decoded.data.options if option.value is not None]
    return " ".join([f"/{decoded.data.name}", *given])


def noted(content: str, note: str) -> str:
    """Return a message with what became of it noted below, if there is room."""
    text = f"{content}\n-# {note}".strip()
    # A text that is too long is refused as a whole, and the buttons would stay.
    return text if len(text) <= _MAX_TEXT_CHARS else content


def _response(interaction: Interaction, admission: Admission) -> dict[str, Any]:
    if admission.outcome in {"denied", "ignored"}:
        return _said(admission.told or _DENIED)
    # "Thinking…" can take the answer within 15 minutes; without it Discord shows an error after 3
    # s.
    if interaction.pressed is None:
        return {"type": _DEFERRED}
    if admission.answer == "refused":
        return _said(admission.told)
    content = noted(interaction.pressed, admission.over or f"✓ {interaction.label}")
    changed = {"content": content, "components": [], "allowed_mentions": _NOBODY}
    return {"type": _UPDATE, "data": changed}


def _said(text: str) -> dict[str, Any]:
    """Return an answer that only the person sees."""
    # Others in the channel need not know who was refused.
    data = {"content": text, "flags": _EPHEMERAL, "allowed_mentions": _NOBODY}
    return {"type": _MESSAGE, "data": data}
