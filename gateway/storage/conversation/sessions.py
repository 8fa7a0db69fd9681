"""Sessions: the segments of a conversation's lineage, each with its view plan and its base.

A base is the start of requests: a prompt and the tools. Most conversations share them, so each text
is stored once by its hash; a base refers to the texts of a prompt and tools, and segments refer to
a base. A root's own part of the prompt (`SystemPrompt.split`) is in the segment's row.
"""

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    exists,
    func,
    select,
    update,
)

from agent.messages import ChatMessage
from agent.models.base import Prefix
from agent.ports import Origin, PlannerState
from agent.prompt.system import FORMER_NOTES, NOTES_LAYER, PinnedNote, SystemPrompt
from agent.view.view import ViewPlan, dump_plan, load_plan
from gateway.errors import LeaseLost
from gateway.storage.conversation import conversations
from gateway.storage.schema import (
    now_s,
    prompt_base,
    prompt_text,
    session,
    summary_candidate,
    turn,
    view_plan,
)

DIGEST_BYTES = 16
MOST_ORIGINS = 100
"""Most stored origins of a lineage; one unknown origin replaces any excess."""


def _find_base(
    conn: Connection, prompt: SystemPrompt, tools: str | None, inputs: Mapping[str, str] | None
) -> int:
    """Return the id of the base with a prompt's shared part, inserting a new one.

    Before version 0.3, `tools` and `inputs` are None.
    """
    layers, stored_inputs = dumped(prompt.layers), dumped(inputs)
    digest = _digest_of(prompt.text, tools, layers, stored_inputs)
    known = conn.scalar(select(prompt_base.c.id).where(prompt_base.c.digest == digest))
    if known is not None:
        return int(known)
    values = {
        "digest": digest,
        "prompt_id": _find_text(conn, prompt.text),
        "tools_id": None if tools is None else _find_text(conn, tools),
        "layers": layers,
        "inputs": stored_inputs,
    }
    entered = prompt_base.insert().returning(prompt_base.c.id)
    return int(conn.execute(entered, values).scalar_one())


def _find_text(conn: Connection, body: str) -> int:
    digest = _digest_of(body)
    known = conn.scalar(select(prompt_text.c.id).where(prompt_text.c.digest == digest))
    if known is None:
        entered = prompt_text.insert().returning(prompt_text.c.id)
        known = conn.execute(entered, {"digest": digest, "body": body}).scalar_one()
    return int(known)


def _digest_of(*parts: str | None) -> bytes:
    """Return the hash key of a content; None differs from ""."""
    known = hashlib.sha256()
    for part in parts:
        encoded = b"" if part is None else part.encode()
        # Include the length, so that "ab", "c" differs from "a", "bc".
        known.update(b"%d:" % (-1 if part is None else len(encoded)))
        known.update(encoded)
    return known.digest()[:DIGEST_BYTES]


def with_base(*columns: Any) -> Select[Any]:
    """Select columns of segments with plan and base, one row per segment."""
    shared, tools = prompt_text.alias("shared"), prompt_text.alias("tools")
    return select(
        *columns,
        view_plan.c.body.label("plan"),
        shared.c.body.label("shared_prompt"),
        tools.c.body.label("tools"),
        prompt_base.c.layers.label("prompt_layers"),
        prompt_base.c.inputs.label("prompt_inputs"),
    ).select_from(
        session
        .join(view_plan, view_plan.c.session_id == session.c.id)
        .outerjoin(prompt_base, prompt_base.c.id == session.c.base_id)
        .outerjoin(shared, shared.c.id == prompt_base.c.prompt_id)
        .outerjoin(tools, tools.c.id == prompt_base.c.tools_id)
    )


def release_bases(conn: Connection, base_ids: Collection[int]) -> None:
    """Delete the given unused bases and texts used only by them.

    Call this in the transaction that deletes a segment or changes its base.
    """
    unused = ~exists().where(session.c.base_id == prompt_base.c.id)
    for base_id in base_ids:
        gone = delete(prompt_base).where(prompt_base.c.id == base_id, unused)
        texts = gone.returning(prompt_base.c.prompt_id, prompt_base.c.tools_id)
        for row in conn.execute(texts).all():
            for text_id in {row.prompt_id, row.tools_id} - {None}:
                used = (
                    exists().where(column == prompt_text.c.id)
                    for column in (prompt_base.c.prompt_id, prompt_base.c.tools_id)
                )
                gone = delete(prompt_text).where(prompt_text.c.id == text_id)
                conn.execute(gone.where(*(~each for each in used)))


