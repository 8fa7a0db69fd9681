"""The register of troubles: each has an id, how it is found, what owners are told, what to do.

A trouble is a generator of what it sees in the facts, under `@trouble`. What it neither sees nor is
unsure of is well. docs/alerts.md has them as a table; a test compares the two.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent.errors import CredentialsRefused, CreditUsedUp, ModelNotFound
from agent.messages import count
from agent.models.recovery import Failing
from agent.money.costs import format_usd
from agent.network import in_words
from gateway.access.web_door import called
from gateway.agent_ports.budgets import BudgetUse
from gateway.settings.tree import AlertSettings
from gateway.storage.reports.health import GivenUp, Waiting
from gateway.supervision.accounts import Supervised
from gateway.supervision.silence import AccountHealth

UNREACHABLE_S = 120.0
"""So long an account may be connecting: a connection that comes back at once is no trouble."""
FAILING_S = 300.0
LEAST_FAILURES = 2
OVERDUE_S = 300.0
"""Age of an answer that waits to be shown."""
DATABASE_AFTER_S = 30.0
"""A fail-over of PostgreSQL takes less."""
LOW_SHARE = 0.8
ROOMIER = 1.2
"""Times the least room there has to be before a full disk is over."""
DAY_S, HOUR_S = 86_400.0, 3_600.0

Account = tuple[str, str]
Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Models:
    """How the models of this process stand, by their labels.

    Attributes:
        answered: Those whose newest call was answered.
        accepted: Those whose key was taken last.
        line: Those of the configured that answer people.
    """

    configured: frozenset[str] = frozenset()
    failing: Mapping[str, Failing] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()
    line: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Stored:
    """What the database says.

    Attributes:
        unsent: Answers that wait, by account; without what tells of troubles.
        given_up: Dead letters of the last day.
        strangers: Those who ask to be let in, and whom nobody has answered.
        budgets: Those that are spent by `LOW_SHARE` or more.
        makes_backups: Whether this replica does: the one of all that has run for longest.
    """

    unsent: Mapping[Account, Waiting] = field(default_factory=dict)
    given_up: Sequence[GivenUp] = ()
    strangers: int = 0
    budgets: Sequence[BudgetUse] = ()
    makes_backups: bool = True


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What the operator's own files say.

    Attributes:
        backup_s: For how long there has been no new backup, where that is too long; 0 where there
            never was one, and it is too early to say; None where all is well.
        refused: The settings file that a reload did not take, and its first mistake; None where
            the newest one was taken.
    """

    backup_s: float | None = None
    refused: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AlertFacts:
    """What there is to judge by; one look of one process.

    Attributes:
        adapters: By `platform:account`, with the number of a further connection behind it; each
            with the seconds that it has been without a connection, None where it has or needs none.
        accounts: How what they send goes.
        room: Free bytes of each disk, by a folder on it; None where it cannot be seen.
        database: Why nothing could be stored, and for how many seconds; None where all was.
        stored: None where the database cannot be read.
    """

    settings: AlertSettings
    adapters: Mapping[str, tuple[Supervised, float | None]] = field(default_factory=dict)
    accounts: Mapping[Account, AccountHealth] = field(default_factory=dict)
    models: Models = Models()
    room: Mapping[Path, int | None] = field(default_factory=dict)
    database: tuple[str, float] | None = None
    stored: Stored | None = None
    upkeep: Upkeep = Upkeep()


@dataclass(frozen=True, slots=True)
class Evidence:
    """A trouble that is there.

    Attributes:
        subject: What has it.
        values: What the text says beside that.
        since_s: How long ago it began.
    """

    subject: str
    values: Mapping[str, str] = field(default_factory=dict)
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Unsure:
    """Nobody can tell now whether it is there; an open alert about it stays as it is."""

    subject: str


Look = Callable[[AlertFacts], Iterator[Evidence | Unsure]]


