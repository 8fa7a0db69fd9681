"""Message JSON of events and histories → `InboundMessage`, `Poison` or None; looks up user names.

Slack's markup is `<…>`; literal `&`, `<` and `>` come as entities. Events contain only user ids;
their names are looked up, best effort. Source:
https://docs.slack.dev/messaging/formatting-message-text
"""

import asyncio
import difflib
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import Field, ValidationError

from adapters.base import Clock, Recent
from adapters.errors import AdapterError
from adapters.messages import (
    Address,
    Addressing,
    Attachment,
    ChatKind,
    InboundMessage,
    Poison,
    Text,
    WirePart,
    describe_flaw,
    file_kind,
    others,
    poison,
    quote,
    raw_json,
    storable,
)
from adapters.slack.client import USERS, Client
from adapters.slack.errors import Coded
from adapters.slack.platform import SlackSettings

log = structlog.get_logger()

# User messages. Every other subtype is a notice by Slack ("has joined the channel"). Source:
# https://docs.slack.dev/reference/events/message
_SPOKEN = frozenset({"", "file_share", "thread_broadcast", "me_message", "bot_message"})
# Modes of listed but deleted files. Source: https://docs.slack.dev/reference/objects/file-object
_GONE_FILES = frozenset({"tombstone", "hidden_by_limit"})
# The app's verification token, and the URL through which anyone can answer a command.
_SECRETS = frozenset({"token", "response_url"})
SLIP = 0.75
"""Least similarity (0 to 1) of a typo to its command: "stauts" 0.83, but "now" and "new" 0.67."""
_MARKUP = re.compile(r"<([^<>\s][^<>]*)>")
WAIT_S = 0.5
"""Seconds that a batch waits for names; Slack expects its acknowledgement within 3 s."""
_QUIET_S = 30.0
"""Pause of name lookups after a slow one, so that few updates wait."""
_AT_ONCE = 20
_REMEMBERED = 4096
_FORGET_FAILURES_S = 600.0

NameOf = Callable[[str], str | None]
"""Returns a user's name, or None."""


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot as returned by auth.test: the ids of user, bot and workspace, and its name."""

    user: str
    bot: str
    team: str
    name: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading app; its commands have no slash."""

    settings: SlackSettings
    identity: BotIdentity
    commands: frozenset[str]
    name_of: NameOf = lambda _: None

    def address(self, channel: str, thread: str | None = None) -> Address:
        """Return an address of the account."""
        return Address("slack", self.settings.name, channel, thread)


def read_message(
    event: Any, reading: Reading, envelope: Any = None
) -> InboundMessage | Poison | None:
    """Read a `message` or `app_mention` event; return None without new text by a user.

    The envelope, if any, is stored as the raw update instead of the event.
    """
    raw = raw_of(event if envelope is None else envelope)
    try:
        decoded = _Event.model_validate(event)
    except ValidationError as exc:
        return poison(f"slack:{reading.settings.name}", raw, describe_flaw(exc))
    if decoded.subtype == "message_changed":
        return _edited(decoded, raw, reading)
    return _inbound(decoded, decoded, raw, reading) if _is_persons(decoded, reading) else None


def raw_of(update: Any) -> str:
    """Return an update as JSON without secrets."""
    if isinstance(update, dict):
        update = {key: value for key, value in update.items() if key not in _SECRETS}
    return raw_json(update)


def is_direct(channel: str, channel_type: str = "") -> bool:
    """Whether a channel is a direct chat."""
    return channel_type in {"im", "app_home"} or (not channel_type and channel.startswith("D"))


def people_in(event: Any) -> list[str]:
    """Return the ids of an event's sender and mentioned users."""
    if not isinstance(event, dict):
        return []
    changed = event.get("message")
    said = changed if isinstance(changed, dict) else event
    user, text = said.get("user"), said.get("text")
    named = mentioned(text) if isinstance(text, str) else []
    return [user, *named] if isinstance(user, str) and "bot_id" not in said else named


def as_command(text: str, commands: frozenset[str]) -> str:
    """Read "!status" or a typo of it as "/status", since Slack threads have no slash commands."""
    found = re.match(r"!(\w+)(?=\s|$)", text)
    return f"/{text[1:]}" if found and is_meant(found[1], commands) else text


def is_meant(word: str, commands: frozenset[str]) -> bool:
    """Whether a word is a command or a typo of one."""
    return bool(difflib.get_close_matches(word.lower(), commands, n=1, cutoff=SLIP))


class _SharedFile(WirePart):
    id: Text = ""
    name: Text = ""
    title: Text = ""
    mimetype: Text = ""
    mode: Text = ""
    subtype: Text = ""
    size: int | None = None
    is_external: bool = False


