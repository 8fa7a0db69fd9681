"""Decide whether a tool call may run: one table, and one pure function that evaluates it.

The strictest of all rows that match sender, tool, taint and destination decides. So the order of
rows does not matter, and an additional row can only restrict. An unknown fact matches every row; a
call that no row matches is denied.

A turn is tainted once it has read content by an author without rights: a page, a server's answer,
an attached file, pasted text. Quoted people count as speakers instead.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import orjson

from agent.ports import Origin
from agent.settings import PolicyRule, ToolSettings
from agent.tools.links import FETCH_URL, Trail, canonical, host_of

Verdict = Literal["allow", "ask", "ask_owner", "deny"]
"""From the most lenient to the strictest."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Role = Literal["owner", "member", "guest"]
ROLES = frozenset(get_args(Role))
Destination = Literal["none", "listed", "named", "linked", "new"]
"""Target of a call that fetches or reads elsewhere: a host listed in the settings, an address named
in a person's message, one of the first `MOST_LINKS` links that a turn follows from fetched pages,
or any other address. none: the call contains no address."""
DESTINATIONS = frozenset(get_args(Destination))
ApprovalMode = Literal["side_effects", "always", "never"]
EVERYTHING = "*"
SIDE_EFFECT, WORLD, NOTES = "@side_effect", "@world", "@notes"
DELICATE, FETCH, RECALLED = "@delicate", "@fetch", "@recalled"
"""Classes of calls. @side_effect: with side effects; @world: touch the outside world, even only by
reading; @notes: write notes for later prompts; @delicate: write a note with an address, command,
account or phone number; @fetch: to an address, by `fetch_url` or in arguments of a tool that reads
elsewhere; @recalled: of such a tool after another one returned outside content."""
FETCHING = frozenset({FETCH_URL})
"""A call of these tools without an address counts as one to a new address."""
MOST_LINKS = 5
"""Links of fetched pages that a tainted turn may follow without approval."""


class Rule(PolicyRule):
    """One row of the table; `name` is "default.…" or the key of the setting that defines it.

    `tool` is a name, a pattern ("mcp_*"), a class ("@side_effect") or "*"; "!" before
    comma-separated names selects all other tools. `role` matches any speaker of the turn; `group`
    is "platform:chat", "platform:*" for all groups there, or "*", which includes direct chats.
    """

    name: str


