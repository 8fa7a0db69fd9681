"""Whether the settings can be read, say what they mean, and weaken nothing."""

import json
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import cast

from pydantic import SecretStr

from adapters.web.platform import is_private_way
from agent.models.factory import resolve_provider
from agent.settings import ReferencedSecret
from gateway.findings.finding import Evidence, Finding, Level, Sight, open_to_others
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHORT_MINUTES = 10
"""Shortest plausible idle reset, in minutes."""


@Finding("settings-readable", level="error", needs="nothing")
def _readable(facts: Evidence) -> Iterator[Sight]:
    """The settings can be read.

    Why: Parley does not start with an unknown key or an invalid value.
    Remedy: Correct what the line names; docs/configuration.md has every key.
    """
    yield from map(Sight, facts.problems)


@Finding("settings-refused", needs="gateway", page="settings", told=True)
def _refused(facts: Evidence) -> Iterator[Sight]:
    """The running gateway takes what is saved.

    Why: It goes on with the settings of before, but would not start with these.
    Remedy: `parley config check` names each mistake.
    Text: {subject} was changed and is not used: {reason}
    Over: {subject} is used again
    """
    if facts.gateway.refused:
        file, reason = facts.gateway.refused
        yield Sight(file, {"reason": reason})


@Finding("settings-effect")
def _effect(facts: Evidence) -> Iterator[Sight]:
    """Every setting has an effect.

    Why: An old spelling, a value that changes nothing, or a secret that is too short to be masked
    is hardly what you meant.
    Remedy: Remove the line, or write what it suggests.
    """
    yield from map(Sight, facts.loaded.warnings)


@Finding("restart-due", level="note", needs="gateway")
def _restart(facts: Evidence) -> Iterator[Sight]:
    """The running gateway has the installed version and uses what the file says.

    Why: An older process lacks the fixes of the newer version; some settings take effect only after
    a restart.
    Remedy: Restart Parley, or undo the change; `parley config show --diff` shows it.
    """
    said, here = facts.running or {}, metadata.version("parley")
    if said.get("version", here) != here:
        yield Sight(f"{here} is installed, {said['version']} runs")
    if keys := said.get("waiting"):
        yield Sight(f"it does not use {', '.join(map(str, keys))} yet")


@Finding("settings-secrets", level="note")
def _secrets(facts: Evidence) -> Iterator[Sight]:
    """Secrets are kept outside the settings file.

    Why: A secret in the settings file is also in each of its copies and backups.
    Remedy: Write `file:/run/secrets/NAME`, `env:NAME` or `keyring:NAME` instead.
    """
    if (file := facts.loaded.config_file) and (keys := plain_secrets(facts.loaded)):
        yield Sight(f"{file} holds the values of {', '.join(keys)}")
        yield from open_to_others(file, 0o600)


def plain_secrets(found: Loaded) -> list[str]:
    """Return the keys with secrets in the settings file itself."""
    if (file := found.config_file) is None:
        return []
    return [
        key
        for key, value in found.values.items()
        if _is_plain(value) and file.name in found.origins.get(key, "")
    ]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(_is_plain, value))
    return isinstance(value, SecretStr) and not isinstance(value, ReferencedSecret)


