"""Whether people and bot reach each other, and whether an owner is notified of problems."""

from collections.abc import Iterator
from functools import partial

from agent.messages import count
from gateway.access.policy import Access, Owners
from gateway.findings.database import minutes
from gateway.findings.finding import Evidence, Finding, Sight, Unsure
from gateway.storage.people.members import newest_direct_chat
from gateway.storage.queue import outbox
from gateway.storage.reports import health
from gateway.supervision.accounts import WORKING

UNREACHABLE_S = 120.0
"""Seconds that an account may be connecting before it counts as a problem."""
LOG, UNSENT = "log?level=warning", "conversations?state=unsent"
OF_ACCOUNTS = ("adapter-stopped", "adapter-unreachable", "adapter-silent")
_of_account = partial(Finding, level="error", blocks=True, told=True)
"""Creates findings about accounts."""


@Finding("gateway-answers", level="error", needs="nothing")
def _hangs(facts: Evidence) -> Iterator[Sight]:
    """The running gateway answers.

    Why: While it hangs, nobody is answered, and none of its own figures can be looked at.
    Remedy: `parley logs` ends with what it did last. If it does not recover, end it with `kill -9`
    and start it again: nothing is lost, and unfinished turns go on.
    """
    if facts.hangs:
        yield Sight(facts.hangs)


@_of_account("adapter-stopped", needs="answers", page=LOG)
def _stopped(facts: Evidence) -> Iterator[Sight | Unsure]:
    """Each platform accepts its token.

    Why: Messages wait there, or are lost if the platform does not keep them.
    Remedy: Do what the reason says. An intent, a scope or a mode is switched on at the platform:
    then run `parley adapter restart NAME`. A refused token is replaced where it is kept: in
    parley.yaml, which is read again when it is saved, or where its reference points, then run
    `parley config reload --secrets`.
    Text: {subject} does not work: {reason}
    Over: {subject} works again
    """
    for name, report in facts.accounts.items():
        if report.outcome == "refused":
            yield Sight(name, {"reason": report.text})
    for name, state in facts.gateway.adapters.items():
        kind, _, reason = state.partition(": ")
        if kind in {"refused", "stopped"}:
            ends = "; it has stopped" if kind == "stopped" else ""
            yield Sight(name, {"reason": f"{reason}{ends}"})
        elif kind not in WORKING:
            yield Unsure(name)


@_of_account("adapter-unreachable", needs="answers", page=LOG, after_s=UNREACHABLE_S)
def _unreachable(facts: Evidence) -> Iterator[Sight]:
    """Each platform is connected.

    Why: Messages wait there, or are lost if the platform does not keep them.
    Remedy: Where the reason names another program, stop that one; if you cannot find it, revoke the
    token and enter the new one. Else look whether this machine reaches the platform, and at its
    status page. Parley tries again by itself.
    Text: {subject} has had no connection for {minutes}: {reason}
    Over: {subject} is connected again
    """
    for name, report in facts.accounts.items():
        if report.outcome == "unreachable":
            yield Sight(name, level="warning", text=f"{name}: {report.text}")
    for name, state in facts.gateway.adapters.items():
        kind, _, reason = state.partition(": ")
        if kind == "connecting":
            for_s = facts.gateway.lasting_s.get(name, 0.0)
            reason = reason or "the platform does not answer"
            yield Sight(name, {"minutes": minutes(for_s), "reason": reason}, since_s=for_s)


@_of_account("adapter-silent", needs="gateway", page=UNSENT)
def _silent(facts: Evidence) -> Iterator[Sight | Unsure]:
    """Each platform takes what is sent.

    Why: Answers are made and paid for, and nobody sees them.
    Remedy: A status of 500 and above is the platform's trouble, or that of a proxy in front of it:
    look at its status page. Else look whether this machine reaches the platform. What waits is sent
    once it does.
    Text: {subject} takes no messages: {waiting} waiting, none taken for {minutes}; last error:
    {reason}
    Over: {subject} takes messages again
    """
    unsent = health.unsent_by_account(facts.database, outbox.NOTICES) if facts.opened else None
    for account, found in facts.gateway.accounts.items():
        name = ":".join(account)
        if found.silent_s is None:
            if found.waiting and found.last_sent_s is None:
                # After a start it may be still silent.
                yield Unsure(name)
        # An undeliverable alert is not another alert.
        elif unsent is None or account in unsent:
            waiting = found.waiting if unsent is None else unsent[account].count
            values = {"waiting": count(waiting, "answer"), "minutes": minutes(found.silent_s)}
            values["reason"] = found.last_error or "none yet"
            yield Sight(name, values, since_s=found.silent_s)


@Finding("platform-lacks")
def _lacks(facts: Evidence) -> Iterator[Sight | Unsure]:
    """Each platform lets the bot do its work.

    Why: With a missing switch or scope, only part of what is written comes in.
    Remedy: The line names the page where it is switched on.
    """
    if not facts.asked:
        yield Unsure("no platform was asked")
    for name, report in facts.accounts.items():
        yield from (Sight(f"{name}: {lack}") for lack in report.lacks)


@Finding("stranger-asks", level="note", needs="database", page="people", told=True, announced=True)
def _strangers(facts: Evidence) -> Iterator[Sight]:
    """People who ask to be let in get an answer.

    Why: They are waiting without a word.
    Remedy: `/pair` in a chat with the bot, or `parley pair list`, then `approve` or `deny`.
    Text: somebody asks to be let in: {count} waiting
    """
    if found := health.waiting(facts.database, "strangers").count:
        yield Sight("access", {"count": f"{found:,}"})


@Finding("alerts-heard", needs="database")
def _heard(facts: Evidence) -> Iterator[Sight]:
    """An owner is there and hears of trouble.

    Why: Only an owner can let others in, approves dangerous calls, and hears of trouble.
    Remedy: Send the bot the code that the start prints, or set `access.owners`; then write to it
    directly once. Or name a chat in `alerts.to`; `parley alerts test` tries it.
    """
    settings = facts.settings
    is_named = bool(settings.alerts.to) or not settings.alerts.enabled
    on = {(name, each.name) for name, each in settings.platforms.on()}
    owners = Owners(Access(settings.access, settings.web), dict.fromkeys(on, list))
    everybody = owners.everybody(facts.database)
    if on and not everybody:
        yield Sight("nobody is an owner yet")
    for platform, sender in everybody:
        if platform not in {name for name, _ in on}:
            yield Sight(f"{platform}:{sender} is an owner, and {platform} is off")
        elif not (is_named or newest_direct_chat(facts.database, platform, sender, on)):
            yield Sight(f"{platform}:{sender} has no direct chat with the bot")
