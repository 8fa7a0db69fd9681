"""What stands before a tool call: may the sender, does a plugin object, does a person allow it?

In this order, before the intent is journaled: whoever may not act bothers nobody with questions.
"""

import json
import re
import unicodedata
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

import orjson
import structlog

from agent.errors import ToolError
from agent.messages import ToolCall
from agent.models.arguments import read_arguments
from agent.safety.redaction import MASK, Redactor
from agent.tools.context import Inquiry, InquiryReply, ToolContext, ToolOutcome
from agent.tools.registry import ToolBox

log = structlog.get_logger()

ApprovalMode = Literal["side_effects", "always", "never"]

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
        mode: side_effects: tools of that effect; always: whatever touches the world outside, what
            only reads it too; never: nobody is asked.
        redactor: Keeps the secrets of the settings out of the question and of the result.
    """

    mode: ApprovalMode = "side_effects"
    redactor: Redactor = field(default_factory=Redactor)


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
            log.info("tool_refused", tool=name)
        return impossible
    arguments = arguments_of(call)
    # Before anybody is asked: nobody approves what a plugin forbids.
    if context.services.hooks is not None:
        veto = await context.services.hooks.before(name, arguments, context)
        if veto is not None:
            log.info("tool_vetoed", tool=name)
            return ToolOutcome(f"Error: {name} was not run: {veto}", "vetoed")
    if needs_approval(name, toolbox, rules.mode):
        return await _asked(call, _definition(name, toolbox), context, rules.redactor)
    decided = await context.services.people.decided(call["id"]) if context.services.people else None
    return None if decided is None else _outcome(name, decided)


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object; empty where they are none."""
    return read_arguments(call["function"]["arguments"]) or {}


def needs_approval(name: str, toolbox: ToolBox, mode: ApprovalMode) -> bool:
    """Whether a person is asked before a tool runs."""
    if mode == "never":
        return False
    asked_always = mode == "always" and toolbox.restricted(name)
    return asked_always or toolbox.effect(name) == "side_effect"


def _definition(name: str, toolbox: ToolBox) -> str:
    schemas = [schema for schema in toolbox.schemas if schema.name == name]
    # Sorted: a tool has the same digest in whatever order its schema was built.
    return sha256(orjson.dumps(schemas, option=orjson.OPT_SORT_KEYS)).hexdigest()


async def _asked(
    call: ToolCall, definition: str, context: ToolContext, redactor: Redactor
) -> ToolOutcome | None:
    name = call["function"]["name"]
    if context.services.people is None:
        return _denied(name, NOBODY)
    question = approval_question(call, redactor)
    inquiry = Inquiry(
        "approval", context.call_id, name, question or "", (), definition, bool(question)
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
