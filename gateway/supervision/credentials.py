"""Keys and tokens: are they taken at the start, and what became of those replaced since?

The models are asked when their windows are (gateway/wiring.py). A platform shows it by the first
steps of its adapter, which has begun to receive by then; one that has taken its token is asked what
else its app lacks.

Secrets that the settings refer to are read again with each reload (gateway/reload/reloading.py).
Models take their new keys with the next call; accounts are restarted with theirs. MCP servers and
plugins were given theirs at the start: for them the log says that a restart is needed.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog

from adapters.registry import BUILT_IN, AccountReport, AccountSettings, check
from agent.errors import CredentialsRefused, CreditUsedUp, ModelError, SecretUnreadable
from agent.models.base import ChatModel, Renewable, checked_key
from agent.models.recovery import Rests
from agent.network import in_words
from agent.safety.redaction import printable
from gateway.settings.references import references_in, told
from gateway.settings.tree import Settings, dotted
from gateway.supervision.accounts import Supervised

log = structlog.get_logger()

PLATFORMS_WITHIN_S = 2.5
"""Longest wait for all platforms together; with that for the models (`wiring.LOOK_UP_S`) a start
is held up by less than 5 s."""
LOOK_AGAIN_S = 0.01
LEAST_S = 0.5
"""What is left for the second question at least."""

Outcome = Literal["accepted", "refused", "no_credit", "unreachable", "not_checked"]
WRONG: frozenset[Outcome] = frozenset({"refused", "no_credit"})
"""Somebody has to change something; the others are fine, or are tried again."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one key or token.

    Attributes:
        subject: The model and which of its keys ("claude-sonnet-5 (key 2)"), or
            `platform:account`.
        text: For the operator; where something is wrong it names the setting.
        lacks: What else has to be switched on at a platform; a sentence each, with the link.
        greeting: Of a platform: an address that sends the code behind it to the bot.
        bot: Of a platform: the bot's name, where it is known.
        cost_usd: What the question to a model has cost; None where no price is known.
    """

    subject: str
    outcome: Outcome
    text: str
    lacks: tuple[str, ...] = ()
    greeting: str = ""
    bot: str = ""
    cost_usd: float | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether somebody has to change something before it can be used."""
        return self.outcome in WRONG


def of_model(model: ChatModel, setting: str, failure: Exception | None, *, asked: bool) -> Checked:
    """Return what a question about a model has shown, and log it.

    Args:
        model: The model, with one of its keys.
        failure: What the question ended with; None for an answer.
        asked: Whether the provider has such a question.
    """
    match failure:
        case CreditUsedUp():
            outcome: Outcome = "no_credit"
            text = f"its account has no credit left; add some, or change {setting}"
        case CredentialsRefused():
            outcome, text = "refused", f"the provider refuses the key; correct {setting}"
        case ModelError() | TimeoutError():
            outcome, text = "unreachable", "does not answer now; it is asked with each message"
        case _ if asked:
            outcome, text = "accepted", "its server answers"
        case _:
            outcome, text = "not_checked", "not checked: its server says nothing about this model"
    return _logged(Checked(model.label, outcome, text))


def note(rests: Rests, findings: Sequence[Checked]) -> None:
    """Take note of how the keys of models stand, for those who are told of it later."""
    for each in findings:
        match each.outcome:
            case "accepted":
                rests.note_accepted(each.subject)
            case "refused":
                rests.note_failure(each.subject, CredentialsRefused("it was refused at the start"))
            case "no_credit":
                rests.note_failure(each.subject, CreditUsedUp("so it was said at the start"))


async def of_platforms(
    adapters: Sequence[Supervised],
    stop: asyncio.Event,
    accounts: Iterable[tuple[str, AccountSettings]] = (),
) -> list[Checked]:
    """Wait until each platform has taken or refused its token, and log which; within 2.5 s.

    Those that have taken it are then asked what their app lacks, within the same time. The web chat
    has no token. Returns early when the gateway is to stop.

    Args:
        accounts: Whose tokens are asked about: platform and block.
    """
    platforms = [each for each in adapters if each.adapter.platform != BUILT_IN]
    end_at = time.monotonic() + PLATFORMS_WITHIN_S
    # Adapters tell their state when they are asked.
    while not (stop.is_set() or all(each.is_settled for each in platforms)):
        if time.monotonic() >= end_at:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    reaches = {
        (each.adapter.platform, each.adapter.account)
        for each in platforms
        if each.stopped is None and each.connected
    }
    wanted = [each for each in accounts if (each[0], each[1].name) in reaches]
    reports = {} if stop.is_set() else await _reports(wanted, end_at)
    return [_logged(_of_platform(each, reports)) for each in platforms]


