"""Reads slash commands, buttons and the stop button as messages, and builds button blocks; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adapters.messages import (
    CHOICE_LABEL_CHARS,
    Admission,
    ChatKind,
    Choice,
    InboundMessage,
    storable,
)
from adapters.slack.inbound import Reading, escaped, is_direct, is_meant, raw_of

_ACTION = "parley_choice_"
_COMMAND_REF = "command:"
# Source: https://docs.slack.dev/reference/block-kit/composition-objects/text-object
_SECTION_CHARS = 3000


@dataclass(frozen=True, slots=True)
class Press:
    """A button press as a message; `ts`, `blocks` and `text` belong to the message with the button.

    The admission is set after the commit.
    """

    message: InboundMessage
    channel: str
    ts: str
    label: str
    blocks: list[Any]
    text: str
    admission: Admission | None = None


def read_command(form: dict[str, Any], reading: Reading) -> InboundMessage | None:
    """Read a slash command: "/parley status" becomes "/status", a bare "/parley" becomes "/help".

    Other text after "/parley" is a question.
    """
    channel, sender = _word(form, "channel_id"), _word(form, "user_id")
    if not channel or not sender:
        return None
    command, said = _word(form, "command"), _word(form, "text").strip()
    # The app's other commands keep their name.
    is_own = command == reading.settings.command
    if not is_own and command.removeprefix("/") in reading.commands:
        said = f"{command} {said}".strip()
    said = storable(said)
    name = said.removeprefix("/").partition(" ")[0] or "help"
    is_slip = name == said.removeprefix("/") and is_meant(name, reading.commands)
    is_menu = said in {"", "/"} or name in reading.commands or is_slip
    return InboundMessage(
        address=reading.address(channel),
        chat_kind="dm" if is_direct(channel) else "group",
        sender=sender,
        sender_name=storable(_word(form, "user_name")) or sender,
        text=f"/{said.removeprefix('/') or name}" if is_menu else said,
        dedupe_key=f"command:{_word(form, 'trigger_id')}",
        raw=raw_of(form),
        message_ref=_COMMAND_REF + _word(form, "response_url"),
    )


def response_url(message_ref: str | None) -> str | None:
    """Return the URL for answering a slash command within 30 minutes, or None."""
    if message_ref is None or not message_ref.startswith(_COMMAND_REF):
        return None
    return message_ref.removeprefix(_COMMAND_REF) or None


def read_press(payload: Any, reading: Reading) -> Press | None:
    """Return a press of one of Parley's buttons; None for other interactions."""
    if not isinstance(payload, dict) or payload.get("type") != "block_actions":
        return None
    action = next((each for each in _dicts(payload.get("actions")) if _is_ours(each)), None)
    message, user = _dict(payload, "message"), _dict(payload, "user")
    channel = _word(_dict(payload, "channel"), "id")
    ts = _word(message, "ts") or _word(_dict(payload, "container"), "message_ts")
    sender = _word(user, "id")
    if action is None or not (channel and ts and sender):
        return None
    thread = _word(message, "thread_ts") if message.get("thread_ts") != ts else ""
    said = InboundMessage(
        address=reading.address(channel, thread or None),
        chat_kind=_chat_kind(channel, threaded=bool(thread)),
        sender=sender,
        sender_name=_word(user, "name") or _word(user, "username") or sender,
        text=_word(action, "value"),
        dedupe_key=f"action:{channel}:{ts}:{_word(action, 'action_ts')}:{sender}",
        raw=raw_of(payload),
        pressed=True,
    )
    label = _word(_dict(action, "text"), "text")
    blocks = _dicts(message.get("blocks"))
    return Press(said, channel, ts, label, blocks, _word(message, "text"))


def read_stop(event: dict[str, Any], reading: Reading) -> InboundMessage | None:
    """Read a click on Slack's stop button as the command "/stop".

    Source: https://docs.slack.dev/reference/events/agent_session_stopped
    """
    channel, sender = _word(event, "channel"), _word(event, "user")
    thread, at = _word(event, "thread_ts"), _word(event, "event_ts")
    if not (channel and sender and at):
        return None
    return InboundMessage(
        address=reading.address(channel, thread or None),
        chat_kind=_chat_kind(channel, threaded=bool(thread)),
        sender=sender,
        sender_name=sender,
        text="/stop",
        dedupe_key=f"stop:{channel}:{at}",
        raw=raw_of(event),
    )


def choice_blocks(payload: str, choices: Sequence[Choice]) -> list[dict[str, Any]]:
    """Return the blocks of a message with a row of buttons."""
    buttons = [
        {
            "type": "button",
            "action_id": f"{_ACTION}{number}",
            # Slack refuses the whole message if a label is too long.
            "text": {"type": "plain_text", "text": choice.label[:CHOICE_LABEL_CHARS]},
            "value": choice.text,
        }
        for number, choice in enumerate(choices)
    ]
    return [_markdown(payload), {"type": "actions", "elements": buttons}]


def over_blocks(payload: str, note: str) -> list[dict[str, Any]]:
    """Return the blocks of a message with its outcome instead of buttons."""
    return [_markdown(payload), _note(note)]


def pressed_blocks(press: Press) -> list[dict[str, Any]]:
    """Return the message's blocks with the choice and its user instead of buttons."""
    kept = [
        block
        for block in press.blocks
        if block.get("type") != "actions" or not any(map(_is_ours, _dicts(block.get("elements"))))
    ]
    over = press.admission.over if press.admission else ""
    note = over or f"*{escaped(press.label)}*: <@{press.message.sender}>"[:_SECTION_CHARS]
    return [*kept, _note(note)]


def _markdown(text: str) -> dict[str, Any]:
    return {"type": "markdown", "text": text}


def _note(text: str) -> dict[str, Any]:
    return {"type": "context", "elements": [{"type": "mrkdwn", "text": text}]}


def _is_ours(action: dict[str, Any]) -> bool:
    return _word(action, "action_id").startswith(_ACTION)


def _chat_kind(channel: str, *, threaded: bool) -> ChatKind:
    if is_direct(channel):
        return "dm"
    return "thread" if threaded else "group"


def _word(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _dict(data: dict[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
