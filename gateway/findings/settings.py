"""Whether the settings can be read, say what they mean, and weaken nothing."""

import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pydantic import SecretStr

from adapters.web.platform import is_private_way
from agent.models.factory import resolve_provider
from agent.settings import ReferencedSecret
from gateway.findings.finding import Evidence, Finding, Level, Sight, Told, open_to_others
from gateway.settings.loading import Loaded
from gateway.settings.tree import Settings

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HYGIENE = 0.85
"""Where the check before each turn compacts."""
IDLE, SHORT_MINUTES = {"idle", "both"}, 10
"""Sooner nobody expects to be forgotten."""


@Finding("settings-readable", level="error", needs="nothing")
def _readable(facts: Evidence) -> Iterator[Sight]:
    """The settings can be read.

    Why: Parley does not start with an unknown key or an invalid value.
    Remedy: Correct what the line names; docs/configuration.md has every key.
    """
    yield from map(Sight, facts.problems)


@Finding("settings-refused", needs="gateway", live=True, page="settings", told=Told())
def _refused(facts: Evidence) -> Iterator[Sight]:
    """The running gateway takes what is saved.

    Why: It goes on with the settings of before, but would not start with these.
    Remedy: `parley config check` names each mistake.
    Text: {subject} was changed and is not used: {reason}
    Over: {subject} is used again
    """
    if facts.live and facts.live.refused:
        file, reason = facts.live.refused
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
    file = facts.loaded.config_file
    if file is not None and (keys := plain_secrets(facts.loaded)):
        yield Sight(f"{file} holds the values of {', '.join(keys)}")
        yield from open_to_others(file, 0o600)


def plain_secrets(found: Loaded) -> list[str]:
    """Return the keys whose secrets are in the settings file itself."""
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


class Risk(NamedTuple):
    """Values of a setting that weaken Parley: what they cost, and what to do instead."""

    level: Level
    key: str
    costs: str
    remedy: str
    is_so: Callable[[Settings], bool]


def _can_run(on: Settings) -> bool:
    return "terminal" in on.tools.enabled


def _is_paid(on: Settings) -> bool:
    return resolve_provider(on.model) != "offline"


def _allows_all(on: Settings) -> bool:
    rules = on.tools.policy.rules
    return any((r.then, r.tool, r.role, r.tainted) == ("allow", "*", "*", None) for r in rules)


def _is_readable(*urls: str | None) -> bool:
    return any(url and not is_private_way(url) for url in urls)


def _answers_strangers(on: Settings) -> bool:
    is_open = any(each.senders == "anyone" for each in on.access.groups.values())
    return is_open and on.budget.sender_daily_usd is None


def _lists_nobody(on: Settings) -> bool:
    names = {platform for platform, _ in on.platforms.on()}
    return on.access.mode == "allowlist" and not all(map(on.access.listed, names))


