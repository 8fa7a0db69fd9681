"""The checks before a tool call, in order: policy, plugins, and approval by a person.

All of them run before the intent is journaled: a sender without rights causes no questions.
"""

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, get_args

import orjson
import structlog

from agent.errors import ToolError
from agent.messages import ToolCall, code_block
from agent.models.wire import read_arguments
from agent.ports import DecidedVerdict, Decision, Inquiry, InquiryReply
from agent.safety.redaction import MASK, Redactor
from agent.safety.threats import is_delicate
from agent.tools import policy
from agent.tools.context import Redirects, ToolContext, ToolOutcome, TurnRights
from agent.tools.links import RECALLING, sent_addresses
from agent.tools.policy import EVERYTHING, Destination, Facts, Rule
from agent.tools.registry import ToolRegistry

log = structlog.get_logger()

MAX_SHOWN_CHARS = 8_000
"""Longest arguments shown in a question, always in full: up to five Discord messages."""
DENIED = "was asked and said no. Do not try this again unless you are told to"
EXPIRED = "nobody answered in time, which counts as a no. Go on without it"
NOBODY = "it needs an approval, and there is nobody here who could give it"
# Control and invisible characters, direction changes, line separators, unassigned code points.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """Which calls need approval, and how they are shown.

    Attributes:
        rules: The policy table (agent/tools/policy.py).
        hosts: Hosts that `fetch_url` may reach in a tainted turn; "*.example.com" covers all
            subdomains.
        redactor: Removes secrets of the settings from questions and results.
        own_records: Tools that modify only the sender's own record.
    """

    rules: Sequence[Rule] = policy.build_table("side_effects")
    hosts: tuple[str, ...] = ()
    redactor: Redactor = field(default_factory=Redactor)
    own_records: frozenset[str] = frozenset()

    def covered(self, call: ToolCall, rights: TurnRights) -> str:
        """Describe the calls covered by a conversation-wide approval, until a new file arrives."""
        alike = policy.approval_key(
            call["function"]["name"],
            arguments_of(call),
            tainted=policy.any_taints(rights.read.seen),
            # In a group the records belong to several people.
            own_records=() if rights.group else self.own_records,
        )
        brought = sorted(each for each in rights.read.seen if each.kind in {"file", "pasted"})
        return f"{alike}{brought}" if brought else alike


@dataclass(frozen=True, slots=True)
class Gate:
    """Decides which calls of one message may run."""

    rules: ApprovalRules
    toolbox: ToolRegistry
    context: ToolContext

    def record_reads(self, calls: Sequence[ToolCall]) -> None:
        """Record the origins read before the calls were written, and the links they follow.

        Call this before any of them runs, since they run concurrently.
        """
        read = self.context.rights.read
        read.mark_read()
        taking = set[str]()
        for call in calls:
            is_next = read.trail.followed < policy.MOST_LINKS
            if is_next and self._destination(call, may_follow=True) == "linked":
                read.trail.followed += 1
                taking.add(call["id"])
        read.may_follow = frozenset(taking)

    def decision(self, call: ToolCall) -> Rule:
        """Return the policy row that decides about a call."""
        return policy.decide(self.rules.rules, self._facts(call))

    def redirects(self, call: ToolCall) -> Redirects:
        """Return the check of a running call's redirects; links grant nothing here.

        Rows with destinations decide, based on the origins read so far: an open redirect could leak
        data. A redirect that requires approval is refused, since a running call cannot ask.
        """
        rows = [row for row in self.rules.rules if row.destination != EVERYTHING]
        read = self.context.rights.read

        def refused_by(url: str, /) -> str:
            place = policy.destination(url, self.rules.hosts, read.trail, may_follow=False)
            tainted = policy.any_taints(read.origins)
            facts = replace(self._facts(call), destination=place, tainted=tainted)
            rule = policy.decide([policy.ANYWHERE, *rows], facts)
            return "" if rule.then == "allow" else rule.name

        return refused_by

    async def check(
        self, call: ToolCall, context: ToolContext
    ) -> tuple[ToolOutcome | None, Decision | None]:
        """Decide whether a call may run; an earlier approval or denial stays valid.

        Returns:
            The outcome of a call that must not run, or None; and the decision to record with its
            intent, or None if nothing needs recording or the question already recorded it.

        Raises:
            TurnSuspended: A person was asked and has not answered yet.
        """
        facts = self._facts(call)
        rule = policy.decide(self.rules.rules, facts)
        # Checked first: a call that is denied, impossible or vetoed cannot be approved.
        if rule.then == "deny":
            log.info("tool_refused", tool=facts.tool, rule=rule.name, tainted=facts.tainted)
            text = f"Error: {facts.tool} is not allowed here ({rule.name})"
            return ToolOutcome(text, "refused"), _on_record(call, facts, "deny", rule.name)
        if (impossible := self.toolbox.refusal(call)) is not None:
            return impossible, None
        if hooks := context.services.hooks:
            veto = await hooks.before(facts.tool, arguments_of(call), context)
            if veto is not None:
                log.info("tool_vetoed", tool=facts.tool, tainted=facts.tainted)
                text = f"Error: {facts.tool} was not run: {veto}"
                return ToolOutcome(text, "vetoed"), _on_record(call, facts, "veto", "")
        decision = _on_record(call, facts, rule.then, rule.name)
        if is_asked(rule):
            return await self._asked(call, context, decision), None
        people = context.services.people
        if people is not None and (decided := await people.decided(call["id"])) is not None:
            return _outcome(facts.tool, decided), None
        # A tool that only reads the conversation or updates its to-do list is not recorded.
        return None, decision if facts.classes else None

    def _facts(self, call: ToolCall) -> Facts:
        name, given, rights = call["function"]["name"], arguments_of(call), self.context.rights
        destination = self._destination(call, may_follow=call["id"] in rights.read.may_follow)
        classes = {
            policy.SIDE_EFFECT: self.toolbox.effect(name) == "side_effect",
            policy.WORLD: self.toolbox.restricted(name),
            policy.NOTES: name == "memory" and given.get("action") != "list",
            policy.FETCH: destination != "none",
            policy.RECALLED: rights.read.recalled
            and destination != "listed"
            and reads_elsewhere(name, self.toolbox),
            policy.DELICATE: name == "memory" and is_delicate(str(given.get("content") or "")),
        }
        return Facts(
            tool=name,
            classes=frozenset(each for each, is_one in classes.items() if is_one),
            roles=rights.roles,
            tainted=policy.any_taints(rights.read.seen),
            destination=destination,
            group=rights.group,
        )

    def _destination(self, call: ToolCall, *, may_follow: bool) -> Destination:
        name, given = call["function"]["name"], arguments_of(call)
        if name in policy.FETCHING:
            leads = [str(given.get("url"))]
        elif reads_elsewhere(name, self.toolbox):
            leads = list(sent_addresses(given))
        else:
            return "none"
        hosts, trail = self.rules.hosts, self.context.rights.read.trail
        found = [policy.destination(it, hosts, trail, may_follow=may_follow) for it in leads]
        # A call follows at most one link of a page.
        if found.count("linked") > 1:
            return "new"
        return max(found, key=get_args(Destination).index, default="none")

    async def _asked(
        self, call: ToolCall, context: ToolContext, decision: Decision
    ) -> ToolOutcome | None:
        name = call["function"]["name"]
        if context.services.people is None:
            return _denied(name, NOBODY)
        question = approval_question(call, self.rules.redactor)
        if question and (read := policy.describe_sources(context.rights.read.seen)):
            question += f"\n\nBefore asking, I read what others wrote: {read}."
        inquiry = Inquiry(
            "approval",
            context.call_id,
            name,
            question or "",
            definition=self._definition(call),
            askable=bool(question),
            for_owners=decision.verdict == "ask_owner",
            decision=decision,
        )
        try:
            reply = await context.services.people.ask(inquiry)
        except ToolError as error:
            return _denied(name, str(error))
        return _outcome(name, reply)

    def _definition(self, call: ToolCall) -> str:
        """Return a digest of the offered tool and of the calls that an approval covers."""
        name = call["function"]["name"]
        schemas = [schema for schema in self.toolbox.schemas if schema.name == name]
        # Sorted: the digest must not depend on the key order of the schema.
        digest = sha256(orjson.dumps(schemas, option=orjson.OPT_SORT_KEYS))
        digest.update(self.rules.covered(call, self.context.rights).encode())
        return digest.hexdigest()


def is_asked(rule: Rule) -> bool:
    """Return whether a call needs a person's approval."""
    return rule.then in {"ask", "ask_owner"}


