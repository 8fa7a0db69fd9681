"""What waits for a person: approvals and questions of turns, and dead letters.

Both are settled as by a command in a chat or on the command line, with the same effects.
"""

import time

from adapters.messages import Address, InboundMessage
from adapters.registry import BUILT_IN, DEFAULT_ACCOUNT
from gateway.console import register
from gateway.console.register import HOME, Ask, Moved, Result, Shown, action, listed, older, page
from gateway.errors import NotFound
from gateway.storage.conversation import questions
from gateway.storage.people import members
from gateway.storage.queue import dead_letters

APPROVALS = f"{HOME}/approvals"
LETTERS = f"{HOME}/dead-letters"
LONGEST_ANSWER = 10_000
"""Characters of an answer to a question of the agent."""
GONE = "{id} is not on the list any more: it was retried or dropped before."
RETRIED = {
    "turn": "{id} is asked again.",
    "send": "{id} is sent again.",
}


@page(APPROVALS, "Approvals", "Now")
async def approvals(ask: Ask) -> Result:
    """Show what turns wait for, in all conversations."""
    read, after = ask.inside.database.read, ask.position("after")
    rows = await read(questions.waiting, register.PAGE + 1, after)
    whom = [who for row in listed(rows) for who in row.senders]
    return Shown(
        "approvals.html",
        {
            "waiting": listed(rows),
            "names": await read(members.names, whom),
            "older": older(APPROVALS, rows, lambda row: row.question.id),
            "first": APPROVALS if after else "",
            "now": time.time(),
            "longest": LONGEST_ANSWER,
        },
    )


@action(APPROVALS + "/{id}")
async def answer(ask: Ask) -> Result:
    """Take an owner's answer; the turn that waits goes on."""
    said = ask.form.get("answer", "").strip()[:LONGEST_ANSWER]
    owner = InboundMessage(
        address=Address(BUILT_IN, DEFAULT_ACCOUNT, "console", None),
        chat_kind="dm",
        sender=ask.visitor.sender,
        sender_name=ask.visitor.name,
        text="",
        dedupe_key="",
        raw="{}",
        authenticated=True,
    )
    outcome = await ask.inside.operator.answer(owner, ask.number("id"), said)
    return Moved(APPROVALS, outcome.text.replace("`", ""), failed=not outcome.settled)


@page(LETTERS, "Dead letters", "Now")
async def letters(ask: Ask) -> Result:
    """Show turns that were given up, and messages that no platform took."""
    after = ask.query("after")
    rows = await ask.inside.database.read(dead_letters.find_all, register.PAGE + 1, after or None)
    return Shown(
        "dead_letters.html",
        {
            "letters": listed(rows),
            "older": older(LETTERS, rows, lambda row: row.id),
            "first": LETTERS if after else "",
        },
    )


@action(LETTERS + "/{id}/retry")
async def retry(ask: Ask) -> Result:
    """Put a dead letter back."""
    return await _settled(ask, "retry-dead-letter")


@action(LETTERS + "/{id}/drop")
async def drop(ask: Ask) -> Result:
    """Take a dead letter off the list."""
    return await _settled(ask, "drop-dead-letter")


async def _settled(ask: Ask, what: str) -> Result:
    name = ask.names["id"]
    try:
        letter = await ask.inside.operator.act(what, name, ask.by)
    except NotFound:
        # A second click, or another owner was faster.
        return Moved(LETTERS, GONE.format(id=name), failed=True)
    done = RETRIED[letter.kind] if what == "retry-dead-letter" else "{id} is dropped."
    return Moved(LETTERS, done.format(id=letter.id))
