"""The command menu as Discord takes it: pure."""

from typing import Any

from adapters.discord.buttons import is_same, menu_of

COMMANDS = [("new", "Start anew"), ("/Stop", "x" * 120)]


def registered(menu: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the menu as Discord lists it: with ids, defaults and in its own order."""
    extra = {"id": "1", "application_id": "2", "version": "3", "nsfw": False, "dm_permission": True}
    options = [[option | {"required": False} for option in each["options"]] for each in menu]
    return [each | extra | {"options": o} for each, o in zip(menu, options, strict=True)][::-1]


def test_each_command_takes_text() -> None:
    """Names without a slash and in lower case, and descriptions that Discord takes."""
    new, stop = menu_of(COMMANDS)
    assert (new["type"], new["name"], new["description"]) == (1, "new", "Start anew")
    assert [(option["type"], option["name"]) for option in new["options"]] == [(3, "text")]
    assert (stop["name"], len(stop["description"])) == ("stop", 100)


def test_the_same_menu_in_discords_words() -> None:
    """Order, ids and defaults make no difference."""
    menu = menu_of(COMMANDS)
    assert is_same(menu, registered(menu))


def test_another_menu() -> None:
    """A command more, another description or another option is a difference."""
    menu = menu_of(COMMANDS)
    assert not is_same(menu, registered(menu_of([*COMMANDS, ("status", "How it goes")])))
    assert not is_same(menu, registered(menu_of([("new", "Other"), COMMANDS[1]])))
    changed = registered(menu)
    changed[0]["options"] = []
    assert not is_same(menu, changed)
