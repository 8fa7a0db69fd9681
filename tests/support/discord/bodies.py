"""What Discord refuses in the body of a message, a thread or a command list."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.discord.faults import Refusal, bad_field

Json = dict[str, Any]

MAX_CONTENT_CHARS = 2000
MAX_NONCE_CHARS = 25
MAX_FILES = 10
MAX_FILE_BYTES = 10 * 1024 * 1024
"""Source: https://docs.discord.com/developers/resources/message#create-message"""
_NAME = re.compile(r"^[-_'\w]{1,32}$")
_ARCHIVE_MIN = {60, 1440, 4320, 10080}


@dataclass
class Body:
    """The JSON of a request and the files that came with it: (name, content type, bytes)."""

    data: Json
    files: list[tuple[str, str, bytes]] = field(default_factory=list)


async def read_body(request: web.Request) -> Body:
    """Return what a request carries, as JSON or as multipart form data.

    Raises:
        Refusal: It is not of the form that Discord takes.
    """
    if request.content_type.startswith("multipart/"):
        return await _read_form(request)
    if not request.can_read_body:
        return Body({})
    try:
        data = await request.json()
    except json.JSONDecodeError as exc:
        raise Refusal(400, 50109, "The request body contains invalid JSON.") from exc
    return Body(data if isinstance(data, dict) else {"items": data})


async def _read_form(request: web.Request) -> Body:
    form = await request.post()
    payload = form.get("payload_json", "{}")
    body = Body(json.loads(payload.file.read() if isinstance(payload, web.FileField) else payload))
    for name, part in form.items():
        if not isinstance(part, web.FileField):
            continue
        if not re.fullmatch(r"files\[\d+\]", name):
            raise bad_field(name, "UNKNOWN", "not the name of a file")
        body.files.append((part.filename, part.content_type, part.file.read()))
    if len(body.files) > MAX_FILES:
        raise Refusal(400, 30015, "Maximum number of attachments in a message reached (10)")
    if sum(len(content) for _, _, content in body.files) > MAX_FILE_BYTES:
        raise Refusal(413, 40005, "Request entity too large")
    return body


def check_message(body: Body, *, editing: bool = False) -> None:
    """Refuse content, buttons or a nonce that are not allowed.

    Raises:
        Refusal: As Discord words it.
    """
    content = body.data.get("content") or ""
    if len(content) > MAX_CONTENT_CHARS:
        text = f"Must be {MAX_CONTENT_CHARS} or fewer in length."
        raise bad_field("content", "BASE_TYPE_MAX_LENGTH", text)
    shows = body.files or any(
        body.data.get(name) for name in ("components", "embeds", "sticker_ids", "attachments")
    )
    empty = not content.strip() and not shows
    if empty and (not editing or "content" in body.data):
        raise Refusal(400, 50006, "Cannot send an empty message")
    nonce = body.data.get("nonce")
    if isinstance(nonce, str) and len(nonce) > MAX_NONCE_CHARS:
        raise bad_field("nonce", "NONCE_TYPE_TOO_LONG", "Nonce must be 25 or fewer in length.")
    _check_components(body.data.get("components") or [])


def _check_components(rows: list[Json]) -> None:
    if len(rows) > 5:
        raise bad_field("components", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 5 in length.")
    for row in rows:
        if row.get("type") != 1 or not 1 <= len(row.get("components", [])) <= 5:
            raise bad_field("components", "BASE_TYPE_BAD_LENGTH", "not a row of 1 to 5 components")
    buttons = [button for row in rows for button in row["components"]]
    for button in buttons:
        _check_button(button)
    ids = [button.get("custom_id") for button in buttons if button.get("style") != 5]
    if len(ids) != len(set(ids)):
        text = "Component custom id cannot be duplicated"
        raise bad_field("components", "COMPONENT_CUSTOM_ID_DUPLICATED", text)


def _check_button(button: Json) -> None:
    label, custom_id = button.get("label") or "", button.get("custom_id") or ""
    if button.get("type") != 2 or button.get("style") not in {1, 2, 3, 4, 5}:
        raise bad_field("components", "UNION_TYPE_CHOICES", "not a button")
    if len(label) > 80 or not (label or button.get("emoji")):
        raise bad_field("components", "BASE_TYPE_BAD_LENGTH", "Must be 80 or fewer in length.")
    if button["style"] != 5 and not 1 <= len(custom_id) <= 100:
        raise bad_field("components", "BASE_TYPE_BAD_LENGTH", "Must be 100 or fewer in length.")


def check_thread(data: Json) -> None:
    """Refuse a thread without a proper name or archive duration.

    Raises:
        Refusal: As Discord words it.
    """
    if not 1 <= len((data.get("name") or "").strip()) <= 100:
        raise bad_field("name", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 100 in length.")
    if data.get("auto_archive_duration", 1440) not in _ARCHIVE_MIN:
        text = "Value must be one of {60, 1440, 4320, 10080}."
        raise bad_field("auto_archive_duration", "BASE_TYPE_CHOICES", text)


def check_commands(commands: list[Json]) -> None:
    """Refuse what is no list of application commands.

    Raises:
        Refusal: As Discord words it.
    """
    if len(commands) > 100:
        raise Refusal(400, 30032, "Maximum number of application commands reached (100)")
    names = [command.get("name", "") for command in commands]
    if len(names) != len(set(names)):
        raise bad_field("name", "APPLICATION_COMMANDS_DUPLICATE_NAME", "Names must be unique")
    for command in commands:
        _check_command(command)


def _check_command(command: Json) -> None:
    name = command.get("name", "")
    if not _NAME.match(name) or name != name.lower():
        text = f"Command name {name!r} is invalid"
        raise bad_field("name", "APPLICATION_COMMAND_INVALID_NAME", text)
    options = command.get("options") or []
    for described in [command, *options]:
        if not 1 <= len(described.get("description", "")) <= 100:
            text = "Must be between 1 and 100 in length."
            raise bad_field("description", "BASE_TYPE_BAD_LENGTH", text)
    if len(options) > 25 or any(not _NAME.match(option.get("name", "")) for option in options):
        raise bad_field("options", "APPLICATION_COMMAND_INVALID_NAME", "invalid option")