def reads_elsewhere(name: str, toolbox: ToolRegistry) -> bool:
    """Return whether a read-only tool sends its arguments to a host, an MCP server or a plugin.

    Parley's own tools that read files and past messages stay on this machine.
    """
    if name in policy.FETCHING:
        return True
    if name in RECALLING or not toolbox.restricted(name):
        return False
    return toolbox.effect(name) != "side_effect"


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments as an object, empty if unreadable."""
    return read_arguments(call["function"]["arguments"]) or {}


def _on_record(call: ToolCall, facts: Facts, verdict: DecidedVerdict, rule: str) -> Decision:
    digest = sha256(call["function"]["arguments"].encode()).hexdigest()
    return Decision(verdict, rule, digest, tuple(sorted(facts.roles)), bool(facts.tainted))


def _outcome(name: str, reply: InquiryReply) -> ToolOutcome | None:
    if reply.state == "expired":
        return _denied(name, EXPIRED)
    return None if reply.text in {"once", "conversation"} else _denied(name, f"a person {DENIED}")


def _denied(name: str, why: str) -> ToolOutcome:
    return ToolOutcome(f"Error: {name} was not run: {why}.", "denied")


def approval_question(call: ToolCall, redactor: Redactor) -> str | None:
    """Return the approval question in Markdown, or None if the call cannot be shown.

    It shows all arguments of the tool as JSON in a code block that they cannot break out of, with
    invisible characters escaped. Only secrets of the settings are masked: if anything that looks
    like a credential were hidden, a command could hide in it.
    """
    if (arguments := read_arguments(call["function"]["arguments"])) is None:
        return None
    masked, hidden = redactor.known(json.dumps(arguments, ensure_ascii=False, indent=2))
    shown = "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNSEEN else _escape(char)
        for char in masked
    )
    if len(shown) > MAX_SHOWN_CHARS:
        return None
    note = f"\n\n{hidden:,} characters of it are secrets of the settings: {MASK}." if hidden else ""
    return f"May I run `{call['function']['name']}`?\n\n{code_block(shown, 'json')}{note}"


def _escape(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) > 0xFF else f"\\u{ord(char):04x}"