@dataclass(frozen=True, slots=True)
class Session:
    """A segment. Fields marked "inherited" pass from parent to child.

    Attributes:
        system_prompt: Built once per root segment and kept byte-identical; None until its first
            turn.
        prompt_tokens: The model's last report for this view; None before its first answer.
        number: Position in its lineage; 1 for a root.
        prompt_upto_seq: Newest message covered by the report, including the answer.
        prompt_output_tokens: Output tokens of the reported call.
        report_model: The model of the report and ratio, or None; inherited.
        token_ratio: Correction factor of estimates (agent/context/meter.py); inherited.
        planner_state: State of the planner; inherited.
        start_reason: Why it started: first_message, new, compression, retry, …
        tools: Tools as JSON, kept and inherited like `system_prompt`; None before version 0.3.
        prompt_inputs: The inputs of prompt and tools; None if unknown.
        prefix: Fingerprint of the conversation's last request; inherited.
        moved: Why the next request's prefix may differ from that one; None if it must not.
        prompt_layers: (name, characters) of each layer of the prompt, in order; inherited. Empty
            before version 0.5.
        base_id: The stored base with prompt, tools and inputs; inherited with them.
        origins: Origins read by its lineage, except its own people; inherited.
    """

    id: int
    conversation: int
    plan: ViewPlan
    system_prompt: str | None
    prompt_tokens: int | None
    number: int = 1
    prompt_upto_seq: int | None = None
    prompt_output_tokens: int | None = None
    report_model: str | None = None
    token_ratio: float = 1.0
    planner_state: PlannerState = field(default_factory=PlannerState)
    start_reason: str = ""
    tools: str | None = None
    prompt_inputs: Mapping[str, str] | None = None
    prefix: Prefix | None = None
    moved: str | None = None
    prompt_layers: tuple[tuple[str, int], ...] = ()
    base_id: int | None = None
    origins: tuple[Origin, ...] = ()

    @property
    def prompt(self) -> SystemPrompt:
        """The system prompt with its layers; empty before the first turn."""
        return SystemPrompt(self.system_prompt or "", self.prompt_layers)


@dataclass(frozen=True, slots=True)
class PromptBase:
    """The start of a segment's requests, and the context of its next question.

    Attributes:
        tools: Tool schemas as canonical JSON, in order.
        inputs: The inputs of prompt and tools by name (a digest of the instructions, the model, …),
            compared in every turn.
        write: Returns a segment's system prompt; called in the transaction if needed.
        prefill: Messages at the start of a root.
        context: The text before the new turn's question.
        context_origins: The origins of that text.
    """

    tools: str
    inputs: Mapping[str, str]
    write: Callable[[Connection, Session], SystemPrompt]
    prefill: tuple[ChatMessage, ...] = ()
    context: str = ""
    context_origins: Collection[Origin] = ()


def started_at(conn: Connection, session_id: int) -> float:
    """Return a segment's start time, in seconds since the epoch."""
    query = select(session.c.started_at).where(session.c.id == session_id)
    at: float = conn.execute(query).scalar_one()
    return at


def age(conn: Connection, conversation_id: int, passed_s: float) -> None:
    """Backdate the last request of a conversation's active segment, for a replay."""
    active = session.c.id == conversations.active_session_id(conversation_id)
    stored = conn.scalar(select(session.c.prefix).where(active))
    if stored is None:
        return
    prefix = orjson.loads(stored)
    prefix["at"] -= passed_s
    conn.execute(update(session).where(active).values(prefix=orjson.dumps(prefix).decode()))


def titled(title: str, number: int) -> str:
    """Return a segment's title; the second of a lineage is "Title #2"."""
    return title if number == 1 else f"{title} #{number}"


def start_root(
    conn: Connection, conversation_id: int, reason: str, *, first_seq: int = 1
) -> Session:
    """Start a lineage: a root segment that shows everything from `first_seq` on."""
    fresh = Session(0, conversation_id, ViewPlan(first_seq), None, None, start_reason=reason)
    root = _insert(conn, fresh, None)
    conversations.change(conn, conversation_id, active_session_id=root.id)
    return root


