"""What is found out at the start, before "ready" is said: are keys and tokens taken?

The models are asked when their windows are (gateway/wiring.py). A platform shows it by the
first steps of its adapter, which has begun to receive by then; one that has taken its token is
asked what else its app lacks.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import structlog

from adapters.registry import BUILT_IN, AccountReport, AccountSettings, check
from agent.errors import CredentialsRefused, CreditUsedUp, ModelError
from agent.models.base import ChatModel
from agent.models.recovery import Rests
from agent.network import in_words
from agent.safety.redaction import printable
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
