"""What stands before a tool call: may it run, does a plugin object, does a person allow it?

In this order, before the intent is journaled: whoever may not act bothers nobody with questions.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple, get_args

import orjson
import structlog

from agent.errors import ToolError
from agent.messages import ToolCall
from agent.models.arguments import read_arguments
from agent.ports import DecidedVerdict, Decision, Inquiry, InquiryReply
from agent.safety.redaction import MASK, Redactor
from agent.safety.threats import is_delicate
from agent.tools import policy
from agent.tools.addresses import RECALLING, leads_of
from agent.tools.context import Redirects, ToolContext, ToolOutcome, TurnRights
from agent.tools.policy import EVERYTHING, ApprovalMode, Destination, Facts, Rule, Ruling
from agent.tools.registry import ToolRegistry

log = structlog.get_logger()

MAX_SHOWN_CHARS = 8_000
"""Longest arguments that a person is asked about; all of them are shown.

In several messages where a platform needs that: five of Discord, three of Telegram.
"""
DENIED = "was asked and said no. Do not try this again unless you are told to"
EXPIRED = "nobody answered in time, which counts as a no. Go on without it"
NOBODY = "it needs an approval, and there is nobody here who could give it"
_BACKTICKS = re.compile("`+")
# Control characters, what is invisible or turns the direction of text, line separators, unassigned.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """For which calls a person is asked, and how they are shown.

    Attributes:
        rules: The table (agent/tools/policy.py).
        hosts: Those that `fetch_url` may lead to in a tainted turn; with "*." in front all below.
        redactor: Keeps the secrets of the settings out of the question and of the result.
        own_records: Tools that act on nothing but the record of the one who asks.
    """

    rules: Sequence[Rule] = policy.table("side_effects")
    hosts: tuple[str, ...] = ()
    redactor: Redactor = field(default_factory=Redactor)
    own_records: frozenset[str] = frozenset()

    def covered(self, call: ToolCall, rights: TurnRights) -> str:
        """Return the calls that a yes for the conversation covers, until another file or paste."""
        alike = policy.covered(
            call["function"]["name"],
            arguments_of(call),
            tainted=policy.taints(rights.read.seen),
            # In a group the records are of several people.
            own_records=() if rights.group else self.own_records,
        )
        brought = sorted(each for each in rights.read.seen if each.kind in {"file", "pasted"})
        return f"{alike}{brought}" if brought else alike

    def look(self, calls: Sequence[ToolCall], toolbox: ToolRegistry, context: ToolContext) -> None:
        """Record what the model had read when it wrote calls, and the links that they follow.

        Counted before any of them runs: they run side by side.
        """
        read = context.rights.read
        read.look()
        taking = set[str]()
        for call in calls:
            is_next = read.trail.followed < policy.MOST_LINKS
            if is_next and self._destination(call, toolbox, context, may_follow=True) == "linked":
                read.trail.followed += 1
                taking.add(call["id"])
        read.may_follow = frozenset(taking)

    @classmethod
    def of(cls, mode: ApprovalMode) -> "ApprovalRules":
        """Return the default rules of a mode."""
        return cls(policy.table(mode))

    def decision(self, call: ToolCall, toolbox: ToolRegistry, context: ToolContext) -> Ruling:
        """Return what becomes of a call."""
        return policy.decide(self.rules, self.facts(call, toolbox, context))

    def facts(self, call: ToolCall, toolbox: ToolRegistry, context: ToolContext) -> Facts:
        """Return what is known about a call."""
        name, rights = call["function"]["name"], context.rights
        may_follow = call["id"] in rights.read.may_follow
        destination = self._destination(call, toolbox, context, may_follow=may_follow)
        classes = {
            policy.SIDE_EFFECT: toolbox.effect(name) == "side_effect",
            policy.WORLD: toolbox.restricted(name),
            policy.NOTES: name == "memory" and arguments_of(call).get("action") != "list",
            policy.FETCH: destination != "none",
            policy.RECALLED: rights.read.recalled
            and destination != "listed"
            and reads_elsewhere(name, toolbox),
            policy.DELICATE: name == "memory"
            and is_delicate(str(arguments_of(call).get("content") or "")),
        }
        return Facts(
            tool=name,
            classes=frozenset(each for each, is_one in classes.items() if is_one),
            roles=rights.roles,
            tainted=policy.taints(rights.read.seen),
            destination=destination,
            group=rights.group,
        )

    def redirects(self, call: ToolCall, toolbox: ToolRegistry, context: ToolContext) -> Redirects:
        """Return the hosts to which a page may redirect a running call; links do not count here.

        The rows that name destinations decide, and what was read until then: an open redirect is a
        way out. Nobody is asked in the middle of a call, so what would be asked is refused.
        """
        rows = [policy.ANYWHERE, *(row for row in self.rules if row.destination != EVERYTHING)]

        def refused_by(url: str, /) -> str:
            facts = replace(
                self.facts(call, toolbox, context),
                destination=policy.destination(
                    url, self.hosts, context.rights.read.trail, may_follow=False
                ),
                tainted=policy.taints(context.rights.read.origins),
            )
            ruling = policy.decide(rows, facts)
            return "" if ruling.verdict == "allow" else ruling.rule

        return refused_by

    def _destination(
        self, call: ToolCall, toolbox: ToolRegistry, context: ToolContext, *, may_follow: bool
    ) -> Destination:
        name, given, trail = call["function"]["name"], arguments_of(call), context.rights.read.trail
        if name in policy.FETCHING:
            leads = [str(given.get("url"))]
        elif reads_elsewhere(name, toolbox):
            leads = list(leads_of(given))
        else:
            return "none"
        found = [policy.destination(it, self.hosts, trail, may_follow=may_follow) for it in leads]
        # A call takes one link of a page at most.
        if found.count("linked") > 1:
            return "new"
        return max(found, key=get_args(Destination).index, default="none")


def reads_elsewhere(name: str, toolbox: ToolRegistry) -> bool:
    """Whether a tool only reads and sends its arguments away: to a host, an MCP server, a plugin.

    Parley's own tools that read files and past messages stay on this machine.
    """
    if name in policy.FETCHING:
        return True
    if name in RECALLING or not toolbox.restricted(name):
        return False
    return toolbox.effect(name) != "side_effect"


class Passage(NamedTuple):
    """How a call has come out of the gate.

    Attributes:
        refused: Why it must not run, as its outcome; None where it may.
        decision: What goes on record with its intent; None where nothing does, or the question
            about it is on record.
    """

    refused: ToolOutcome | None
    decision: Decision | None = None


async def passed(
    call: ToolCall, toolbox: ToolRegistry, context: ToolContext, rules: ApprovalRules
) -> Passage:
    """Return whether a call may run.

    What was decided about a call holds for it, also where nobody would be asked any more.

    Raises:
        TurnSuspended: A person was asked, and has not answered yet.
    """
    facts = rules.facts(call, toolbox, context)
    impossible = toolbox.refusal(call, context)
    if impossible is not None and impossible.status != "refused":
        return Passage(impossible)
    ruling = policy.decide(rules.rules, facts)
    # Before anybody is asked: nobody approves what nobody may, or what a plugin forbids.
    barred = impossible or _denial(facts, ruling) or await _veto(call, context)
    if barred is not None:
        if barred.status == "vetoed":
            log.info("tool_vetoed", tool=facts.tool, tainted=facts.tainted)
            return Passage(barred, _on_record(call, facts, "veto", ""))
        log.info("tool_refused", tool=facts.tool, rule=barred.rule, tainted=facts.tainted)
        return Passage(barred, _on_record(call, facts, "deny", barred.rule))
    decision = _on_record(call, facts, ruling.verdict, ruling.rule)
    if is_asked(ruling):
        return Passage(await _asked(call, toolbox, context, rules, decision))
    people = context.services.people
    if people is not None and (decided := await people.decided(call["id"])) is not None:
        return Passage(_outcome(facts.tool, decided))
    # What merely looks at the conversation, or keeps a list of it, concerns nobody.
    return Passage(None, decision if facts.classes else None)


def _denial(facts: Facts, ruling: Ruling) -> ToolOutcome | None:
    if ruling.verdict != "deny":
        return None
    text = f"Error: {facts.tool} is not allowed here ({ruling.rule})"
    return ToolOutcome(text, "refused", ruling.rule)


async def _veto(call: ToolCall, context: ToolContext) -> ToolOutcome | None:
    name, hooks = call["function"]["name"], context.services.hooks
    veto = await hooks.before(name, arguments_of(call), context) if hooks else None
    if veto is None:
        return None
    return ToolOutcome(f"Error: {name} was not run: {veto}", "vetoed")


def _on_record(call: ToolCall, facts: Facts, verdict: DecidedVerdict, rule: str) -> Decision:
    digest = sha256(call["function"]["arguments"].encode()).hexdigest()
    return Decision(verdict, rule, digest, tuple(sorted(facts.roles)), bool(facts.tainted))


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; empty where they are none."""
    return read_arguments(call["function"]["arguments"]) or {}


