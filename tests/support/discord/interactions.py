"""Slash commands and buttons of the Discord double: 3 s to answer, 15 min to edit the answer.

Source: https://docs.discord.com/developers/interactions/receiving-and-responding
"""

import time
from dataclasses import dataclass, field
from typing import Any

from tests.support.discord.bodies import Body, check_message
from tests.support.discord.faults import Refusal
from tests.support.discord.gateway import Gateway
from tests.support.discord.rest import Asked, Rest
from tests.support.discord.world import (
    EPHEMERAL,
    LOADING,
    SLASH,
    Bot,
    Channel,
    Json,
    Message,
    Person,
    World,
)

CHANNEL_MESSAGE, DEFERRED_MESSAGE, DEFERRED_UPDATE, UPDATE = 4, 5, 6, 7


@dataclass(eq=False)
class Interaction:
    """A slash command or a pressed button.

    Attributes:
        callback: The type of the first answer (4 message, 5 deferred message, 6 deferred update,
            7 update); None before it.
        answer: The message that the first answer made, shown or still "thinking".
        private: What only the person sees, as last edited, in order.
    """

    id: int
    token: str
    bot: Bot
    person: Person
    channel: Channel
    kind: int
    data: Json
    message: Message | None = None
    at: float = field(default_factory=time.monotonic)
    callback: int | None = None
    answer: Message | None = None
    private: list[Message] = field(default_factory=list)

    @property
    def thinking(self) -> bool:
        """Whether the person still sees "thinking…"."""
        return self.answer is not None and bool(self.answer.flags & LOADING)

    @property
    def shown(self) -> str:
        """The text of the first answer."""
        return "" if self.answer is None else self.answer.content