class _Shared(WirePart):
    """A Slack "attachment": a shared message, a link preview, a bot's card."""

    text: Text = ""
    fallback: Text = ""
    author_id: Text = ""
    author_name: Text = ""
    from_url: Text = ""
    is_share: bool = False
    is_msg_unfurl: bool = False
    files: list[_SharedFile] = Field(default_factory=list)


class _Edit(WirePart):
    ts: Text = ""


class _Profile(WirePart):
    display_name: Text = ""
    real_name: Text = ""


class _Message(WirePart):
    ts: Text = ""
    user: Text = ""
    bot_id: Text = ""
    app_id: Text = ""
    username: Text = ""
    subtype: Text = ""
    text: Text = ""
    thread_ts: Text = ""
    files: list[_SharedFile] = Field(default_factory=list)
    attachments: list[_Shared] = Field(default_factory=list)
    edited: _Edit | None = None
    user_profile: _Profile | None = None


class _Event(_Message):
    type: Text = ""
    channel: str
    channel_type: Text = ""
    message: _Message | None = None
    previous_message: _Message | None = None


def _is_persons(message: _Message, reading: Reading) -> bool:
    """Whether a person or an allowed bot wrote the message."""
    own = reading.identity
    # Slack echoes the bot's own messages.
    if message.user == own.user or (message.bot_id and message.bot_id == own.bot):
        return False
    if message.subtype not in _SPOKEN or not message.ts:
        return False
    if message.bot_id or message.subtype == "bot_message":
        ids = {message.user, message.bot_id, message.app_id}
        return not ids.isdisjoint(reading.settings.allow_bots)
    return bool(message.user)


def _edited(event: _Event, raw: str, reading: Reading) -> InboundMessage | None:
    """Read an edit; a link preview changes neither the text nor the edit time."""
    changed, before = event.message, event.previous_message
    if changed is None or changed.edited is None or not _is_persons(changed, reading):
        return None
    if before is not None and before.text == changed.text:
        return None
    return _inbound(changed, event, raw, reading, edit=changed.edited.ts)


def _inbound(
    message: _Message, event: _Event, raw: str, reading: Reading, *, edit: str | None = None
) -> InboundMessage:
    address, kind, addressed = _place(message, event, reading)
    known = {message.user, message.bot_id, reading.identity.user, reading.identity.bot}
    files = _files(message)
    attachments = tuple(
        Attachment(
            name=file.name or file.title or file.id,
            kind="voice" if file.subtype == "slack_audio" else file_kind(file.mimetype),
            mime=file.mimetype,
            size_bytes=file.size,
            ref=file.id,
            authors=others(authors, known),
        )
        for authors, file in files
        if file.id and not file.is_external and file.mode not in _GONE_FILES
    )
    text = _text(message, reading)
    key = f"{event.channel}:{message.ts}"
    profile = message.user_profile or _Profile()
    told = profile.display_name or profile.real_name or message.username
    name = told or reading.name_of(message.user)
    unreadable = None if text or attachments else "an empty message"
    if len(attachments) < len(files):
        unreadable = "a file that Slack does not hand out"
    return InboundMessage(
        address=address,
        chat_kind=kind,
        sender=message.user or message.bot_id,
        sender_name=name or message.user or message.bot_id,
        text=text,
        dedupe_key=key if edit is None else f"{key}:e{edit}",
        raw=raw,
        message_ref=message.ts,
        kind="message" if edit is None else "edit",
        attachments=attachments,
        authors=others(_authors(message, text, attachments), known),
        unreadable=unreadable,
        addressed=addressed,
    )


def _place(
    message: _Message, event: _Event, reading: Reading
) -> tuple[Address, ChatKind, Addressing]:
    """Return the conversation's address; a mention opens a thread below itself."""
    thread = message.thread_ts if message.thread_ts not in {"", message.ts} else None
    here = reading.address(event.channel, thread)
    # Threads in a direct chat are separate conversations and need no mention.
    if is_direct(event.channel, event.channel_type):
        return here, "dm", "direct"
    if event.type == "app_mention" or mentions(message.text, reading.identity.user):
        opened = reading.address(event.channel, thread or message.ts)
        return opened, "thread", "direct"
    return (here, "thread", "thread") if thread else (here, "group", "overheard")


def _text(message: _Message, reading: Reading) -> str:
    """Return the text after its quotes; for a command without quotes."""
    own = reading.identity
    rest = without_address(message.text, own.user).replace(f"<@{own.user}>", f"@{own.name}")
    words = as_command(_readable(rest, reading.name_of).strip(), reading.commands)
    if words.startswith("/"):
        return words
    name_of = reading.name_of
    quotes = [
        quote(_readable(each.text or each.fallback, name_of), _readable(each.author_name))
        for each in message.attachments
        if _is_quoted(each)
    ]
    return "\n\n".join(filter(None, [*quotes, words]))


