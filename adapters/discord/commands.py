"""The command menu as Discord's global application commands; set only when it has changed."""

from collections.abc import Sequence
from typing import Any

import structlog

from adapters.discord.api import Api
from adapters.discord.errors import mapped_call
from adapters.discord.interactions import OPTION
from adapters.errors import AdapterError

log = structlog.get_logger()

_DESCRIPTION_CHARS = 100
_CHAT_INPUT = 1
_STRING = 3


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
    return _fingerprint(menu) == _fingerprint(registered)


async def sync(api: Api, application: str, commands: Sequence[tuple[str, str]]) -> None:
    """Make Discord's menu the same as ours; a failure costs only the menu."""
    menu = menu_of(commands)
    path = "/applications/{application_id}/commands"
    try:
        with mapped_call():
            registered = await api.get(path, application_id=application)
            if is_same(menu, registered):
                return
            await api.call("PUT", path, json=menu, application_id=application)
    except AdapterError as exc:
        log.warning("discord_commands_not_set", reason=str(exc))
    else:
        log.info("discord_commands_set", commands=len(menu))


def _fingerprint(commands: Any) -> set[tuple[Any, ...]]:
    return {
        (
            each.get("type", _CHAT_INPUT),
            each["name"],
            each["description"],
            tuple(_option(option) for option in each.get("options") or ()),
        )
        for each in commands
    }


def _option(option: dict[str, Any]) -> tuple[Any, ...]:
    required = bool(option.get("required", False))
    return option["type"], option["name"], option["description"], required