def is_asked(decision: Ruling) -> bool:
    """Whether a person is asked before a tool runs."""
    return decision.verdict in {"ask", "ask_owner"}


def _definition(call: ToolCall, toolbox: ToolRegistry, covered: str) -> str:
    """Return a digest of the tool as it is offered, and of the calls of it that are like this."""
    name = call["function"]["name"]
    schemas = [schema for schema in toolbox.schemas if schema.name == name]
    # Sorted: a tool has the same digest in whatever order its schema was built.
    digest = sha256(orjson.dumps(schemas, option=orjson.OPT_SORT_KEYS))
    digest.update(covered.encode())
    return digest.hexdigest()


async def _asked(
    call: ToolCall,
    toolbox: ToolRegistry,
    context: ToolContext,
    rules: ApprovalRules,
    decision: Decision,
) -> ToolOutcome | None:
    name, origins = call["function"]["name"], context.rights.read.seen
    if context.services.people is None:
        return _denied(name, NOBODY)
    question = approval_question(call, rules.redactor)
    if question and (read := policy.sources(origins)):
        question += f"\n\nBefore asking, I read what others wrote: {read}."
    inquiry = Inquiry(
        "approval",
        context.call_id,
        name,
        question or "",
        definition=_definition(call, toolbox, rules.covered(call, context.rights)),
        askable=bool(question),
        for_owners=decision.verdict == "ask_owner",
        decision=decision,
    )
    try:
        reply = await context.services.people.ask(inquiry)
    except ToolError as error:
        return _denied(name, str(error))
    return _outcome(name, reply)


