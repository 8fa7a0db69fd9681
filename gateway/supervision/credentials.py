"""Keys and tokens: checked at start and after each replacement.

For each key the provider is asked for the model's window. A platform accepts or refuses its token
when the adapter connects; then it is asked what the app lacks.

Each reload reads the secrets again (gateway/reload/reloading.py). Models use new keys from the next
call, accounts restart; MCP servers and plugins need a restart of Parley, as the log says.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import structlog

from adapters.registry import BUILT_IN, AccountReport, AccountSettings, check
from agent.errors import CredentialsRefused, CreditUsedUp, ModelError, SecretUnreadable
from agent.models.base import ChatModel, Renewable, checked_key
from agent.models.catalog import KEY_VARIABLES
from agent.models.recovery import Rests
from agent.network import in_words
from agent.safety.redaction import printable
from agent.settings import ModelSettings
from gateway.settings.references import references_in, told
from gateway.settings.tree import Settings, dotted
from gateway.supervision.accounts import Supervised

log = structlog.get_logger()

LOOK_UP_S = 2.0
"""Longest wait for a provider's model information at start, in seconds."""
PLATFORMS_WITHIN_S = 2.5
"""Longest wait for all platforms; together with the models a start waits less than 5 s."""
LOOK_AGAIN_S = 0.01
LEAST_S = 0.5
"""Time reserved for the second request, in seconds."""
ASKED_WITHIN_S = 5.0
"""Time limit of providers to accept a new key, in seconds."""
INSIDE = frozenset({"offline", "recorded"})
"""Model kinds that need no network."""

Outcome = Literal["accepted", "refused", "no_credit", "unreachable", "not_checked"]
Answer = int | ModelError | TimeoutError | None
"""A provider's answer about a model: its window, 0 if unknown; None if not asked."""


class Configured(NamedTuple):
    """A model's block in the settings, its models (one per key), and its path in the file."""

    settings: ModelSettings
    models: Sequence[ChatModel]
    place: str = "model"


@dataclass(frozen=True, slots=True)
class Checked:
    """The state of one key or token.

    Attributes:
        subject: The model with its key number ("claude-sonnet-5 (key 2)"), or `platform:account`.
        text: Text for the operator; names the setting of a problem.
        lacks: Features to switch on at a platform, a sentence each with a link.
        greeting: For a platform: a link that sends the code after it to the bot.
        bot: For a platform: the bot's name, if known.
        cost_usd: Cost of asking a model; None if its price is unknown.
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
        """Whether the operator must act; other outcomes are fine or retried."""
        return self.outcome in {"refused", "no_credit"}


async def learn_windows(line: Sequence[Configured]) -> list[Checked]:
    """Ask the providers for their models' windows with each key, concurrently.

    A configured window applies unless the provider's is smaller; without an answer the catalog's
    applies (agent/models/catalog.py).

    Returns:
        The state of each key; models inside Parley have none.
    """
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (block, [tasks.create_task(_asked(model, LOOK_UP_S)) for model in block.models])
            for block in line
        ]
    findings: list[Checked] = []
    for block, each in asked:
        answers = [task.result() for task in each]
        _take_window(block, answers)
        if block.models[0].provider not in INSIDE:
            findings += [_of_model(block, n, answer) for n, answer in enumerate(answers)]
    return findings


async def _asked(model: ChatModel, within_s: float) -> Answer:
    try:
        async with asyncio.timeout(within_s):
            return await model.look_up()
    except (ModelError, TimeoutError) as exc:
        return exc


def _take_window(block: Configured, answers: Sequence[Answer]) -> None:
    """Use the first key's answer with a window; all keys belong to one model."""
    told = [answer for answer in answers if isinstance(answer, int)]
    model = block.models[0]
    if not told and isinstance(answers[0], Exception):
        error = type(answers[0]).__name__
        log.warning("model_not_looked_up", provider=model.provider, model=model.name, error=error)
    if not told or not told[0]:
        return
    window, wanted = told[0], block.settings.context_length
    if wanted is not None and wanted > window:
        log.warning("window_too_large", model=model.name, wanted=wanted, context_length=window)
    for each in block.models:
        each.context_length = min(wanted or window, window)
        each.facts = replace(each.facts, context_length=window)


def _of_model(block: Configured, number: int, answer: Answer) -> Checked:
    """Log and return the state of a block's key with this number."""
    model, setting = block.models[number], f"{block.place}.api_key{'s' if number else ''}"
    if not number and (variable := KEY_VARIABLES.get(model.provider)):
        setting += f" ({variable})"
    match answer:
        case CredentialsRefused():
            outcome, text = refusal(answer)
            advice = "add some, or change" if outcome == "no_credit" else "correct"
            text += f"; {advice} {setting}"
        case ModelError() | TimeoutError():
            outcome, text = "unreachable", "does not answer now; it is asked with each message"
        case None:
            outcome, text = "not_checked", "not checked: its server says nothing about this model"
        case _:
            outcome, text = "accepted", "its server answers"
    return _logged(Checked(model.label, outcome, text))


