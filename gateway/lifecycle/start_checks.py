"""What is found out at the start, before "ready" is said: are keys and tokens taken?

The models are asked when their windows are (gateway/wiring.py). A platform shows it by the
first steps of its adapter, which has begun to receive by then: nothing is asked twice.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from adapters.registry import BUILT_IN
from agent.errors import CredentialsRefused, CreditUsedUp, ModelError
from agent.models.base import ChatModel
from agent.models.recovery import Rests
from agent.safety.redaction import printable
from gateway.lifecycle.supervision import Supervised

log = structlog.get_logger()

PLATFORMS_WITHIN_S = 2.5
"""Longest wait for all platforms together; with that for the models (`wiring.LOOK_UP_S`) a start
is held up by less than 5 s."""
LOOK_AGAIN_S = 0.01

Outcome = Literal["accepted", "refused", "no_credit", "unreachable", "not_checked"]
WRONG: frozenset[Outcome] = frozenset({"refused", "no_credit"})
"""Somebody has to change something; the others are fine, or are tried again."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one key or token.

    Attributes:
        subject: The model and which of its keys ("claude-sonnet-5 (key 2)"), or
            `platform:account`.
        text: For the operator; where something is wrong it names the setting.
    """

    subject: str
    outcome: Outcome
    text: str


def of_model(model: ChatModel, setting: str, failure: Exception | None, *, asked: bool) -> Finding:
    """Return what a question about a model has shown, and log it.

    Args:
        model: The model, with one of its keys.
        setting: Where the key stands.
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
            outcome, text = "not_checked", "not checked: its server cannot be asked"
    return _logged(Finding(model.label, outcome, text))


def note(rests: Rests, findings: Sequence[Finding]) -> None:
    """Take note of how the keys of models stand, for those who are told of it later."""
    for each in findings:
        match each.outcome:
            case "accepted":
                rests.note_accepted(each.subject)
            case "refused":
                rests.note_failure(each.subject, CredentialsRefused("it was refused at the start"))
            case "no_credit":
                rests.note_failure(each.subject, CreditUsedUp("so it was said at the start"))


async def of_platforms(adapters: Sequence[Supervised], stop: asyncio.Event) -> list[Finding]:
    """Wait until each platform has taken or refused its token, and log which; within 2.5 s.

    The web chat has no token. Returns early when the gateway is to stop.
    """
    platforms = [each for each in adapters if each.adapter.platform != BUILT_IN]
    end_at = time.monotonic() + PLATFORMS_WITHIN_S
    # Adapters tell their state when they are asked.
    while not (stop.is_set() or all(each.is_settled for each in platforms)):
        if time.monotonic() >= end_at:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    return [_logged(_of_platform(each)) for each in platforms]


def _of_platform(supervised: Supervised) -> Finding:
    if supervised.stopped is not None:
        return Finding(supervised.name, "refused", supervised.stopped)
    if supervised.connected:
        return Finding(supervised.name, "accepted", "connected")
    if supervised.is_standby:
        return Finding(supervised.name, "not_checked", "another replica receives for it")
    why = f" ({supervised.trouble})" if supervised.trouble else ""
    return Finding(supervised.name, "unreachable", f"not connected yet{why}; it is tried again")


def _logged(finding: Finding) -> Finding:
    level = logging.WARNING if finding.outcome == "unreachable" else logging.INFO
    log.log(
        logging.ERROR if finding.outcome in WRONG else level,
        "credentials_checked",
        subject=finding.subject,
        outcome=finding.outcome,
        reason=finding.text,
    )
    return finding


def lines(findings: Sequence[Finding]) -> list[str]:
    """Return what the start prints: first what somebody has to change."""
    marks = {"refused": "✗", "no_credit": "✗", "unreachable": "…", "not_checked": "?"}
    ordered = sorted(findings, key=lambda each: each.outcome not in WRONG)
    return [
        printable(f"  {marks.get(each.outcome, '✓')} {each.subject}: {each.text}")
        for each in ordered
    ]
