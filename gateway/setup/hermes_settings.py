"""Hermes' config.yaml and .env as settings of Parley, for the operator to read and put in place.

A key whose values mean the same here is taken over; the report names all others. The result lies
beside parley.yaml and no gateway reads it there, so nobody is let in before somebody has seen it.
No secret is copied: the settings refer to variables of the environment by Hermes' names.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agent.safety.redaction import Redactor
from gateway.settings.foreign import counterpart, leaves
from gateway.settings.loading import KEY_VARIABLES
from gateway.settings.references import is_reference
from gateway.settings.tree import Settings
from gateway.setup.hermes_home import HermesHome, Line

SAME = (
    *("model.provider", "model.base_url", "model.context_length", "prompt_caching.cache_ttl"),
    *("compression.enabled", "compression.threshold"),
    *("compression.target_ratio", "compression.protect_last_n"),
    *(f"auxiliary.compression.{key}" for key in ("model", "provider", "base_url")),
)
"""Keys that both have; those of other names here are in gateway/settings/foreign.py. None of them
lets people in, lets tools do more, or runs anything."""
SECRETS = {
    "TELEGRAM_BOT_TOKEN": "platforms.telegram.token",
    "DISCORD_BOT_TOKEN": "platforms.discord.token",
    "SLACK_BOT_TOKEN": "platforms.slack.bot_token",
    "SLACK_APP_TOKEN": "platforms.slack.app_token",
    "SLACK_SIGNING_SECRET": "platforms.slack.signing_secret",
}
PEOPLE = {
    f"{platform.upper()}_ALLOWED_USERS": f"access.{platform}"
    for platform in ("telegram", "discord", "slack")
}
_OPENING = """\
# Made by `parley import hermes`. Read it, then make it parley.yaml, or copy what you want; until
# then no gateway uses it. docs/import.md says what became of what.
"""


class SettingsFound:
    """What a home's settings are here.

    Attributes:
        tree: For parley.yaml.
        lines: The report.
    """

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {}
        self.lines: list[Line] = []

    def put(self, key: str, value: Any, *, of: str) -> None:
        """Set a key of Parley's to what one of Hermes' says, if that is allowed and no secret."""
        told = str(value)
        if Redactor().text(told) != told or (isinstance(value, str) and is_reference(value)):
            self.leave(of, "it holds a secret; write it as a reference yourself")
            return
        tree = deepcopy(self.tree)
        _set(tree, key.split("."), value)
        # The one block of each platform is a list with one element.
        platforms = {name: [block] for name, block in tree.get("platforms", {}).items()}
        try:
            Settings.model_validate({**tree, "platforms": platforms, "home": Path("/")})
        except ValidationError as exc:
            wrong = exc.errors(include_url=False, include_input=False)[0]
            self.leave(of, f"not allowed here: {wrong['msg']}")
            return
        self.tree = tree
        text = ", ".join(value) if isinstance(value, list) else value
        text = Redactor().text(text) if isinstance(text, str) else ""
        if not key.startswith("agent."):
            # People and addresses in ASCII: other letters may look like Latin ones.
            text = text.encode("unicode_escape").decode()
        self.lines.append(Line("settings", of, "taken", key, text))

    def leave(self, what: str, note: str, part: str = "settings") -> None:
        """Note that a setting is not taken over."""
        self.lines.append(Line(part, what, "left out", note))

    def as_yaml(self) -> str:
        """Return the settings as a file."""
        body = yaml.safe_dump(self.tree, sort_keys=False, allow_unicode=True) if self.tree else ""
        return _OPENING + body


def found_in(home: HermesHome) -> SettingsFound:
    """Translate the settings and variables of a Hermes home."""
    found = SettingsFound()
    lacking: dict[tuple[str, str], list[str]] = {}
    for name, value in leaves(home.settings()):
        if value in ("", None, [], {}) or name == "_config_version":
            continue
        key, note = counterpart(name) or (None, "")
        if name in SAME or (key and not note):
            found.put(key or name, value, of=name)
        else:
            why = f"see `{key}`: {note}" if key else note or "Parley has no such setting"
            lacking.setdefault((name.partition(".")[0], why), []).append(name)
    for (_, why), names in lacking.items():
        found.leave(", ".join(names), why)
    _put_variables(found, home.variables())
    return found


def _put_variables(found: SettingsFound, variables: Mapping[str, str]) -> None:
    for name, value in sorted(variables.items()):
        if key := SECRETS.get(name):
            _set(found.tree, key.split("."), f"env:{name}")
            found.leave(name, f"set it in the environment: {key} refers to it", "secrets")
        elif name in KEY_VARIABLES.values():
            found.leave(name, "set it in the environment: Parley reads it there", "secrets")
        elif key := PEOPLE.get(name):
            found.put(key, [who for part in value.split(",") if (who := part.strip())], of=name)
        else:
            found.leave(name, "a variable that no setting of Parley's needs")


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for step in path[:-1]:
        tree = tree.setdefault(step, {})
    tree[path[-1]] = value
