"""Whether people reach the bot, and only those who may."""

from collections.abc import Iterator, Mapping

from adapters.registry import account_types
from adapters.web.platform import is_private_way
from gateway.access.policy import Access, Owners
from gateway.alerts.troubles import TROUBLES
from gateway.doctor.checks import HANGS, OF_OUTCOMES, Examined, Level, Sight, check
from gateway.storage.people.members import newest_direct_chat
from gateway.storage.queue import alerts
from gateway.storage.reports import health
from gateway.storage.schema import iso_time
from gateway.supervision.accounts import WORKING

LEVELS: Mapping[str, Level] = {"error": "wrong", "warning": "warning", "note": "note"}
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@check(
    "platform-on",
    "People can reach the bot",
    why="Without a platform or the web chat, nobody can write to it.",
    remedy="Set a token below `platforms`, or `web.enabled: true`.",
)
def _on(examined: Examined) -> Iterator[Sight]:
    if not examined.settings.platforms.is_any_on and not examined.settings.web.enabled:
        yield Sight("wrong", "no platform has a token, and the web chat is off")


@check(
    "platform-tokens",
    "Each platform accepts its token, and lets the bot do its work",
    why="With a wrong token nothing comes in; with a missing switch or scope, only part does.",
    remedy="The line names the setting, or the page where it is switched on.",
    needs="answers",
)
def _tokens(examined: Examined) -> Iterator[Sight]:
    for name, report in (examined.accounts or {}).items():
        yield Sight(OF_OUTCOMES[report.outcome], f"{name}: {report.text}")
        for lack in report.lacks:
            yield Sight("warning", f"{name}: {lack}")


@check(
    "gateway-answers",
    "The running gateway answers",
    why="While it hangs, nobody is answered, and none of its own figures can be looked at.",
    remedy="`parley logs` ends with what it did last. If it does not recover, end it with `kill -9`"
    " and start it again: nothing is lost, and unfinished turns go on.",
)
def _hangs(examined: Examined) -> Iterator[Sight]:
    if examined.running is not None and HANGS in examined.running:
        yield Sight("wrong", str(examined.running[HANGS]))


@check(
    "platform-connected",
    "Each platform is connected",
    why="Messages wait there, or are lost if the platform does not keep them.",
    remedy="Do what the line says: it has what the platform answered.",
    needs="gateway",
)
def _connected(examined: Examined) -> Iterator[Sight]:
    states = _part(examined, "adapters")
    for name, state in states.items():
        kind, _, reason = str(state).partition(": ")
        if kind == "connecting":
            remedy = "It is tried again. Where the line names another program, stop that one, or"
            remedy += " revoke the token; else look whether this machine reaches the platform."
            yield Sight("warning", f"{name} is not connected: {reason or 'no answer yet'}", remedy)
        elif state not in WORKING:
            yield Sight("wrong", f"{name}: {state}")


@check(
    "platform-heard",
    "Each platform takes what is sent",
    why="Answers are made and paid for, and nobody sees them.",
    remedy="`parley logs --level warning` has what the platform says; what waits is sent later.",
    needs="gateway",
)
def _heard(examined: Examined) -> Iterator[Sight]:
    for name, each in _part(examined, "accounts").items():
        if isinstance(each, Mapping) and each.get("silent_s") is not None:
            for_s = f"{each['silent_s']:,.0f} s"
            error = f"; last error: {each['last_error']}" if each.get("last_error") else ""
            yield Sight("wrong", f"{name} has taken no message for {for_s}, and some wait{error}")


@check(
    "gateway-ready",
    "The running gateway can do its work",
    why="Otherwise it can neither store nor show messages.",
    remedy="The line says what it lacks.",
    needs="gateway",
)
def _ready(examined: Examined) -> Iterator[Sight]:
    if (state := examined.said.get("database")) != "writable":
        yield Sight("wrong", f"its database is {state}")
    if examined.said.get("descriptors") == "scarce":
        yield Sight("wrong", "it has too few file descriptors left")


def _part(examined: Examined, name: str) -> Mapping[str, object]:
    found = examined.said.get(name)
    return found if isinstance(found, Mapping) else {}


@check(
    "owner-there",
    "Somebody owns the bot",
    why="Only an owner can let others in, approves dangerous calls, and hears of trouble.",
    remedy="Send the bot the code that the start prints, or set `access.owners`.",
    needs="database",
)
def _owner(examined: Examined) -> Iterator[Sight]:
    named = bool(examined.settings.access.owners)
    if (
        examined.settings.platforms.is_any_on
        and not named
        and not health.has_owner(examined.database)
    ):
        yield Sight("warning", "nobody is an owner yet")


