"""Whether the settings can be read, say what they mean, and go together."""

from collections.abc import Iterator

from pydantic import SecretStr

from agent.settings import ReferencedSecret
from gateway.doctor.checks import Examined, Sight, check, open_to_others
from gateway.settings.loading import Loaded

HYGIENE = 0.85
"""Where the check before each turn compacts."""
SHORT_MINUTES = 10
"""Sooner nobody expects to be forgotten."""


@check(
    "settings-readable",
    "The settings can be read",
    why="Parley does not start with an unknown key or an invalid value.",
    remedy="Correct what the line names; docs/configuration.md has every key.",
    needs="nothing",
)
def _readable(examined: Examined) -> Iterator[Sight]:
    for problem in examined.problems:
        yield Sight("wrong", problem)


@check(
    "settings-effect",
    "Every setting has an effect",
    why="An old spelling, a value that changes nothing, or a secret that is too short to be masked"
    " is hardly what you meant.",
    remedy="Remove the line, or write what it suggests.",
)
def _effect(examined: Examined) -> Iterator[Sight]:
    for warning in examined.loaded.warnings:
        yield Sight("warning", warning)
    sessions = examined.settings.sessions
    if sessions.reset in {"idle", "both"} and sessions.idle_minutes < SHORT_MINUTES:
        text = f"after sessions.idle_minutes ({sessions.idle_minutes}) a chat forgets what was said"
        yield Sight("warning", text, "Raise it; 1440, a day, is the default.")


@check(
    "settings-running",
    "The running gateway uses what the file says",
    why="Some changes in the file take effect only after a restart.",
    remedy="Restart Parley, or undo the change; `parley config show --diff` shows it.",
    needs="gateway",
)
def _goes_by(examined: Examined) -> Iterator[Sight]:
    keys = examined.said.get("waiting")
    if isinstance(keys, list) and keys:
        yield Sight("note", f"it does not use {', '.join(map(str, keys))} yet")


@check(
    "settings-file-mode",
    "Only its owner can read a settings file with secrets",
    why="Anyone who can read the file has the keys in it.",
    remedy="`chmod 600` the file, or refer to secrets instead (`file:…`, `env:…`).",
)
def _file_mode(examined: Examined) -> Iterator[Sight]:
    file = examined.loaded.config_file
    if file is None or not plain_secrets(examined.loaded):
        return
    yield from open_to_others(file, 0o600, holds="holds secrets and ")


@check(
    "settings-secrets-plain",
    "Secrets are kept outside the settings file",
    why="A secret in the settings file is also in each of its copies and backups.",
    remedy="Write `file:/run/secrets/NAME`, `env:NAME` or `keyring:NAME` instead.",
)
def _plain(examined: Examined) -> Iterator[Sight]:
    found = examined.loaded
    if keys := plain_secrets(found):
        yield Sight("note", f"{found.config_file} holds the values of {', '.join(keys)}")


def plain_secrets(found: Loaded) -> list[str]:
    """Return the keys whose secrets stand in the settings file itself."""
    file = found.config_file
    if file is None:
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


@check(
    "compression-on",
    "Long conversations are compacted",
    why="Otherwise a conversation fails once it fills the model's window.",
    remedy="Set `compression.enabled: true`.",
)
def _compression(examined: Examined) -> Iterator[Sight]:
    if not examined.settings.compression.enabled:
        yield Sight("wrong", "compression.enabled is false")


@check(
    "compression-order",
    "The in-loop compressor fires before the check that precedes each turn",
    why=f"From {HYGIENE:.0%} of the window on that one compacts at the start of a turn, while"
    " somebody waits.",
    remedy="Set `compression.threshold` below 0.85; 0.50 is the default.",
)
def _order(examined: Examined) -> Iterator[Sight]:
    threshold = examined.settings.compression.threshold
    if examined.settings.compression.enabled and threshold >= HYGIENE:
        yield Sight("warning", f"compression.threshold is {threshold:g}")


@check(
    "log-kept",
    "A log is kept",
    why="Otherwise you cannot find out in the morning what happened at night.",
    remedy="Set `logging.file` to null or a path.",
)
def _log(examined: Examined) -> Iterator[Sight]:
    if examined.settings.logging.file is False:
        yield Sight("warning", "logging.file is false: only what the terminal or journald keeps")


@check(
    "log-level",
    "The log holds what an operator needs",
    why="`debug` writes several times as much; `error` leaves out why something was refused.",
    remedy="Set `logging.level: info`.",
)
def _level(examined: Examined) -> Iterator[Sight]:
    level = examined.settings.logging.level
    if level in {"debug", "error"}:
        yield Sight("note", f"logging.level is {level}")


@check(
    "retention-limited",
    "Stored data is not kept for ever",
    why="People's transcripts and files pile up, and so does what a thief would get.",
    remedy="Set `retention.transcript_days`, and `retention.files_days` or `files_max_bytes`.",
)
def _retention(examined: Examined) -> Iterator[Sight]:
    retention = examined.settings.retention
    if retention.transcript_days is None and not retention.limits_files:
        yield Sight("note", "transcripts and files are kept until `parley forget`")


@check(
    "queue-attempts",
    "A message is tried more than once",
    why="With one attempt, a restart in the middle of a turn makes it a dead letter.",
    remedy="Set `queue.max_attempts: 3`.",
)
def _attempts(examined: Examined) -> Iterator[Sight]:
    if examined.settings.queue.max_attempts == 1:
        yield Sight("warning", "queue.max_attempts is 1")


@check(
    "queue-grace",
    "Running turns may finish before a stop",
    why="Without that time, every stop cuts off the answers in progress.",
    remedy="Set `queue.grace_s: 30`, and the service's own limit above it (TimeoutStopSec).",
)
def _grace(examined: Examined) -> Iterator[Sight]:
    if examined.settings.queue.grace_s < 1:
        yield Sight("warning", f"queue.grace_s is {examined.settings.queue.grace_s:g}")
