"""Whom a message is for, and its text without the bot's name in it (step 1); pure."""

from dataclasses import dataclass

from adapters.messages import Addressing
from adapters.telegram.wire import Entity, Message, Replied, after, before, marked

MAX_QUOTE_CHARS = 500


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """Who the bot is, from getMe; `username` without the @."""

    id: int
    username: str


def addressed(message: Message, bot: BotIdentity) -> Addressing:
    """Return "direct" for what is said to the bot, in a group "overheard" for everything else.

    To the bot are: a command that names no other bot, a mention, a reply to one of its messages.
    A forum topic is a channel, not a thread of the bot.
    """
    if message.chat.type == "private":
        return "direct"
    target = _command_target(message)
    if target is not None:
        return "direct" if target in {"", bot.username.casefold()} else "overheard"
    mentioned = any(_mentions(message.words, mark, bot) for mark in message.marks)
    to_bot = mentioned or _replies_to(bot, message.reply_to_message)
    return "direct" if to_bot else "overheard"


def spoken(message: Message, bot: BotIdentity) -> str:
    """Return the text as it is meant: without the bot's name, behind what it replies to."""
    return _with_quote(_without_name(message, bot), message)


def _command_target(message: Message) -> str | None:
    """Return who a leading command names: "" for nobody, None if the text is no command."""
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            return marked(message.words, mark).partition("@")[2].casefold()
    return None


def _mentions(text: str, mark: Entity, bot: BotIdentity) -> bool:
    if mark.type == "text_mention":
        return mark.user is not None and mark.user.id == bot.id
    named = marked(text, mark).casefold() == f"@{bot.username}".casefold()
    return mark.type == "mention" and named


def _replies_to(bot: BotIdentity, replied: Replied | None) -> bool:
    """Whether the reply is one to the bot.

    In a forum every message replies to the one that created its topic, maybe the bot's own.
    """
    if replied is None or replied.sender is None or replied.forum_topic_created is not None:
        return False
    return replied.sender.id == bot.id


def _without_name(message: Message, bot: BotIdentity) -> str:
    """Return the text without a leading @bot, and a leading /command@bot without its @bot."""
    text = message.words
    for mark in message.marks:
        if mark.type == "bot_command" and mark.offset == 0:
            command, _, target = marked(text, mark).partition("@")
            mine = target.casefold() in {"", bot.username.casefold()}
            return command + after(text, mark) if mine else text
        if _mentions(text, mark, bot) and not before(text, mark).strip():
            return after(text, mark).lstrip(" \t\n,:") or text
    return text


def _with_quote(text: str, message: Message) -> str:
    """Put what was replied to in front, except in front of a command or of no text at all."""
    replied = message.reply_to_message
    said = message.quote.text if message.quote else ""
    said = (said or (replied.text or replied.caption if replied else "")).strip()
    if not said or not text or text.startswith("/"):
        return text
    if len(said) > MAX_QUOTE_CHARS:
        said = f"{said[: MAX_QUOTE_CHARS - 1]}…"
    quoted = "\n".join(f"> {line}" for line in said.splitlines())
    return f"{quoted}\n\n{text}"