Reports = Mapping[tuple[str, str], AccountReport]
"""By platform and account."""


async def _reports(accounts: Sequence[tuple[str, AccountSettings]], end_at: float) -> Reports:
    """Ask the platforms, side by side; who does not answer in time is left out."""
    found: dict[tuple[str, str], AccountReport] = {}

    async def ask(platform: str, block: AccountSettings) -> None:
        found[platform, block.name] = await report_of(platform, block)

    with suppress(TimeoutError):
        # The first steps of an adapter may have taken all of the time.
        async with (
            asyncio.timeout(max(end_at - time.monotonic(), LEAST_S)),
            asyncio.TaskGroup() as tasks,
        ):
            for each in accounts:
                tasks.create_task(ask(*each), name=f"check of {each[0]}:{each[1].name}")
    return found


async def report_of(platform: str, block: AccountSettings) -> AccountReport:
    """Return what `check` does, also where an SDK raises what nobody expects: no start ends so."""
    try:
        return await check(platform, block)
    except Exception as exc:
        name = type(exc).__name__
        log.exception("account_not_asked", platform=platform, account=block.name, error=name)
        return AccountReport("not_checked", f"not checked: {in_words(exc)}")


def _of_platform(supervised: Supervised, reports: Reports) -> Checked:
    if supervised.stopped is not None:
        return Checked(supervised.name, "refused", supervised.stopped)
    report = reports.get((supervised.adapter.platform, supervised.adapter.account))
    if supervised.connected:
        if report is None or report.outcome != "accepted":
            return Checked(supervised.name, "accepted", "connected")
        text = f"connected as {report.bot}"
        return Checked(supervised.name, "accepted", text, report.lacks, report.greeting)
    if supervised.is_standby:
        return Checked(supervised.name, "not_checked", "another replica receives for it")
    why = f" ({supervised.trouble})" if supervised.trouble else ""
    return Checked(supervised.name, "unreachable", f"not connected yet{why}; it is tried again")


def _logged(finding: Checked) -> Checked:
    is_odd = finding.outcome == "unreachable" or finding.lacks
    level = logging.WARNING if is_odd else logging.INFO
    log.log(
        logging.ERROR if finding.is_wrong else level,
        "credentials_checked",
        subject=finding.subject,
        outcome=finding.outcome,
        reason="; ".join([finding.text, *finding.lacks]),
    )
    return finding


def lines(findings: Sequence[Checked]) -> list[str]:
    """Return findings as the start and the set-up print them: first what has to be changed."""
    marks = {"refused": "✗", "no_credit": "✗", "unreachable": "…", "not_checked": "?"}
    found: list[str] = []
    for each in sorted(findings, key=lambda each: not each.is_wrong):
        found.append(f"  {marks.get(each.outcome, '✓')} {each.subject}: {each.text}")
        found += [f"    ! {lack}" for lack in each.lacks]
    return [printable(line) for line in found]


log = structlog.get_logger()

_OF_MODELS = frozenset({"model", "fallbacks", "auxiliary"})
_READ_EACH_TIME = frozenset({("web", "oidc", "client_secret")})
ASKED_WITHIN_S = 5.0
"""How long providers have to say whether they take a new key."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What became of the secrets, by the settings that refer to them.

    Attributes:
        renewed: Those with another value, which is used from now on.
        restart: Those with another value that is used after a restart.
        refused: Keys with another value, which is used from now on, and which the provider refuses.
        unreadable: Those that cannot be read, and why; the value before goes on.
        references: How many there are.
    """

    renewed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    references: int = 0


@dataclass(frozen=True, slots=True)
class SettingsReloaded:
    """What became of the settings when they were read again, by their keys.

    Attributes:
        live: Those that are gone by from now on.
        next_turn: Those that turns go by that begin from now on.
        restart: Those that differ from what is gone by, and wait for a restart.
        problems: Why nothing was changed, one line for each mistake.
        adapters: Accounts that were restarted, and how they stand.
        warnings: What may not work as it is meant.
    """

    live: tuple[str, ...] = ()
    next_turn: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    secrets: Reloaded = field(default_factory=Reloaded)