def refusal(failure: CredentialsRefused) -> tuple[Outcome, str]:
    """Explain why a provider refuses a key; the caller adds the setting."""
    if isinstance(failure, CreditUsedUp):
        return "no_credit", "the key is good, but its account has no credit left"
    return "refused", "the provider refuses the key"


def note_keys(rests: Rests, findings: Sequence[Checked]) -> None:
    """Store the state of the models' keys for later reports."""
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
    """Wait up to 2.5 s for each platform to accept or refuse its token, and log the result.

    Then ask the accepting platforms, within the same time, what their app lacks. The web chat has
    no token. Return early when the gateway must stop.

    Args:
        accounts: Platform and block of each account to check.
    """
    platforms = [each for each in adapters if each.adapter.platform != BUILT_IN]
    end_at = time.monotonic() + PLATFORMS_WITHIN_S
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
    """Ask the platforms concurrently; omit those that do not answer in time."""
    found: dict[tuple[str, str], AccountReport] = {}

    async def ask(platform: str, block: AccountSettings) -> None:
        found[platform, block.name] = await ask_platform(platform, block)

    with suppress(TimeoutError):
        # The first steps of an adapter may have used all of the time.
        async with (
            asyncio.timeout(max(end_at - time.monotonic(), LEAST_S)),
            asyncio.TaskGroup() as tasks,
        ):
            for each in accounts:
                tasks.create_task(ask(*each), name=f"check of {each[0]}:{each[1].name}")
    return found


async def ask_platform(platform: str, block: AccountSettings) -> AccountReport:
    """Return the report of `check`, even if an SDK raises an unexpected exception."""
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


def checked_lines(findings: Sequence[Checked]) -> list[str]:
    """Format findings for start and set-up, problems first."""
    marks = {"refused": "✗", "no_credit": "✗", "unreachable": "…", "not_checked": "?"}
    found: list[str] = []
    for each in sorted(findings, key=lambda each: not each.is_wrong):
        found.append(f"  {marks.get(each.outcome, '✓')} {each.subject}: {each.text}")
        found += [f"    ! {lack}" for lack in each.lacks]
    return [printable(line) for line in found]


_OF_MODELS = frozenset({"model", "fallbacks", "auxiliary"})
_READ_EACH_TIME = frozenset({("web", "oidc", "client_secret")})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Result of reading the secrets again, by setting.

    Attributes:
        renewed: Settings whose new value is in use.
        restart: Settings whose new value needs a restart.
        refused: Keys whose new value is in use but refused by the provider.
        unreadable: Unreadable references with reasons; the previous value stays in use.
        references: Number of references.
    """

    renewed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    references: int = 0


@dataclass(frozen=True, slots=True)
class SettingsReloaded:
    """Result of reading the settings again, by key.

    Attributes:
        live: Keys in effect now.
        next_turn: Keys in effect for later turns.
        restart: Changed keys that need a restart.
        problems: Why nothing was changed, one line per mistake.
        adapters: Restarted accounts and their state.
        warnings: Warnings for the operator.
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
    """Describe a reload of settings or secrets, one line per changed key.

    Args:
        done: The fields of a `SettingsReloaded` or a `Reloaded`.
    """
    lines = [f"{words}: {each}" for name, words in _WORDS.items() for each in done.get(name, ())]
    return lines + (reload_lines(done["secrets"]) if "secrets" in done else [])


@dataclass(slots=True)
class Rotation:
    """Reloads the secrets of a running gateway; `Reloading` ensures one reader at a time.

    Attributes:
        rests: Pauses of models; a new key ends one.
        restarts_accounts: Whether accounts restart for new tokens; otherwise the process must.
    """

    settings: Settings
    models: Sequence[ChatModel]
    rests: Rests
    restarts_accounts: bool = False

    def take(self, settings: Settings, models: Sequence[ChatModel]) -> None:
        """Switch to new settings and their models."""
        self.settings, self.models = settings, models

    async def reload(self) -> Reloaded:
        """Read all referenced secrets, check new keys, and switch the models to them."""
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
        """Switch models to their new keys; list refused keys separately."""
        names = {id(secret): dotted(path) for path, secret in references_in(self.settings)}
        taking = [each for each in self.models if isinstance(each, Renewable) and each.take_key()]
        for model in taking:
            self.rests.clear(model)
        answers = await asyncio.gather(*(_asked(model, ASKED_WITHIN_S) for model in taking))
        refused = set[str]()
        for model, answer in zip(taking, answers, strict=True):
            # Without an answer the state is unknown: the next message will tell.
            if isinstance(answer, CredentialsRefused) and not isinstance(answer, CreditUsedUp):
                self.rests.note_failure(model.label, CredentialsRefused("the new key is refused"))
                refused.add(names.get(id(model.secret), model.label))
            else:
                self.rests.note_accepted(model.label)
        renewed = tuple(name for name in done.renewed if name not in refused)
        lines = tuple(f"{name}: the provider refuses it" for name in sorted(refused))
        return replace(done, renewed=renewed, refused=lines)