@check(
    "owners-reachable",
    "Owners are on platforms that run",
    why="An owner on a platform without a token is never told anything.",
    remedy="Correct `access.owners`, or set that platform's token.",
)
def _reachable(examined: Examined) -> Iterator[Sight]:
    for owner in examined.settings.access.owners:
        if not _runs(examined, name := owner.partition(":")[0]):
            yield Sight("warning", f"{owner} is an owner, and {name} is off")


def _runs(examined: Examined, platform: str) -> bool:
    return any(each.is_on for each in examined.settings.platforms.accounts(platform))


@check(
    "alerts-heard",
    "Owners hear of trouble",
    why="Otherwise nobody notices that something is wrong until an answer is missing.",
    remedy="Write to the bot directly once; if you have, correct your id in `access.owners`. Or"
    " name a chat in `alerts.to`; `parley alerts test` tries it.",
    needs="database",
)
def _heard_of_troubles(examined: Examined) -> Iterator[Sight]:
    settings = examined.settings
    if not settings.alerts.enabled:
        yield Sight("note", "alerts.enabled is false", "Set `alerts.enabled: true`.")
        return
    if settings.alerts.to:
        return
    accounts = {
        (name, each.name)
        for name in account_types()
        for each in settings.platforms.accounts(name)
        if each.is_on
    }
    owners = Owners(Access(settings.access, settings.web), dict.fromkeys(accounts, list))
    for platform, sender in owners.everybody(examined.database):
        on = _runs(examined, platform)
        if on and not newest_direct_chat(examined.database, platform, sender, accounts):
            yield Sight("warning", f"{platform}:{sender} has no direct chat with the bot")


@check(
    "alerts-open",
    "No trouble is open",
    why="Owners were alerted, and it is not over.",
    remedy="`parley alerts` lists them.",
    needs="database",
)
def _open_troubles(examined: Examined) -> Iterator[Sight]:
    for each in alerts.found(examined.database):
        kind = TROUBLES.get(each.kind)
        remedy = f"{kind.remedy[0].upper()}{kind.remedy[1:]}." if kind else ""
        level: Level = LEVELS[kind.level] if kind else "note"
        yield Sight(level, f"{each.text}, since {iso_time(each.since)}", remedy)


@check(
    "access-closed",
    "Not everybody may use the bot",
    why="In mode `open`, anyone who finds the bot spends your money.",
    remedy="Set `access.mode: pairing`; a stranger then asks, and an owner lets them in.",
)
def _closed(examined: Examined) -> Iterator[Sight]:
    if examined.settings.access.mode == "open":
        yield Sight("warning", "access.mode is open")


@check(
    "access-listed",
    "Somebody may use the bot",
    why="With mode `allowlist` and an empty list, only owners are answered.",
    remedy="Name people below `access.PLATFORM`, or set `access.mode: pairing`.",
)
def _listed(examined: Examined) -> Iterator[Sight]:
    access = examined.settings.access
    if access.mode != "allowlist":
        return
    for name in account_types():
        if _runs(examined, name) and not access.listed(name):
            yield Sight("warning", f"{name} runs, and access.{name} lists nobody")


@check(
    "access-rate",
    "One sender cannot flood the bot",
    why="Without a rate limit, one person's script keeps everybody else waiting.",
    remedy="Set `access.rate_per_min: 60`.",
)
def _rate(examined: Examined) -> Iterator[Sight]:
    if examined.settings.access.rate_per_min == 0:
        yield Sight("warning", "access.rate_per_min is 0: any number")


@check(
    "groups-anyone",
    "In groups, only people who may use the bot are answered",
    why="`senders: anyone` answers everybody in the group, at your cost.",
    remedy="Set `senders: allowed` for that group, or a budget per sender.",
)
def _anyone(examined: Examined) -> Iterator[Sight]:
    for name, rule in examined.settings.access.groups.items():
        if rule.senders == "anyone" and examined.settings.budget.sender_daily_usd is None:
            yield Sight("warning", f"{name}: anyone, without budget.sender_daily_usd")


@check(
    "web-encrypted",
    "The web chat is encrypted in transit",
    why="Anyone in between can read what is said, and the sign-in cookie.",
    remedy="Put a TLS proxy in front of it and set `web.public_url: https://…`, or listen on"
    " 127.0.0.1.",
)
def _encrypted(examined: Examined) -> Iterator[Sight]:
    web = examined.settings.web
    if not web.enabled or web.host in LOOPBACK:
        return
    if web.public_url is None or not is_private_way(web.public_url):
        yield Sight("warning", f"web.host is {web.host}, and no https:// address is named")
