"""What stands before a tool call: may it run, does a plugin object, does a person allow it?

In this order, before the intent is journaled: whoever may not act bothers nobody with questions.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import orjson
import structlog

from agent.errors import ToolError
from agent.messages import ToolCall
from agent.models.arguments import read_arguments
from agent.safety.redaction import MASK, Redactor
from agent.tools import policy
from agent.tools.context import Inquiry, InquiryReply, ToolContext, ToolOutcome
from agent.tools.policy import ApprovalMode, Destination, Facts, Rule, Ruling
from agent.tools.registry import ToolBox

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
        contained: Tools that reach nothing but the conversation's own directory.
    """

    rules: Sequence[Rule] = policy.table("side_effects")
    hosts: tuple[str, ...] = ()
    redactor: Redactor = field(default_factory=Redactor)
    contained: frozenset[str] = frozenset({"write_file"})

    @classmethod
    def of(cls, mode: ApprovalMode) -> "ApprovalRules":
        """Return the default rules of a mode."""
        return cls(policy.table(mode))

    def decision(self, call: ToolCall, toolbox: ToolBox, context: ToolContext) -> Ruling:
        """Return what becomes of a call."""
        return policy.decide(self.rules, self.facts(call, toolbox, context))

    def facts(self, call: ToolCall, toolbox: ToolBox, context: ToolContext) -> Facts:
        """Return what is known about a call."""
        name, rights = call["function"]["name"], context.rights
        classes = {
            policy.SIDE_EFFECT: toolbox.effect(name) == "side_effect",
            policy.WORLD: toolbox.restricted(name),
            policy.NOTES: name == "memory" and arguments_of(call).get("action") != "list",
        }
        return Facts(
            tool=name,
            classes=frozenset(each for each, is_one in classes.items() if is_one),
            roles=rights.roles,
            tainted=policy.taints(rights.read.seen),
            destination=self._destination(call, context) if name == "fetch_url" else "none",
            group=rights.group,
        )

    def _destination(self, call: ToolCall, context: ToolContext) -> Destination:
        host = policy.host_of(arguments_of(call).get("url"))
        if policy.is_listed(host, self.hosts):
            return "listed"
        return "named" if host and context.rights.read.names(host) else "new"


async def refusal(
    call: ToolCall, toolbox: ToolBox, context: ToolContext, rules: ApprovalRules
) -> ToolOutcome | None:
    """Return why a call must not run, as its outcome; None where it may.

    What was decided about a call holds for it, also where nobody would be asked any more.

    Raises:
        TurnSuspended: A person was asked, and has not answered yet.
    """
    name = call["function"]["name"]
    impossible = toolbox.refusal(call, context)
    if impossible is not None:
        if impossible.status == "refused":
            log.info("tool_refused", tool=name, rule=impossible.rule)
        return impossible
    decision = rules.decision(call, toolbox, context)
    if decision.verdict == "deny":
        log.info("tool_refused", tool=name, rule=decision.rule)
        text = f"Error: {name} is not allowed here ({decision.rule})"
        return ToolOutcome(text, "refused", decision.rule)
    arguments = arguments_of(call)
    # Before anybody is asked: nobody approves what a plugin forbids.
    if context.services.hooks is not None:
        veto = await context.services.hooks.before(name, arguments, context)
        if veto is not None:
            log.info("tool_vetoed", tool=name)
            return ToolOutcome(f"Error: {name} was not run: {veto}", "vetoed")
    if is_asked(decision):
        return await _asked(call, toolbox, context, rules, decision)
    decided = await context.services.people.decided(call["id"]) if context.services.people else None
    return None if decided is None else _outcome(name, decided)


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; empty where they are none."""
    return read_arguments(call["function"]["arguments"]) or {}


def is_asked(decision: Ruling) -> bool:
    """Whether a person is asked before a tool runs."""
    return decision.verdict in {"ask", "ask_owner"}


def _definition(
    call: ToolCall, toolbox: ToolBox, contained: frozenset[str], *, tainted: bool
) -> str:
    """Return a digest of the tool as it is offered, and of the calls of it that are like this."""
    name = call["function"]["name"]
    schemas = [schema for schema in toolbox.schemas if schema.name == name]
    # Sorted: a tool has the same digest in whatever order its schema was built.
    digest = sha256(orjson.dumps(schemas, option=orjson.OPT_SORT_KEYS))
    covered = policy.covered(name, arguments_of(call), tainted=tainted, contained=contained)
    digest.update(covered.encode())
    return digest.hexdigest()


async def _asked(
    call: ToolCall,
    toolbox: ToolBox,
    context: ToolContext,
    rules: ApprovalRules,
    decision: Ruling,
) -> ToolOutcome | None:
    name, origins = call["function"]["name"], context.rights.read.seen
    if context.services.people is None:
        return _denied(name, NOBODY)
    question = approval_question(call, rules.redactor)
    if question and (read := policy.sources(origins)):
        question += f"\n\nBefore this I have read what others wrote: {read}."
    inquiry = Inquiry(
        "approval",
        context.call_id,
        name,
        question or "",
        definition=_definition(call, toolbox, rules.contained, tainted=policy.taints(origins)),
        askable=bool(question),
        for_owners=decision.verdict == "ask_owner",
        rule=decision.rule,
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