RISKS = (
    Risk(
        *("error", "tools.approval"),
        "Text from a file or a web page can talk the model into a call.",
        "Set it to `side_effects`.",
        lambda on: on.tools.approval == "never",
    ),
    Risk(
        *("error", "tools.policy.without"),
        "The rows that it leaves out keep the words of a page from turning into actions.",
        "Remove the rows from it.",
        lambda on: bool(on.tools.policy.without),
    ),
    Risk(
        *("error", "tools.policy.rules"),
        "A rule `then: allow` for all tools and roles lets guests do what owners may.",
        "Name the tool, the role, or `tainted: false`.",
        _allows_all,
    ),
    Risk(
        *("error", "tools.terminal.confine"),
        "An unconfined command reads keys and other people's files.",
        "Set it to true, and `tools.sandbox.backend` to `auto`.",
        lambda on: (
            _can_run(on) and not (on.tools.terminal.confine and on.tools.sandbox.backend != "none")
        ),
    ),
    Risk(
        *("warning", "tools.terminal.allow_root"),
        "Anything that escapes the sandbox would own the machine.",
        "Run Parley as its own user, and set it to false.",
        lambda on: _can_run(on) and on.tools.terminal.allow_root,
    ),
    Risk(
        *("warning", "tools.terminal.network"),
        "Commands can send what they read anywhere, and reach every service on this machine.",
        "Set it to false.",
        lambda on: _can_run(on) and on.tools.terminal.network,
    ),
    Risk(
        *("warning", "access.mode"),
        "Anyone who finds the bot spends your money.",
        "Set it to `pairing`; a stranger then asks, and an owner lets them in.",
        lambda on: on.access.mode == "open",
    ),
    Risk(
        *("warning", "access"),
        "With mode `allowlist` and an empty list, only owners are answered.",
        "Name people below `access.PLATFORM`, or set `access.mode: pairing`.",
        _lists_nobody,
    ),
    Risk(
        *("warning", "access.rate_per_min"),
        "One person's script keeps everybody else waiting.",
        "Set it to 60.",
        lambda on: on.access.rate_per_min == 0,
    ),
    Risk(
        *("warning", "access.groups"),
        "`senders: anyone` answers everybody in the group, at your cost.",
        "Set `senders: allowed` for that group, or `budget.sender_daily_usd`.",
        _answers_strangers,
    ),
    Risk(
        *("warning", "base_url"),
        "Anyone in between can read the key and everything that is said.",
        "Use https:// in `model.base_url` and in fallbacks; plain http only for this machine.",
        lambda on: _is_readable(*(each.base_url for each in (on.model, *on.fallbacks))),
    ),
    Risk(
        *("warning", "tools.mcp"),
        "Anyone in between can read arguments, results and keys.",
        "Use https:// in `tools.mcp.NAME.url`.",
        lambda on: _is_readable(*(each.url for each in on.tools.mcp.values() if each.enabled)),
    ),
    Risk(
        *("warning", "web.host"),
        "Anyone in between can read what is said, and the sign-in cookie.",
        "Put a TLS proxy in front of it and set `web.public_url: https://…`, or use 127.0.0.1.",
        lambda on: (
            on.web.enabled
            and on.web.host not in LOOPBACK
            and not (on.web.public_url and is_private_way(on.web.public_url))
        ),
    ),
    Risk(
        *("error", "platforms"),
        "Without a platform or the web chat, nobody can write to the bot.",
        "Set a token below `platforms`, or `web.enabled: true`.",
        lambda on: not on.platforms.on() and not on.web.enabled,
    ),
    Risk(
        *("error", "tools.workspace.root"),
        "A tool that works there must not find anything else.",
        "Set it to an empty folder of this user, or to null.",
        lambda on: on.tools.workspace.root in {Path.home(), Path("/")},
    ),
    Risk(
        *("error", "compression.enabled"),
        "A conversation fails once it fills the model's window.",
        "Set it to true.",
        lambda on: not on.compression.enabled,
    ),
    Risk(
        *("warning", "compression.threshold"),
        f"From {HYGIENE:.0%} of the window on a turn begins with a compaction: somebody waits.",
        "Set it below 0.85; 0.50 is the default.",
        lambda on: on.compression.threshold >= HYGIENE,
    ),
    Risk(
        *("warning", "sessions.idle_minutes"),
        "A chat forgets what was said after so short a pause.",
        "Raise it; 1440, a day, is the default.",
        lambda on: on.sessions.reset in IDLE and on.sessions.idle_minutes < SHORT_MINUTES,
    ),
    Risk(
        *("warning", "logging.file"),
        "Only what the terminal or journald keeps tells you in the morning what happened.",
        "Set it to null or a path.",
        lambda on: on.logging.file is False,
    ),
    Risk(
        *("note", "alerts.enabled"),
        "Nobody hears of trouble until an answer is missing.",
        "Set it to true.",
        lambda on: not on.alerts.enabled,
    ),
    Risk(
        *("note", "budget.daily_usd"),
        "A loop of a tool can spend whatever the account has.",
        "Set a limit in dollars.",
        lambda on: _is_paid(on) and on.budget.daily_usd is None,
    ),
    Risk(
        *("note", "fallbacks"),
        "Nobody is answered while the provider has trouble.",
        "Add a block, ideally of another provider.",
        lambda on: _is_paid(on) and not on.fallbacks,
    ),
    Risk(
        *("note", "retention.transcript_days"),
        "People's transcripts and files pile up, and so does what a thief would get.",
        "Set it, and `retention.files_days` or `files_max_bytes`.",
        lambda on: on.retention.transcript_days is None and not on.retention.limits_files,
    ),
)


@Finding("settings-risky")
def _risky(facts: Evidence) -> Iterator[Sight]:
    """No setting weakens Parley.

    Why: Each of these values costs something; docs/doctor.md lists them.
    Remedy: Change the setting that the line names.
    Text: {subject}{value}
    """
    for each in RISKS:
        if each.is_so(facts.settings):
            value = facts.loaded.values.get(each.key, ())
            is_word = value is None or isinstance(value, str | int | float)
            text = {"value": f" is {json.dumps(value)}" if is_word else ""}
            yield Sight(each.key, text, each.level, why=each.costs, remedy=each.remedy)