def _outcome(name: str, reply: InquiryReply) -> ToolOutcome | None:
    if reply.state == "expired":
        return _denied(name, EXPIRED)
    return None if reply.text in {"once", "conversation"} else _denied(name, f"a person {DENIED}")


def _denied(name: str, why: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {name} was not run: {why}.", "denied")


def approval_question(call: ToolCall, redactor: Redactor) -> str | None:
    """Return what a person reads before a call runs, in Markdown; None where it cannot be shown.

    The arguments are those that the tool gets, all of them, as JSON in a code block that they
    cannot leave; what would not be seen in them is spelled out. Only the values of the settings'
    secrets are masked: in what looks like a credential a command could hide.
    """
    if (arguments := read_arguments(call["function"]["arguments"])) is None:
        return None
    masked, hidden = redactor.known(json.dumps(arguments, ensure_ascii=False, indent=2))
    shown = _spelled_out(masked)
    if len(shown) > MAX_SHOWN_CHARS:
        return None
    note = f"\n\n{hidden:,} characters of it are secrets of the settings: {MASK}." if hidden else ""
    # A fence of more backticks than stand inside: the arguments cannot end it (CommonMark 4.5).
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(shown)), default=0))
    name = call["function"]["name"]
    return f"May I run `{name}`?\n\n{fence}json\n{shown}\n{fence}{note}"


def _spelled_out(text: str) -> str:
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNSEEN else _escape(char)
        for char in text
    )


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) > 0xFF else f"\\u{ord(char):04x}"