def split(
    conn: Connection,
    parent: Session,
    reason: str,
    plan: ViewPlan,
    state: PlannerState | None = None,
    *,
    keeps_candidate: bool = False,
) -> Session:
    """End `parent` and continue the conversation in a child with a new plan, atomically.

    The child inherits the byte-identical start of requests, the last request's fingerprint, the
    meter's ratio, and the planner's state unless a new one is given; it has no report, since its
    view has a different size. With `keeps_candidate` the summary prepared for `parent` passes to
    the child; otherwise it is dropped.

    Raises `LeaseLost` if `parent` is no longer active; the caller's transaction must write nothing.
    """
    ended = conn.execute(_END, {"p_session_id": parent.id, "p_reason": reason}).one_or_none()
    if ended is None:
        raise LeaseLost(f"session {parent.id} has ended")
    fresh = replace(
        parent,
        plan=plan,
        number=parent.number + 1,
        start_reason=reason,
        moved=reason,
        prompt_tokens=None,
        prompt_output_tokens=None,
        prompt_upto_seq=None,
        planner_state=parent.planner_state if state is None else state,
        # Concurrent tools may have noted more origins than the caller knows.
        origins=load_origins(ended.origins),
    )
    child = _insert(conn, fresh, parent.id)
    if keeps_candidate:
        prepared = update(summary_candidate).where(summary_candidate.c.session_id == parent.id)
        conn.execute(prepared.values(session_id=child.id))
    else:
        conn.execute(_DROP_CANDIDATE, {"p_session_id": parent.id})
    if not conversations.activate(conn, parent.conversation, parent.id, child.id):
        raise LeaseLost(f"conversation {parent.conversation} is not in session {parent.id}")
    return child


def with_prompt(conn: Connection, parent: Session, prompt: SystemPrompt) -> Session:
    """Return a segment with a new prompt for a child to inherit; store its base.

    Even if the prompt is unchanged, since undoing a note may have removed its base.
    """
    if parent.base_id is None:
        return parent
    return replace(
        parent,
        base_id=_find_base(conn, prompt.split()[0], parent.tools, parent.prompt_inputs),
        system_prompt=prompt.text,
        prompt_layers=prompt.layers,
    )


def repin(conn: Connection, conversation_ids: Collection[int], notes: Sequence[PinnedNote]) -> None:
    """Rewrite the notes in conversations' prompts after a removal.

    Prompts without notes stay byte-identical.
    """
    ids = conversations.active_sessions(conversation_ids)
    rows = conn.execute(with_base(session).where(session.c.id.in_(ids)).order_by(session.c.id))
    for segment in map(in_row, rows.all()):
        prompt = segment.prompt.with_notes(notes)
        if not segment.prompt.has_notes or prompt == segment.prompt:
            continue
        _store_prompt(conn, replace(segment, moved=NOTES_LAYER), prompt)


def end(conn: Connection, session_id: int, reason: str) -> None:
    """End an active segment and drop its prepared summary."""
    conn.execute(_END, {"p_session_id": session_id, "p_reason": reason}).one_or_none()
    conn.execute(_DROP_CANDIDATE, {"p_session_id": session_id})


_END = (
    update(session)
    # The second of two splits finds the segment ended: a parent has one child.
    .where(session.c.id == bindparam("p_session_id"), session.c.ended_at.is_(None))
    .values(end_reason=bindparam("p_reason"), ended_at=now_s())
    .returning(session.c.origins)
)

_DROP_CANDIDATE = delete(summary_candidate).where(
    summary_candidate.c.session_id == bindparam("p_session_id")
)


def active(conn: Connection, conversation_id: int) -> Session:
    """Return the segment of the conversation's next turn."""
    return in_row(conn.execute(_ACTIVE, {"conversation_id": conversation_id}).one())


def find_active(conn: Connection, conversation_id: int) -> Session | None:
    """Like `active`, but None if the conversation was erased."""
    row = conn.execute(_ACTIVE, {"conversation_id": conversation_id}).one_or_none()
    return None if row is None else in_row(row)


_ACTIVE = with_base(session).where(
    session.c.id == conversations.active_session_id(bindparam("conversation_id"))
)


def get(conn: Connection, session_id: int) -> Session:
    """Return one segment."""
    return in_row(conn.execute(_BY_ID, {"session_id": session_id}).one())


_BY_ID = with_base(session).where(session.c.id == bindparam("session_id"))