@dataclass(frozen=True, slots=True)
class Trouble:
    """A kind of trouble.

    Attributes:
        id: Stays the same from version to version; also the anchor in docs/operations.md.
        begin: What is told; `{subject}` and the values of what was seen stand in it.
        over: What is told at its end; empty for what owners end themselves, or what ends by itself.
        quiet_s: How long nobody may have seen it before it is over.
        announced: Owners are told in their direct chats anyhow, by what found it: only chats that
            `alerts.to` names are told by the alert.
    """

    id: str
    level: Level
    begin: str
    over: str
    remedy: str
    quiet_s: float
    announced: bool
    look: Look = field(compare=False)


TROUBLES: dict[str, Trouble] = {}
"""By id."""


def trouble(  # noqa: PLR0913 - what a trouble is
    name: str,
    begin: str,
    *,
    over: str = "",
    remedy: str,
    level: Level = "error",
    quiet_s: float = 60.0,
    announced: bool = False,
) -> Callable[[Look], Look]:
    """Register a kind of trouble."""

    def register(look: Look) -> Look:
        if name in TROUBLES:
            raise ValueError(f"two troubles are called {name}")
        TROUBLES[name] = Trouble(name, level, begin, over, remedy, quiet_s, announced, look)
        return look

    return register


@trouble(
    "adapter-stopped",
    "{subject} does not work: {reason}",
    over="{subject} works again",
    remedy="do what the reason says. An intent, a scope or a mode is switched on at the platform:"
    " then run `parley adapter restart NAME`. A refused token is replaced where it is kept: in"
    " parley.yaml, which is read again when it is saved, or where its reference points, then run"
    " `parley config reload --secrets`",
    quiet_s=120.0,
)
def _stopped(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    for name, (state, connecting_s) in facts.adapters.items():
        if state.stopped is not None:
            ends = state.attempts.asked_until or "it has stopped"
            yield Evidence(name, {"reason": f"{state.stopped}; {ends}"})
        elif connecting_s is not None:
            yield Unsure(name)


@trouble(
    "adapter-unreachable",
    "{subject} has had no connection for {minutes}: {reason}",
    over="{subject} is connected again",
    remedy="where the reason names another program, stop that one; if you cannot find it, revoke"
    " the token and enter the new one. Else look whether this machine reaches the platform, and at"
    " its status page. Parley tries again by itself",
    quiet_s=120.0,
)
def _unreachable(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    for name, (state, connecting_s) in facts.adapters.items():
        if state.stopped is None and connecting_s is not None:
            if connecting_s >= UNREACHABLE_S:
                reason = state.trouble or "the platform does not answer"
                yield Evidence(name, _minutes(connecting_s, reason=reason), connecting_s)
            else:
                yield Unsure(name)


@trouble(
    "adapter-silent",
    "{subject} takes no messages: {waiting} waiting, none taken for {minutes}; last error:"
    " {reason}",
    over="{subject} takes messages again",
    remedy="a status of 500 and above is the platform's trouble, or that of a proxy in front of it:"
    " look at its status page. Else look whether this machine reaches the platform. What waits is"
    " sent once it does",
    quiet_s=120.0,
)
def _silent(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    for account, health in facts.accounts.items():
        name = ":".join(account)
        if health.silent_s is None:
            if health.waiting and health.last_sent_s is None:
                # After a start: it may be as silent as before.
                yield Unsure(name)
            continue
        if facts.stored is None:
            yield Unsure(name)
        # What tells of a trouble and cannot be shown is no trouble of its own.
        elif (waiting := facts.stored.unsent.get(account)) is not None:
            answers, reason = count(waiting.count, "answer"), health.last_error or "none yet"
            values = _minutes(health.silent_s, waiting=answers, reason=reason)
            yield Evidence(name, values, health.silent_s)


@trouble(
    "key-refused",
    "the provider refuses the key of {subject}: {reason}; {instead}",
    over="the provider no longer refuses the key of {subject}",
    remedy="put a valid key into parley.yaml, which is read again when it is saved; one that is"
    " kept elsewhere is read again by `parley config reload --secrets`",
)
def _refused(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    wrong = _of_models(facts, lambda each: _is_refused(each) and not _is_broke(each))
    for each in wrong:
        # A key that is taken is none that is refused, whatever else its model lacks.
        if isinstance(each, Evidence) or each.subject not in facts.models.accepted:
            yield each


@trouble(
    "money-gone",
    "the account behind {subject} has no credit left: {reason}",
    over="{subject} is no longer refused for lack of credit",
    remedy="add credit at the provider, or put another key into the settings",
)
def _broke(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_models(facts, _is_broke)


@trouble(
    "model-failing",
    "{subject} has failed {lasting}: {reason}",
    over="{subject} answers again",
    remedy="a model that is not found has another name, or its provider has withdrawn it: correct"
    " `model.name`, or the fallback's `name`. Where the reason names another setting, correct that."
    " Else look at the provider's status page, and name another model below `fallbacks`",
)
def _failing(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_models(facts, lambda each: not _is_refused(each) and _lasts(each))


def _is_refused(failing: Failing) -> bool:
    return isinstance(failing.failure, CredentialsRefused)


def _is_broke(failing: Failing) -> bool:
    return isinstance(failing.failure, CreditUsedUp)


def _lasts(failing: Failing) -> bool:
    """Return whether it is no passing failure; a name that nobody knows is none from the first."""
    if isinstance(failing.failure, ModelNotFound):
        return True
    return failing.times >= LEAST_FAILURES and failing.for_s >= FAILING_S


def _of_models(facts: AlertFacts, is_it: Callable[[Failing], bool]) -> Iterator[Evidence | Unsure]:
    models = facts.models
    for label in sorted(models.configured):
        failing = models.failing.get(label)
        if failing is not None and is_it(failing):
            reason = str(failing.failure) or in_words(failing.failure)
            others = " or ".join(sorted(models.answered & models.line))
            values = {
                "reason": reason,
                "instead": f"{others or 'no other model'} answers instead",
                "lasting": f"for {_minutes(failing.for_s)['minutes']}"
                if failing.for_s >= FAILING_S
                else "at once",
            }
            yield Evidence(label, values, failing.for_s)
        elif label not in models.answered and not (failing and _is_refused(failing)):
            # An answer shows that it is over, or another verdict on key and credit; a passing
            # failure or a restart does not.
            yield Unsure(label)


@trouble(
    "budget-low",
    "{subject} has used {share} of today's budget ({used} of {limit}; {whose})",
    remedy="`parley usage --by sender` shows who spends it; raise `budget.*` if that is as it"
    " should be",
    level="warning",
)
def _low(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_budgets(facts, is_used_up=False)


@trouble(
    "budget-used-up",
    "{subject} has used up today's budget ({used} of {limit}; {whose}); it resets at {until}",
    over="there is room in the budget of {subject} again",
    remedy="wait, or raise `budget.*`; `parley usage --by sender` shows who spent it",
)
def _used_up(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_budgets(facts, is_used_up=True)


def _of_budgets(facts: AlertFacts, *, is_used_up: bool) -> Iterator[Evidence | Unsure]:
    for each in facts.stored.budgets if facts.stored else ():
        if each.refuses == is_used_up:
            values = {
                "share": f"{each.share:.0%}",
                "used": format_usd(each.used_usd),
                "limit": format_usd(each.limit.usd),
                "until": f"{each.until:%H:%M} {each.until.tzinfo}",
                "whose": _whose(each),
            }
            sender = each.limit.sender
            yield Evidence(called(sender) if sender else "everybody together", values)


def _whose(budget: BudgetUse) -> str:
    if budget.limit.sender:
        return "the limit of each person"
    if budget.top is None:
        return "most by work in the background"
    who, usd = budget.top
    return f"most by {called(who)}: {format_usd(usd)}"


@trouble(
    "answer-dead",
    "{count} on {subject} could not be shown and was given up",
    remedy="run `parley dead-letters list`, then `retry` or `drop`",
    level="warning",
    announced=True,
)
def _answers(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_letters(facts, "send", "answer")


@trouble(
    "message-dead",
    "{count} on {subject} got no answer and was given up",
    remedy="run `parley dead-letters list`, then `retry` or `drop`; `parley logs --level error`"
    " says why",
    level="warning",
)
def _messages(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_letters(facts, "turn", "question")


@trouble(
    "update-set-aside",
    "{count} on {subject} could not be taken and was set aside",
    remedy="`parley logs --event update_quarantined` says why; its sender may send it again",
    level="warning",
)
def _updates(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    return _of_letters(facts, "update", "update")


def _of_letters(facts: AlertFacts, kind: str, noun: str) -> Iterator[Evidence | Unsure]:
    for each in facts.stored.given_up if facts.stored else ():
        if each.kind == kind:
            yield Evidence(each.account, {"count": count(each.letters, noun)})


@trouble(
    "disk-full",
    "only {free} are free on the disk of {subject}",
    over="there is room on the disk of {subject} again",
    remedy="make room: on a full disk nothing is stored, and messages wait at the platforms."
    " `retention.*` keeps less, `parley db compact` gives back what is unused",
)
def _full(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    least = facts.settings.disk_free_bytes
    for place, free in facts.room.items():
        if free is None:
            yield Unsure(str(place))
        elif free < least:
            yield Evidence(str(place), {"free": f"{free / 1e6:,.0f} MB"})
        elif free < least * ROOMIER:
            yield Unsure(str(place))


@trouble(
    "outbox-old",
    "{count} for {subject} waiting to be shown, the oldest for {minutes}",
    over="no answer for {subject} waits any more",
    remedy="`parley logs --level warning` has what the platform says; what cannot be sent becomes"
    " a dead letter",
    quiet_s=120.0,
)
def _old(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    for account, waiting in facts.stored.unsent.items() if facts.stored else ():
        name, health = ":".join(account), facts.accounts.get(account)
        # Rows of accounts that are switched off wait for them, and nobody is to be told.
        if health is None or waiting.oldest_s < OVERDUE_S:
            continue
        if health.silent_s is not None:
            # That is told already: `adapter-silent`.
            yield Unsure(name)
        else:
            values = _minutes(waiting.oldest_s, count=count(waiting.count, "answer"))
            yield Evidence(name, values, waiting.oldest_s)


@trouble(
    "database-down",
    "nothing can be stored: {reason}",
    over="messages are stored again",
    remedy="look at the disk or at the database server; platforms send again what was not stored",
)
def _down(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    if facts.database is not None:
        reason, for_s = facts.database
        yield (
            Evidence("the database", {"reason": reason}, for_s)
            if (for_s >= DATABASE_AFTER_S)
            else Unsure("the database")
        )


@trouble(
    "stranger-asks",
    "somebody asks to be let in: {count} waiting",
    remedy="`/pair` in a chat with the bot, or `parley pair list`, then `approve` or `deny`",
    level="note",
    announced=True,
)
def _strangers(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    if facts.stored and facts.stored.strangers:
        yield Evidence("access", {"count": f"{facts.stored.strangers:,}"})


@trouble(
    "backup-overdue",
    "there has been no new backup for {hours}",
    over="there is a new backup",
    remedy="`parley logs --event 'backup_*'` says why; `parley backup` makes one",
    level="warning",
)
def _backup(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    age_s = facts.upkeep.backup_s
    if facts.stored is not None and not facts.stored.makes_backups:
        yield Unsure("backup")
    elif age_s:
        yield Evidence("backup", {"hours": count(round(age_s / HOUR_S), "hour")})
    elif age_s is not None:
        # Else it would be over with each restart.
        yield Unsure("backup")


@trouble(
    "settings-refused",
    "{subject} was changed and is not used: {reason}",
    over="{subject} is used again",
    remedy="`parley config check` names each mistake. Parley goes on with the settings of before,"
    " but would not start with these",
    level="warning",
)
def _settings(facts: AlertFacts) -> Iterator[Evidence | Unsure]:
    if facts.upkeep.refused is not None:
        file, reason = facts.upkeep.refused
        yield Evidence(file, {"reason": reason})


def _minutes(seconds: float, **values: str) -> dict[str, str]:
    minutes = round(seconds / 60)
    return {"minutes": count(minutes, "minute") if minutes else "less than a minute", **values}


OF_DATABASE = frozenset({
    "adapter-silent",
    "budget-low",
    "budget-used-up",
    "answer-dead",
    "message-dead",
    "update-set-aside",
    "outbox-old",
    "stranger-asks",
    "backup-overdue",
})
"""What cannot be looked at without the database: open alerts of these stay as they are then."""
