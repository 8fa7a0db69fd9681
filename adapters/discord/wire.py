"""The parts of a message object that are read, as Discord sends them (step 1); pure.

Only the fields used here are decoded, so that new kinds of content never spoil a readable text.
"""

import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Return a text without what the database does not take."""
    return _NOT_STORABLE.sub("\ufffd", text)


def as_id(value: Any) -> Any:
    """Return an id as text; some servers send numbers."""
    return str(value) if type(value) is int else value


Text = Annotated[str, AfterValidator(storable)]
Id = Annotated[str, BeforeValidator(as_id), Field(pattern=r"^\d{1,20}$")]


class Part(BaseModel):
    """Base of the decoded parts: strict types, fields that are not used are not looked at."""

    model_config = ConfigDict(strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, data: Any) -> Any:
        """A field that is null says as much as one that is missing."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class Member(Part):
    """What a person is called in one server."""

    nick: Text | None = None


class User(Part):
    """An account: a person's or a bot's."""

    id: Id
    username: Text = ""
    global_name: Text | None = None
    bot: bool = False
    system: bool = False
    member: Member | None = None

    @property
    def name(self) -> str:
        """What people see in front of what this account says."""
        nick = self.member.nick if self.member else None
        return nick or self.global_name or self.username or self.id


class File(Part):
    """An attachment; without a URL it is looked up in its message."""

    id: Id
    filename: Text = ""
    size: int | None = None
    content_type: str | None = None
    url: str = ""
    duration_secs: float | None = None
    waveform: str | None = None


class Said(Part):
    """What a message and a forwarded one have in common."""

    content: Text = ""
    mentions: list[User] = []
    attachments: list[File] = []
    sticker_items: list[Any] = []
    flags: int = 0


class Snapshot(Part):
    """A forwarded message."""

    message: Said


class Replied(Said):
    """A message that is answered."""

    author: User | None = None


class Reference(Part):
    """What another message is to this one."""

    type: int = 0


class Message(Said):
    """A message as the gateway and the history tell it."""

    id: Id
    channel_id: Id
    author: User
    type: int = 0
    member: Member | None = None
    mention_roles: list[Id] = []
    webhook_id: Id | None = None
    edited_timestamp: str | None = None
    message_reference: Reference | None = None
    referenced_message: Replied | None = None
    message_snapshots: list[Snapshot] = []
    poll: Any = None
    activity: Any = None