def settle_base(conn: Connection, session: Session, base: PromptBase) -> Session:
    """Keep the stored start of a segment's requests unless its inputs changed.

    A newer Parley may write a different prompt from the same inputs, but must not change the prefix
    of a running conversation, except for notes of a version that made some by rules. Return the
    current segment; its `moved` names changed tools or inputs.
    """
    based = replace(session, tools=base.tools, prompt_inputs=base.inputs)
    if session.system_prompt is None:
        return _store_prompt(conn, based, base.write(conn, session))
    if session.prompt_inputs is None:
        # Version 0.2 stored only the prompt.
        kept = SystemPrompt(session.system_prompt, session.prompt_layers)
        return _store_prompt(conn, based, kept)
    changes = _changes(session, base)
    if not changes:
        return session
    moved = replace(based, moved="+".join(changes))
    return _store_prompt(conn, moved, base.write(conn, session))


def _changes(session: Session, base: PromptBase) -> list[str]:
    known = session.prompt_inputs or {}
    # An input unknown to an older version does not change its prefix.
    changed = [name for name, value in base.inputs.items() if known.get(name, value) != value]
    if not FORMER_NOTES.isdisjoint(dict(session.prompt_layers)):
        changed.append(NOTES_LAYER)
    return changed if base.tools == session.tools else ["tools", *changed]


def _store_prompt(conn: Connection, session: Session, prompt: SystemPrompt) -> Session:
    shared, own = prompt.split()
    base_id = _find_base(conn, shared, session.tools, session.prompt_inputs)
    values = {"settled_id": session.id, "new_base": base_id, "new_own": own}
    conn.execute(_SET_BASE, values | {"new_moved": session.moved})
    # After the change, since a referenced base is not released.
    if session.base_id is not None:
        release_bases(conn, {session.base_id})
    return replace(session, base_id=base_id, system_prompt=prompt.text, prompt_layers=prompt.layers)


# SQLAlchemy reserves column names for new values in updates, so other parameters need other names.
_SET_BASE = (
    update(session)
    .where(session.c.id == bindparam("settled_id"))
    .values(
        base_id=bindparam("new_base"), own_prompt=bindparam("new_own"), moved=bindparam("new_moved")
    )
)


def note_origins(conn: Connection, active: Session, read: Iterable[Origin]) -> Session:
    """Add origins read by a segment's lineage; return the updated segment.

    Read the stored origins again, since tools add some in parallel.
    """
    new = [each for each in dict.fromkeys(read) if each not in active.origins]
    if not new:
        return active
    stored = conn.execute(_ORIGINS, {"session_id": active.id}).scalar_one()
    origins = tuple(dict.fromkeys([*load_origins(stored), *new]))
    if len(origins) > MOST_ORIGINS:
        # An unknown origin counts as the strictest.
        origins = (*origins[: MOST_ORIGINS - 1], Origin(origins[-1].kind, "?:?"))
    changed = (
        update(session).where(session.c.id == active.id).values(origins=_dump_origins(origins))
    )
    conn.execute(changed)
    return replace(active, origins=origins)


_ORIGINS = select(session.c.origins).where(session.c.id == bindparam("session_id"))


def speakers(conn: Connection, conversation_id: int, session_id: int) -> set[str]:
    """Return all senders of a segment's lineage ("platform:sender id").

    Omits turns of versions that did not store senders, which admitted no guests.
    """
    noted = conn.scalars(_SPEAKERS, {"conversation_id": conversation_id, "session_id": session_id})
    return {sender for senders in noted for sender in orjson.loads(senders)}


def in_lineage(conversation_id: Any, session_id: Any) -> tuple[ColumnElement[bool], ...]:
    """Match the turns of a segment's lineage."""
    # Avoid the index of parents, through which SQLite would scan all roots.
    is_root = func.coalesce(session.c.parent_session_id, 0) == 0
    roots = (session.c.conversation == conversation_id, is_root)
    # Segment ids increase.
    root = select(func.max(session.c.id)).where(*roots, session.c.id <= session_id)
    next_root = select(func.min(session.c.id)).where(*roots, session.c.id > session_id)
    return (
        turn.c.conversation == conversation_id,
        turn.c.session_id >= root.scalar_subquery(),
        turn.c.session_id < func.coalesce(next_root.scalar_subquery(), turn.c.session_id + 1),
    )