_WORDS = {
    "live": "in effect now",
    "next_turn": "in effect with the next turn",
    "restart": "needs a restart",
    "adapters": "restarted",
    "warnings": "warning",
    "renewed": "in use",
    "refused": "in use, but refused",
    "unreadable": "not taken, the value before goes on",
}


def reload_lines(done: Mapping[str, Any]) -> list[str]:
    """Describe a reload of settings, or of secrets alone: a line for each key that changed.

    Args:
        done: The fields of a `SettingsReloaded` or a `Reloaded`.
    """
    lines = [f"{words}: {each}" for name, words in _WORDS.items() for each in done.get(name, ())]
    return lines + (reload_lines(done["secrets"]) if "secrets" in done else [])


@dataclass(slots=True)
class Rotation:
    """Reads the secrets of a running gateway again; `Reloading` sees to it that one does at a time.

    Attributes:
        models: That may take other keys.
        rests: Which of them rest: one with another key need not.
        restarts_accounts: Whether accounts are restarted for their new tokens; else the process has
            to be.
    """

    settings: Settings
    models: Sequence[ChatModel]
    rests: Rests
    restarts_accounts: bool = False

    def take(self, settings: Settings, models: Sequence[ChatModel]) -> None:
        """Go on with the secrets of other settings, and with the models that were made of them."""
        self.settings, self.models = settings, models

    async def reload(self) -> Reloaded:
        """Read every secret that is referred to; has models use what is new, and asks about it."""
        done = await self._told_apart(await asyncio.to_thread(self._read))
        trouble = done.restart or done.refused or done.unreadable
        log.log(
            logging.WARNING if trouble else logging.INFO,
            "secrets_reloaded",
            renewed=list(done.renewed),
            restart_needed=list(done.restart),
            refused=list(done.refused),
            unreadable=list(done.unreadable),
        )
        return done

    def _read(self) -> Reloaded:
        renewed: list[str] = []
        restart: list[str] = []
        unreadable: list[str] = []
        found = list(references_in(self.settings))
        for path, secret in found:
            is_key = path[0] in _OF_MODELS
            try:
                value = secret.read()
                if secret.take(checked_key(value) if is_key else value):
                    is_token = path[0] == "platforms" and self.restarts_accounts
                    at_once = is_key or is_token or path in _READ_EACH_TIME
                    (renewed if at_once else restart).append(dotted(path))
            except SecretUnreadable as exc:
                unreadable.append(f"{dotted(path)}: {told(secret.reference)} {exc}")
        return Reloaded(tuple(renewed), tuple(restart), (), tuple(unreadable), len(found))

    async def _told_apart(self, done: Reloaded) -> Reloaded:
        """Have models take their keys; returns which of them a provider refuses."""
        names = {id(secret): dotted(path) for path, secret in references_in(self.settings)}
        taking = [each for each in self.models if isinstance(each, Renewable) and each.take_key()]
        for model in taking:
            self.rests.clear(model)
        answers = await asyncio.gather(*map(_is_refused, taking))
        for model, is_refused in zip(taking, answers, strict=True):
            if is_refused:
                self.rests.note_failure(model.label, CredentialsRefused("the new key is refused"))
            else:
                self.rests.note_accepted(model.label)
        # A model may have its key since it was refused the one before: that is no news.
        refused = {
            names.get(id(model.secret), model.label)
            for model, is_refused in zip(taking, answers, strict=True)
            if is_refused
        }
        renewed = tuple(name for name in done.renewed if name not in refused)
        lines = tuple(f"{name}: the provider refuses it" for name in sorted(refused))
        return replace(done, renewed=renewed, refused=lines)


async def _is_refused(model: ChatModel) -> bool:
    try:
        async with asyncio.timeout(ASKED_WITHIN_S):
            await model.look_up()
    except CredentialsRefused as exc:
        return not isinstance(exc, CreditUsedUp)
    except (ModelError, TimeoutError):
        # Nobody knows: it is asked with the next message.
        return False
    return False