def _is_quoted(shared: _Shared) -> bool:
    """Whether to quote a shared message: it has text and is not a link preview."""
    is_preview = bool(shared.from_url) and not (shared.is_share or shared.is_msg_unfurl)
    return not is_preview and bool((shared.text or shared.fallback).strip())


def _authors(message: _Message, text: str, attachments: tuple[Attachment, ...]) -> list[str | None]:
    """Return the authors of a message's quotes and files; None for an unknown one."""
    quoted = [] if text.startswith("/") else filter(_is_quoted, message.attachments)
    of_words = [author for each in quoted for author in _author(each, message)]
    return [*of_words, *(author for file in attachments for author in file.authors)]


def _author(shared: _Shared, message: _Message) -> list[str | None]:
    """Return the author of shared content (None if unknown); empty for a bot's own card."""
    is_own = bool(message.bot_id) and not (shared.is_share or shared.is_msg_unfurl)
    return [] if is_own else [shared.author_id or None]


def _files(message: _Message) -> list[tuple[list[str | None], _SharedFile]]:
    """Return the files of a message and its shared messages, with authors."""
    own: list[tuple[list[str | None], _SharedFile]] = [([], file) for file in message.files]
    shared = [(_author(each, message), file) for each in message.attachments for file in each.files]
    return [*own, *shared]


def _readable(text: str, name_of: NameOf = lambda _: None) -> str:
    """Replace mentions, channels, links and entities by their displayed text."""
    return unescaped(_MARKUP.sub(lambda match: _shown(match[1], name_of), text))


def mentioned(text: str) -> list[str]:
    """Return the ids of all mentioned users."""
    return re.findall(r"<@(\w+)", text)


def mentions(text: str, user: str) -> bool:
    """Whether a text mentions a user."""
    return re.search(rf"<@{re.escape(user)}(\|[^<>]*)?>", text) is not None


def without_address(text: str, user: str) -> str:
    """Remove leading mentions of a user, unless nothing else is left."""
    rest = re.sub(rf"^(\s*<@{re.escape(user)}(\|[^<>]*)?>[\s,:]*)+", "", text)
    return rest or text


def unescaped(text: str) -> str:
    """Decode Slack's three entities."""
    # The ampersand last: "&amp;lt;" is a literal "&lt;", not a bracket.
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def escaped(text: str) -> str:
    """Escape a text for Slack."""
    # The ampersand first, so that entities are not escaped twice.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _shown(markup: str, name_of: NameOf) -> str:
    target, _, label = markup.partition("|")
    if target.startswith("@"):
        return "@" + (name_of(target[1:]) or label.removeprefix("@") or target[1:])
    if target.startswith("#"):
        return "#" + (label.removeprefix("#") or target[1:])
    if target.startswith("!"):
        # `<!here>`, `<!subteam^S1|@team>`, `<!date^…|fallback>`.
        return label or f"@{target[1:].partition('^')[0]}"
    if not label or label == target or target == f"mailto:{label}":
        return label or target
    return f"{label} ({target})"


class Names:
    """The user names of one workspace."""

    def __init__(self, client: Client, clock: Clock = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._names: Recent[str, str] = Recent(_REMEMBERED)
        self._quiet_until = float("-inf")
        self._failed: Recent[str, float] = Recent(_REMEMBERED)

    def get(self, user: str) -> str | None:
        """Return a user's known name, or None."""
        return self._names.get(user)

    async def learn(self, users: Iterable[str]) -> None:
        """Look up unknown names, as far as budget and `WAIT_S` allow."""
        unknown = [user for user in dict.fromkeys(users) if self._is_unknown(user)][:_AT_ONCE]
        if not unknown or self._clock() < self._quiet_until:
            return
        try:
            async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
                for user in unknown:
                    tasks.create_task(self._ask(user), name="slack name")
        except TimeoutError:
            self._quiet_until = self._clock() + _QUIET_S
            log.debug("slack_names_late", users=len(unknown))

    def _is_unknown(self, user: str) -> bool:
        failed_at = self._failed.get(user, float("-inf"))
        is_waiting = self._clock() - failed_at < _FORGET_FAILURES_S
        return bool(user) and user not in self._names and not is_waiting

    async def _ask(self, user: str) -> None:
        chance = self._client.chance(USERS, user)
        if chance is None:
            return
        try:
            with chance:
                answer = await self._client.web.users_info(user=user)
        except AdapterError as exc:
            log.debug("slack_name_unknown", reason=str(exc))
            # Remember only refusals: after an outage the next message asks again.
            if isinstance(exc, Coded):
                self._failed[user] = self._clock()
        else:
            found = answer.get("user")
            known = found if isinstance(found, dict) else {}
            profile = known.get("profile")
            shown = profile if isinstance(profile, dict) else {}
            words = [shown.get("display_name"), shown.get("real_name"), known.get("name"), user]
            name = next(word for word in words if word and isinstance(word, str))
            self._names[user] = storable(name)