NO_RULE = Rule(name="no rule", then="deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a call before it runs.

    Attributes:
        roles: Roles of all speakers of the turn; empty if unknown.
        tainted: None if unknown.
        group: "platform:chat"; empty in a direct chat.
    """

    tool: str
    classes: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()
    tainted: bool | None = None
    destination: str = "none"
    group: str = ""


def decide(rules: Iterable[Rule], facts: Facts) -> Rule:
    """Return the strictest matching row; of equally strict rows the first by name."""
    found = (rule for rule in rules if _matches(rule, facts))
    return min(found, key=lambda it: (-VERDICTS.index(it.then), it.name), default=NO_RULE)


def _matches(rule: Rule, facts: Facts) -> bool:
    match rule.tool[:1]:
        case "@":
            is_meant = rule.tool in facts.classes
        case "!":
            is_meant = facts.tool not in rule.tool[1:].split(",")
        case _:
            is_meant = fnmatchcase(facts.tool, rule.tool)
    roles, place, group = facts.roles, facts.destination, facts.group
    return (
        is_meant
        and (rule.role in {EVERYTHING, *roles} or not roles or not roles <= ROLES)
        and (rule.tainted is None or facts.tainted is None or rule.tainted is facts.tainted)
        and (rule.destination in {EVERYTHING, place} or place not in DESTINATIONS)
        and (rule.group == EVERYTHING or (bool(group) and fnmatchcase(group, rule.group)))
    )


SKILLS = "skill_manage"
FOR_OWNERS = frozenset({SKILLS})
"""Tools whose effects reach all users: only owners may call and approve them."""
ANYWHERE = Rule(name="default.talk", then="allow")
DEFAULT_RULES: tuple[Rule, ...] = (
    ANYWHERE,
    Rule(name="default.guests", then="deny", tool=WORLD, role="guest"),
    Rule(name="default.guests-notes", then="deny", tool=NOTES, role="guest"),
    Rule(name="default.skills", then="ask_owner", tool=SKILLS),
    Rule(name="default.skills-guests", then="deny", tool=SKILLS, role="guest"),
    Rule(name="default.skills-members", then="deny", tool=SKILLS, role="member"),
    Rule(name="default.notes-delicate", then="ask", tool=DELICATE),
    Rule(name="tainted-notes", then="ask", tool=NOTES, tainted=True),
    Rule(name="tainted-fetch", then="ask", tool=FETCH, tainted=True, destination="new"),
    Rule(name="tainted-recalled", then="ask", tool=RECALLED, tainted=True),
    Rule(name="tainted-files", then="ask", tool="send_file", tainted=True),
    Rule(name="tainted-acts", then="ask", tool=SIDE_EFFECT, tainted=True),
)
"""Rows in addition to `tools.approval`; `tools.policy.without` removes rows for tainted turns."""

_OF_MODE: Mapping[ApprovalMode, tuple[Rule, ...]] = {
    "side_effects": (Rule(name="tools.approval", then="ask", tool=SIDE_EFFECT),),
    "always": (
        Rule(name="tools.approval", then="ask", tool=SIDE_EFFECT),
        Rule(name="tools.approval.world", then="ask", tool=WORLD),
    ),
    "never": (),
}


def build_table(
    mode: ApprovalMode,
    own: Sequence[Rule] = (),
    without: Iterable[str] = (),
    *,
    by_owners: bool = False,
) -> tuple[Rule, ...]:
    """Return all rows that apply; `without` names default rows to omit."""
    # With `never`, skills need no approval either, unless a turn is tainted.
    left_out = {*without, *(["default.skills"] if mode == "never" else [])}
    kept = [rule for rule in DEFAULT_RULES if rule.name not in left_out]
    rows = (*kept, *_OF_MODE[mode], *own)
    if not by_owners:
        return rows
    of_owners = {"then": "ask_owner"}
    return tuple(row.model_copy(update=of_owners) if row.then == "ask" else row for row in rows)


def table_of_settings(tools: ToolSettings) -> tuple[Rule, ...]:
    """Return the policy table defined by the settings."""
    own = [
        Rule(name=f"tools.policy.rules[{n}]", **row.model_dump())
        for n, row in enumerate(tools.policy.rules)
    ]
    by_owners = tools.approval_by == "owners"
    return build_table(tools.approval, own, tools.policy.without, by_owners=by_owners)


def any_taints(origins: Iterable[Origin]) -> bool:
    """Return whether any of the origins taints a turn."""
    return any(origin.kind != "quoted" for origin in origins)


SHOWN_SOURCES = 5
_KINDS = {
    "page": "the page of {}",
    "server": "the server {}",
    "tool": "what {} returned",
    "person": "what {} wrote",
    "file": "the file {}",
    "pasted": "text that you pasted",
}


def describe_sources(origins: Iterable[Origin]) -> str:
    """Describe the origins that taint a turn.

    Strangers choose the names: format them as code, without characters that could end it.
    """
    found = sorted({each for each in origins if each.kind != "quoted"})
    named: dict[str, None] = {}
    for kind, which in found:
        shown = "".join(char for char in which if char.isprintable() and char != "`")
        named[_KINDS[kind].format(f"`{shown[:100] or '?'}`")] = None
    left = len(named) - SHOWN_SOURCES
    return ", ".join([*[*named][:SHOWN_SOURCES], *([f"{left} more"] if left > 0 else [])])


def destination(url: str, hosts: Iterable[str], trail: Trail, *, may_follow: bool) -> Destination:
    """Classify the destination of a call to `url`, which the model wrote.

    A listed host's page contributes no links: the model may have made up its address without
    approval, and some pages echo text from their address.
    """
    address = canonical(url)
    if is_listed(host_of(address), hosts):
        return "listed"
    if address in trail.named:
        return "named"
    page = trail.links.get(address)
    return "linked" if may_follow and page is not None and not is_listed(page, hosts) else "new"


def is_listed(host: str, hosts: Iterable[str]) -> bool:
    """Return whether the settings list a host: "example.com", or "*.example.com" for subdomains."""
    known = [each.lower() for each in hosts]
    return host in known or any(each[:2] == "*." and host.endswith(each[1:]) for each in known)


_PLACES = frozenset({
    "account", "bucket", "channel", "chat", "database", "email", "host", "owner", "project",
    "recipient", "recipients", "repo", "repository", "table", "to", "uri", "url",
})  # fmt: skip
_PROSE = frozenset({"body", "comment", "content", "message", "subject", "text", "title"})
"""Arguments that only people read, at any destination."""
_READERS = frozenset({
    "cat", "df", "du", "grep", "head", "id", "ls", "pwd", "stat", "tail", "uname", "wc", "whoami",
})  # fmt: skip
"""Programs that only read with any options; `sort -o`, `date -s`, `file -C`, `tree -o`, `diff -l`
and `rg --pre` write or run programs."""
_PLAIN = re.compile(r"([a-z]+)(?: +[\w./:@,+-]+)*")
"""A program on the PATH and words, without characters that a shell interprets or splits at."""


def approval_key(
    tool: str, arguments: Mapping[str, Any], *, tainted: bool, own_records: Collection[str] = ()
) -> str:
    """Return a key shared by all calls that one approval for the conversation covers.

    Calls of `own_records`, which modify only the sender's record, share one key. In an untainted
    turn so do calls of `write_file`, which stays in the workspace, and calls of `terminal` with the
    same program of `_READERS`. Calls to the same destination may differ in prose. All others must
    be identical. An approval from before a taint covers nothing after it.
    """
    if tool in own_records:
        return _text({"own": True}, tainted=tainted)
    if not tainted and tool == "write_file":
        return "files"
    if not tainted and tool == "terminal":
        plain = _PLAIN.fullmatch(str(arguments.get("command", "")))
        if plain and plain[1] in _READERS:
            return f"program {plain[1]}"
    has_place = tool not in {"terminal", "write_file"} and any(
        name in _PLACES or name.endswith("_id") for name in arguments
    )
    bound = {
        name: value for name, value in arguments.items() if not has_place or name not in _PROSE
    }
    return _text({"like": bound}, tainted=tainted)


def _text(value: Mapping[str, Any], *, tainted: bool) -> str:
    return orjson.dumps([tainted, value], option=orjson.OPT_SORT_KEYS).decode()