_TABLE = """
error tools.approval: Text from a file or a web page can talk the model into a call.
    Set it to `side_effects`.
error tools.policy.without: The rows left out keep words of a page from becoming actions.
    Remove the rows from it.
error tools.policy.rules: `then: allow` for all tools and roles lets guests do what owners may.
    Name the tool, the role, or `tainted: false`.
error tools.terminal.confine: An unconfined command reads keys and other people's files.
    Set it to true, and `tools.sandbox.backend` to `auto`.
warning tools.terminal.network: Commands can send anything anywhere, and reach local services.
    Set it to false.
warning access.mode: Anyone who finds the bot spends your money.
    Set it to `pairing`; a stranger then asks, and an owner lets them in.
warning access: With mode `allowlist` and an empty list, only owners are answered.
    Name people below `access.PLATFORM`, or set `access.mode: pairing`.
warning access.rate_per_min: One person's script keeps everybody else waiting.
    Set it to 60.
warning access.groups: `senders: anyone` answers everybody in the group, at your cost.
    Set `senders: allowed` for that group, or `budget.sender_daily_usd`.
warning base_url: Anyone in between can read the key and everything that is said.
    Use https:// in `model.base_url` and in fallbacks; plain http only for this machine.
warning tools.mcp: Anyone in between can read arguments, results and keys.
    Use https:// in `tools.mcp.NAME.url`.
warning web.host: Anyone in between can read what is said, and the sign-in cookie.
    Put a TLS proxy in front of it and set `web.public_url: https://…`, or use 127.0.0.1.
error platforms: Without a platform or the web chat, nobody can write to the bot.
    Set a token below `platforms`, or `web.enabled: true`.
error tools.workspace.root: A tool that works there must not find anything else.
    Set it to an empty folder of this user, or to null.
error compression.enabled: A conversation fails once it fills the model's window.
    Set it to true.
warning sessions.idle_minutes: A chat forgets what was said after so short a pause.
    Raise it; 1440, a day, is the default.
note alerts.enabled: Nobody hears of trouble until an answer is missing.
    Set it to true.
note budget.daily_usd: A loop of a tool can spend whatever the account has.
    Set a limit in dollars.
"""
RISKS = {
    key: (cast("Level", level), costs, remedy)
    for level, key, costs, remedy in re.findall(r"(?m)^(\w+) (\S+): (.+)\n +(.+)$", _TABLE)
}
"""Settings whose value weakens Parley, with severity, cost and alternative."""


def _are_so(on: Settings) -> Mapping[str, bool]:
    """Return for each setting of `RISKS` whether its value is risky."""
    can_run, rules = "terminal" in on.tools.enabled, on.tools.policy.rules
    is_walled = on.tools.terminal.confine and on.tools.sandbox.backend != "none"
    is_open = any(each.senders == "anyone" for each in on.access.groups.values())
    names = {platform for platform, _ in on.platforms.on()}
    proxy, servers = on.web.public_url, [each for each in on.tools.mcp.values() if each.enabled]
    return {
        "tools.approval": on.tools.approval == "never",
        "tools.policy.without": bool(on.tools.policy.without),
        "tools.policy.rules": ("allow", "*", "*", None)
        in [(each.then, each.tool, each.role, each.tainted) for each in rules],
        "tools.terminal.confine": can_run and not is_walled,
        "tools.terminal.network": can_run and on.tools.terminal.network,
        "access.mode": on.access.mode == "open",
        "access": on.access.mode == "allowlist" and not all(map(on.access.listed, names)),
        "access.rate_per_min": on.access.rate_per_min == 0,
        "access.groups": is_open and on.budget.sender_daily_usd is None,
        "base_url": _is_readable(*(each.base_url for each in (on.model, *on.fallbacks))),
        "tools.mcp": _is_readable(*(each.url for each in servers)),
        "web.host": on.web.enabled
        and on.web.host not in LOOPBACK
        and not (proxy and is_private_way(proxy)),
        "platforms": not names and not on.web.enabled,
        "tools.workspace.root": on.tools.workspace.root in {Path.home(), Path("/")},
        "compression.enabled": not on.compression.enabled,
        "sessions.idle_minutes": on.sessions.reset in {"idle", "both"}
        and on.sessions.idle_minutes < SHORT_MINUTES,
        "alerts.enabled": not on.alerts.enabled,
        "budget.daily_usd": resolve_provider(on.model) != "offline" and on.budget.daily_usd is None,
    }


def _is_readable(*urls: str | None) -> bool:
    return any(url and not is_private_way(url) for url in urls)


@Finding("settings-risky")
def _risky(facts: Evidence) -> Iterator[Sight]:
    """No setting weakens Parley.

    Why: Each of these values costs something; docs/doctor.md lists them.
    Remedy: Change the setting that the line names.
    Text: {subject}{value}
    """
    are_so = _are_so(facts.settings)
    for key, (level, costs, remedy) in RISKS.items():
        if are_so[key]:
            value = facts.loaded.values.get(key, ())
            is_word = value is None or isinstance(value, str | int | float)
            text = {"value": f" is {json.dumps(value)}" if is_word else ""}
            yield Sight(key, text, level, why=costs, remedy=remedy)