class Interactions:
    """All interactions by their token.

    Attributes:
        window_s: Time to answer at all.
        token_life_s: Time to edit and to follow up.
    """

    def __init__(self, world: World, gateway: Gateway, rest: Rest) -> None:
        self._world = world
        self._gateway = gateway
        self._rest = rest
        self.window_s = 3.0
        self.token_life_s = 900.0
        self.all: list[Interaction] = []

    def begin(self, interaction: Interaction) -> Interaction:
        """Tell the bot about an interaction."""
        self.all.append(interaction)
        self._gateway.emit("INTERACTION_CREATE", self._json(interaction), only=interaction.bot)
        return interaction

    def callback(self, asked: Asked) -> Json | None:
        interaction = self._find(asked.path["token"])
        if interaction is None or interaction.id != asked.number("interaction"):
            raise Refusal(404, 10062, "Unknown interaction")
        if interaction.callback is not None:
            raise Refusal(400, 40060, "Interaction has already been acknowledged.")
        if time.monotonic() - interaction.at > self.window_s:
            raise Refusal(404, 10062, "Unknown interaction")
        self._answer(interaction, asked.body)
        with_response = asked.query.get("with_response", "").lower() in {"1", "true"}
        return self._callback_json(interaction) if with_response else None

    def original(self, asked: Asked) -> Json:
        return self._world.message_json(self._original(asked))

    def edit_original(self, asked: Asked) -> Json:
        interaction, message = self._open(asked), self._original(asked)
        check_message(asked.body, editing=True)
        if interaction.thinking:
            self._fill(message, asked.body)
        else:
            self._rest.change(message, asked.body)
        return self._world.message_json(message)

    def delete_original(self, asked: Asked) -> None:
        message = self._original(asked)
        if message in message.channel.messages:
            self._rest.remove(message)

    def follow_up(self, asked: Asked) -> Json:
        interaction = self._open(asked)
        check_message(asked.body)
        if interaction.thinking and interaction.answer is not None:
            self._fill(interaction.answer, asked.body)
            return self._world.message_json(interaction.answer)
        message = self._new_message(interaction, asked.body, asked.body.data.get("flags", 0))
        self._show(interaction, message)
        return self._world.message_json(message)

    def edit_follow_up(self, asked: Asked) -> Json:
        interaction, wanted = self._open(asked), asked.number("message")
        for message in [*interaction.channel.messages, *interaction.private]:
            if message.id == wanted:
                self._rest.change(message, asked.body)
                return self._world.message_json(message)
        raise Refusal(404, 10008, "Unknown Message")

    def _find(self, token: str) -> Interaction | None:
        return next((known for known in self.all if known.token == token), None)

    def _open(self, asked: Asked) -> Interaction:
        """Return the interaction of a token that is still good."""
        interaction = self._find(asked.path["token"])
        if interaction is None or interaction.bot.id != asked.number("application"):
            raise Refusal(401, 50027, "Invalid Webhook Token")
        if time.monotonic() - interaction.at > self.token_life_s:
            raise Refusal(401, 50027, "Invalid Webhook Token")
        if interaction.callback is None:
            raise Refusal(404, 10015, "Unknown Webhook")
        return interaction

    def _original(self, asked: Asked) -> Message:
        interaction = self._open(asked)
        if interaction.callback in {DEFERRED_UPDATE, UPDATE} and interaction.message is not None:
            return interaction.message
        message = interaction.answer
        if message is None:
            raise Refusal(404, 10008, "Unknown Message")
        return message

    def _answer(self, interaction: Interaction, body: Body) -> None:
        kind, data = body.data.get("type"), body.data.get("data") or {}
        inner = Body(data, body.files)
        if kind == CHANNEL_MESSAGE:
            check_message(inner)
            message = self._new_message(interaction, inner, data.get("flags", 0))
            interaction.answer = message
            self._show(interaction, message)
        elif kind == DEFERRED_MESSAGE:
            empty = Body({})
            flags = data.get("flags", 0) | LOADING
            interaction.answer = self._new_message(interaction, empty, flags)
        elif kind == UPDATE and interaction.message is not None:
            self._rest.change(interaction.message, inner)
        elif kind != DEFERRED_UPDATE or interaction.message is None:
            raise Refusal(400, 50035, "Invalid Form Body")
        interaction.callback = kind

    def _fill(self, message: Message, body: Body) -> None:
        """Turn "thinking…" into a message."""
        interaction = next(known for known in self.all if known.answer is message)
        self._rest.check_mentions(body.data)
        message.content = (body.data.get("content") or "").strip()
        message.components = body.data.get("components") or []
        message.files = [self._rest.file(*part) for part in body.files]
        message.flags &= ~LOADING
        message.edits += 1
        self._show(interaction, message)

    def _show(self, interaction: Interaction, message: Message) -> None:
        if message.flags & EPHEMERAL:
            interaction.private.append(message)
        else:
            self._rest.post(message)

    def _new_message(self, interaction: Interaction, body: Body, flags: int) -> Message:
        data = body.data
        if data:
            self._rest.check_mentions(data)
        bot = interaction.bot
        content = (data.get("content") or "").strip()
        message = Message(self._world.new_id(), interaction.channel, bot, content, SLASH)
        message.components, message.flags = data.get("components") or [], flags
        message.webhook = bot.id
        message.files = [self._rest.file(*part) for part in body.files]
        message.interaction = {
            "id": str(interaction.id),
            "type": interaction.kind,
            "user": interaction.person.json(),
            "authorizing_integration_owners": {},
        }
        return message

    def _json(self, interaction: Interaction) -> Json:
        channel, person = interaction.channel, interaction.person
        data: Json = {
            "id": str(interaction.id),
            "application_id": str(interaction.bot.id),
            "type": interaction.kind,
            "token": interaction.token,
            "version": 1,
            "channel_id": str(channel.id),
            "channel": channel.json() | {"permissions": "2248473465835073"},
            "data": interaction.data,
            "locale": "en-US",
            "entitlements": [],
            "entitlement_sku_ids": [],
            "authorizing_integration_owners": {},
            "app_permissions": "2248473465835073",
            "attachment_size_limit": 10_485_760,
            "context": 1 if channel.guild is None else 0,
        }
        if interaction.message is not None:
            data["message"] = self._world.message_json(interaction.message)
        if channel.guild is None:
            return data | {"user": person.json()}
        guild = {"id": str(channel.guild), "locale": "en-US", "features": []}
        member = person.member() | {"user": person.json()}
        return data | {
            "guild_id": str(channel.guild),
            "guild": guild,
            "guild_locale": "en-US",
            "member": member,
        }

    def _callback_json(self, interaction: Interaction) -> Json:
        answered: Json = {"id": str(interaction.id), "type": interaction.kind}
        resource: Json = {"type": interaction.callback}
        message = interaction.answer or interaction.message
        if message is not None:
            answered["response_message_id"] = str(message.id)
            answered["response_message_loading"] = interaction.thinking
            answered["response_message_ephemeral"] = bool(message.flags & EPHEMERAL)
            resource["message"] = self._world.message_json(message)
        return {"interaction": answered, "resource": resource}


def command_data(command: Json, text: str) -> Json:
    """Return what a person's slash command brings; the text goes into its first option."""
    data: dict[str, Any] = {"id": command["id"], "name": command["name"], "type": 1}
    options = command.get("options") or []
    if any(option.get("required") for option in options) and not text:
        raise AssertionError(f"/{command['name']} cannot be sent without its option")
    if text:
        assert options, f"/{command['name']} takes no text"
        data["options"] = [{"name": options[0]["name"], "type": 3, "value": text}]
    return data