_SPEAKERS = (
    select(turn.c.senders)
    .distinct()
    .where(
        *in_lineage(bindparam("conversation_id"), bindparam("session_id")),
        turn.c.senders.is_not(None),
    )
)


def held_by(
    conn: Connection, segments: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], tuple[Origin, ...]]:
    """Return the origins and speakers of the lineages of (conversation, session) pairs.

    A later lineage that reads them treats these people like quoted ones.
    """
    held = {}
    for here, segment in set(segments):
        noted = load_origins(conn.scalar(_ORIGINS, {"session_id": segment}))
        spoken = [Origin("quoted", who) for who in sorted(speakers(conn, here, segment))]
        held[here, segment] = tuple(dict.fromkeys([*noted, *spoken]))
    return held


def held_in(conn: Connection, conversation_ids: Collection[int]) -> set[Origin]:
    """Return all origins and speakers of conversations and their delegated children.

    In a one-person conversation the segments store all other people's origins.
    """
    found: set[Origin] = set()
    for each in conversation_ids:
        own = session.c.conversation == each
        theirs = session.c.conversation.in_(conversations.children_of(each))
        noted = select(session.c.origins).where(own | theirs, session.c.origins.is_not(None))
        found |= {origin for stored in conn.scalars(noted) for origin in load_origins(stored)}
        here = turn.c.conversation.in_(conversations.if_shared(each))
        spoken = select(turn.c.senders).distinct().where(here, turn.c.senders.is_not(None))
        people = {who for senders in conn.scalars(spoken) for who in orjson.loads(senders)}
        found |= {Origin("quoted", who) for who in people}
    return found


def _insert(conn: Connection, fresh: Session, parent_id: int | None) -> Session:
    values = {name: getattr(fresh, name) for name in _OWN} | {
        "parent_session_id": parent_id,
        "planner_state": dump_state(fresh.planner_state),
        "prefix": dumped(fresh.prefix),
        "own_prompt": None if fresh.base_id is None else fresh.prompt.split()[1],
        "origins": _dump_origins(fresh.origins),
    }
    stored = replace(fresh, id=conn.execute(_INSERT, values).scalar_one())
    conn.execute(view_plan.insert(), {"session_id": stored.id, "body": dump_plan(stored.plan)})
    return stored


_OWN = ("conversation", "start_reason", "number", "report_model", "token_ratio", "moved", "base_id")
"""Columns with the same name as `Session` fields."""
_REPORTED = ("prompt_tokens", "prompt_upto_seq", "prompt_output_tokens")
_INSERT = session.insert().values(started_at=now_s()).returning(session.c.id)


def in_row(row: Any) -> Session:
    """Build a segment from a row of `with_base(…, session)`."""
    prompt = None
    if row.base_id is not None:
        layers = tuple(map(tuple, orjson.loads(row.prompt_layers)))
        prompt = SystemPrompt(row.shared_prompt, layers).with_own(row.own_prompt or "")
    return Session(
        **{name: getattr(row, name) for name in ("id", "tools", *_OWN, *_REPORTED)},
        plan=load_plan(row.plan),
        system_prompt=None if prompt is None else prompt.text,
        planner_state=PlannerState(**orjson.loads(row.planner_state)),
        prompt_inputs=None if row.prompt_inputs is None else orjson.loads(row.prompt_inputs),
        prefix=None if row.prefix is None else Prefix(**orjson.loads(row.prefix)),
        prompt_layers=() if prompt is None else prompt.layers,
        origins=load_origins(row.origins),
    )


def _dump_origins(origins: Iterable[Origin]) -> str | None:
    return dumped([tuple(each) for each in origins] or None)


def load_origins(stored: str | None) -> tuple[Origin, ...]:
    """Parse stored origins."""
    return () if stored is None else tuple(Origin(*each) for each in orjson.loads(stored))


def dumped(value: object) -> str | None:
    """Return a value as JSON text, or None."""
    return None if value is None else orjson.dumps(value).decode()


def dump_state(state: PlannerState) -> str:
    """Serialize the planner's state to JSON without default values."""
    named = {each.name: getattr(state, each.name) for each in fields(state)}
    own = {name: value for name, value in named.items() if value != getattr(_UNTOUCHED, name)}
    return orjson.dumps(own).decode()


_UNTOUCHED = PlannerState()
