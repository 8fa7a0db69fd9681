"""Writes the system prompt of a conversation: collects its facts when one of its roots begins.

Part of the freeze (step 5): everything here runs in its transaction, reads no file and asks nobody.
What is cheap (tools, instructions, model) is compared for every turn, the rest is only read where
`lineage.settle_base` asks for a prompt.
"""

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any
from zoneinfo import ZoneInfo

import orjson
from sqlalchemy import Connection, select

from agent.loop import Agent
from agent.messages import ChatMessage, storable
from agent.prompt import (
    PromptFacts,
    SystemPrompt,
    Told,
    memory_context,
    write_child_prompt,
    write_prompt,
)
from agent.settings import AgentSettings
from agent.threats import Scan, scan
from gateway.access import Access
from gateway.operatorfiles import OperatorFiles, flagged
from gateway.storage import notebook
from gateway.storage.lineage import PromptBase, Session
from gateway.storage.models import conversation
from gateway.storage.models import session as session_table
from gateway.storage.statements import built_once

TOUCHES_THE_MACHINE = frozenset({"terminal", "read_file", "write_file", "list_files"})
KNOWN_TEXTS = 256

ExternalTexts = Callable[[], Sequence[Told]]


def _nothing() -> Sequence[Told]:
    return ()


@dataclass(frozen=True, slots=True)
class Prompts:
    """What prompts are written from, beside the database.

    Attributes:
        files: The operator's; what was read last is used.
        access: Tells who is an owner.
        timezone: Of the date on which a conversation began.
        external: Returns the standing texts of memory providers, at once.
    """

    files: OperatorFiles
    access: Access
    timezone: str = "UTC"
    external: ExternalTexts = _nothing

    def base(self, agent: Agent) -> PromptBase:
        """Return what a conversation's requests begin with where this agent answers in it."""
        return replace(
            _base(agent, partial(self._with_people, facts_of(agent))),
            prefill=prefill_rows(agent.settings),
        )

    def bases(self, agent: Agent) -> Callable[[str | None], PromptBase]:
        """Return what tells `base` by the model that was chosen for a conversation, each made once.

        None is the model of the settings; so is one that is not configured any more.
        """
        known: dict[str, PromptBase] = {}

        def of_chosen(model: str | None) -> PromptBase:
            answering = agent.preferring(model)
            label = answering.models[0].label
            if label not in known:
                known[label] = self.base(answering)
            return known[label]

        return of_chosen

    def typical(self, agent: Agent) -> SystemPrompt:
        """Return what a new direct chat of an owner begins with, without notes and dates."""
        facts = self._of_files(facts_of(agent))
        return write_prompt(replace(facts, profile=self.files.current.profile))

    def _of_files(self, facts: PromptFacts) -> PromptFacts:
        files = self.files.current
        return replace(
            facts,
            identity=files.identity,
            skills=files.skill_index,
            context_file=files.context_file,
        )

    def _with_people(self, fixed: PromptFacts, conn: Connection, session: Session) -> SystemPrompt:
        """Write the prompt of a conversation with people."""
        here = conn.execute(*_place(session.conversation)).one()
        scope = notebook.scope_of(conn, session.conversation)
        owned = here.user is not None and self.access.weakest(conn, [scope]) == "owner"
        facts = replace(
            of_root(conn, session, self._of_files(fixed), self.timezone),
            memory=_clean(notebook.notes_of(conn, scope, "memory"), "memory"),
            profile=self.files.current.profile if owned else None,
            noted=_clean(notebook.notes_of(conn, scope, "user"), "memory"),
            external=tuple(_cleaned(told) for told in self.external()),
            platform=here.platform,
            shared=here.user is None,
        )
        return write_prompt(facts)


def child_base(agent: Agent) -> PromptBase:
    """Return what a delegated child's requests begin with.

    It gets the operator's instructions, and nothing about people: no memory, no profile, no skills.
    """
    return _base(agent, partial(_for_child, facts_of(agent)))


def _for_child(fixed: PromptFacts, conn: Connection, session: Session) -> SystemPrompt:
    return write_child_prompt(of_root(conn, session, fixed))


def _base(agent: Agent, write: Callable[[Connection, Session], SystemPrompt]) -> PromptBase:
    instructions = agent.settings.instructions or ""
    return PromptBase(
        tools=orjson.dumps(agent.tools.schemas, option=orjson.OPT_SORT_KEYS).decode(),
        inputs={
            "instructions": hashlib.sha256(instructions.encode()).hexdigest()[:16],
            "model": agent.models[0].name,
        },
        write=write,
    )


def facts_of(agent: Agent) -> PromptFacts:
    """Return what is the same in all prompts of an agent."""
    names = tuple(tool.name for tool in agent.tools.schemas)
    return PromptFacts(
        model=agent.models[0].name,
        provider=agent.models[0].provider,
        tools=names,
        instructions=agent.settings.instructions,
        environment=_environment(names),
    )


def of_root(
    conn: Connection, session: Session, fixed: PromptFacts, timezone: str = "UTC"
) -> PromptFacts:
    """Return an agent's facts with those of a root: its id, and the day on which it began."""
    started_at = conn.execute(*_started(session.id)).scalar_one()
    started = datetime.fromtimestamp(started_at, UTC).astimezone(ZoneInfo(timezone))
    return replace(fixed, session=str(session.id), started=started.date().isoformat())


def prefill_rows(settings: AgentSettings) -> tuple[ChatMessage, ...]:
    """Return the examples that every root begins with."""
    return tuple(
        ChatMessage(role=each.role, content=each.content, synthetic=True, ephemeral=True)
        for each in settings.prefill
    )


def told_with_question(settings: AgentSettings, recalled: Sequence[Told] = ()) -> str:
    """Return what stands before a question and is no part of it; "" for nothing.

    Args:
        settings: With the operator's own words.
        recalled: What memory providers and plugins have to say; scanned here.
    """
    operator = (settings.ephemeral or "").strip()
    own = [Told("From the operator, who may instruct you", operator)] if operator else []
    return memory_context([*own, *map(_cleaned, recalled)])


def _clean(texts: Sequence[str], source: str) -> tuple[str, ...]:
    return tuple(_scanned(text, source).text for text in texts)


def _cleaned(told: Told) -> Told:
    return Told(told.source, _scanned(told.text, told.source).text)


@lru_cache(maxsize=KNOWN_TEXTS)
def _scanned(text: str, source: str) -> Scan:
    """Return the scan of a text, storable; the same one is scanned, and reported, once."""
    found = scan(text)
    return flagged(source, replace(found, text=storable(found.text)))


def _environment(tools: Sequence[str]) -> str:
    if not TOUCHES_THE_MACHINE.intersection(tools):
        return ""
    return (
        f"Tools that touch files work in a directory of this conversation, on {platform.system()};"
        " nothing outside of it is yours."
    )


@built_once
def _place(conversation_id: int) -> Any:
    columns = (conversation.c.platform, conversation.c.user)
    return select(*columns).where(conversation.c.id == conversation_id)


@built_once
def _started(session_id: int) -> Any:
    return select(session_table.c.started_at).where(session_table.c.id == session_id)
