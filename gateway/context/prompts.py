"""Writes a conversation's system prompt from its facts and the operator's files.

The transaction that begins a turn writes it if `sessions.settle_base` finds changed tools,
instructions or model. The operator's files are SOUL.md, USER.md, a context file and the skills.
`refresh` reads changed ones in a thread, at most every 2 s; a turn uses `current`.
"""

import asyncio
import errno
import hashlib
import os
import platform
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from zoneinfo import ZoneInfo

import orjson
import structlog
from sqlalchemy import Connection

from adapters.registry import by_name
from agent.errors import ToolError
from agent.messages import ChatMessage, storable
from agent.prompt.skills import Skill, SkillShelf
from agent.prompt.system import (
    PinnedNote,
    PromptFacts,
    SourcedText,
    SystemPrompt,
    memory_context,
    write_child_prompt,
    write_prompt,
)
from agent.safety.threats import Scan, Threat, scan
from agent.settings import AgentSettings
from agent.turn.request import Agent
from gateway.access.policy import Access
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.sessions import PromptBase, Session
from gateway.storage.people import notebook
from gateway.storage.queue.inbox import InboxEntry

log = structlog.get_logger()

Stamp = tuple[int, int]
NO_STAMP = (0, -1)
"""Stamp of an inaccessible file."""

IDENTITY = "SOUL.md"
PROFILE = "USER.md"
CONTEXT_FILES = (".parley.md", ".hermes.md", "AGENTS.md", "CLAUDE.md", ".cursorrules")
"""The first one in the workspace is used."""
SKILLS = "skills"
IDENTITY_CHARS = 8_000
PROFILE_CHARS = 4_000
CONTEXT_CHARS = 20_000
TAIL_SHARE = 0.2
"""Share of the end in a file that is cut to its start and end."""
MAX_SKILLS = 500
REFRESH_S = 2.0
MAX_NOTE_CHARS = 2000
"""Longest context text of one message."""
MAX_NOTES_CHARS = 20_000
"""Longest context of one turn; the oldest notes are dropped."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file, folder or skill treated as missing, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of the files; the threat scan cleans all but SOUL.md (`identity`).

    `findings` are the removed parts by file.
    """

    identity: str | None = None
    profile: str | None = None
    context_file: SourcedText | None = None
    skills: tuple[Skill, ...] = ()
    bad_skills: tuple[Unusable, ...] = ()
    findings: Mapping[str, tuple[Threat, ...]] = field(default_factory=dict)
    unreadable: tuple[Unusable, ...] = ()

    @property
    def skill_index(self) -> tuple[tuple[str, str], ...]:
        """(name, description) of each skill."""
        return tuple((skill.name, skill.description) for skill in self.skills)


@dataclass(slots=True)
class OperatorFiles:
    """Reads the files.

    Attributes:
        workspace: The folder of the context file; None for `home`.
    """

    home: Path
    workspace: Path | None = None
    current: Snapshot = field(default_factory=Snapshot)
    _texts: dict[Path, tuple[Stamp, Scan | Unusable | None]] = field(default_factory=dict)
    _skills: dict[str, tuple[Stamp, Skill | Unusable]] = field(default_factory=dict)
    _no_shelf: Unusable | None = None
    _looked_at: float = -REFRESH_S

    @property
    def shelf(self) -> SkillShelf:
        """The skills for tools to read and write."""
        return SkillShelf(self.home / SKILLS)

    async def refresh(self) -> Snapshot:
        """Return the files, at most 2 s old."""
        now = time.monotonic()
        if now - self._looked_at >= REFRESH_S:
            # Set before the wait, so that other turns do not read as well.
            self._looked_at = now
            await asyncio.to_thread(self.read)
        return self.current

    def read(self) -> Snapshot:
        """Read the files now; blocking. An unreadable one is logged and treated as missing."""
        # Not scanned: SOUL.md contains the operator's own instructions.
        identity = self._text(self.home / IDENTITY, IDENTITY_CHARS, scanned=False)
        profile = self._text(self.home / PROFILE, PROFILE_CHARS)
        folder, name, context = self.workspace or self.home, "", None
        for each in CONTEXT_FILES:
            if context := self._text(folder / each, CONTEXT_CHARS):
                name = each
                break
        found = list(self._found_skills())
        skills = tuple(each for each in found if isinstance(each, Skill))
        texts = {PROFILE: profile, name: context}
        known = [text for _, text in self._texts.values()]
        findings = {each: text.findings for each, text in texts.items() if text and text.findings}
        findings |= {f"skill {each.name}": each.findings for each in skills if each.findings}
        self.current = Snapshot(
            identity=identity.text if identity else None,
            profile=profile.text if profile else None,
            context_file=SourcedText(name, context.text) if context else None,
            skills=skills,
            bad_skills=tuple(each for each in found if isinstance(each, Unusable)),
            findings=findings,
            unreadable=tuple(
                each for each in (*known, self._no_shelf) if isinstance(each, Unusable)
            ),
        )
        return self.current

    def _text(self, path: Path, most_chars: int, *, scanned: bool = True) -> Scan | None:
        """Return a file's text, cut and scanned; None if it is missing or empty."""
        stamp = _stamp(path)
        if stamp is None:
            self._texts.pop(path, None)
            return None
        known = self._texts.get(path)
        if known is None or known[0] != stamp:
            known = self._texts[path] = stamp, _read(path, most_chars, scanned=scanned)
        return known[1] if isinstance(known[1], Scan) else None

    def _found_skills(self) -> Iterator[Skill | Unusable]:
        names = self._skill_names()
        self._skills = {name: known for name, known in self._skills.items() if name in names}
        for name in names[:MAX_SKILLS]:
            stamp = self.shelf.stamp(name)
            known = self._skills.get(name)
            if known is None or known[0] != stamp:
                known = self._skills[name] = stamp, _load(self.shelf, name)
            yield known[1]

    def _skill_names(self) -> list[str]:
        try:
            names = self.shelf.names()
        except OSError as exc:
            # Kept, so that it is logged only once.
            self._no_shelf = self._no_shelf or _unreadable(self.shelf.root, exc)
            return []
        self._no_shelf = None
        return names


def flagged(source: str, found: Scan) -> Scan:
    """Log the parts that a scan removed; return the scan."""
    for kind, count in found.counts.items():
        log.warning("prompt_text_flagged", source=source, kind=kind, count=count)
    return found


def cut(text: str, name: str, most_chars: int) -> str:
    """Cut a long text to its start and end with a mark between them."""
    if len(text) <= most_chars:
        return text
    tail = int(most_chars * TAIL_SHARE)
    left_out = len(text) - most_chars
    mark = f"\n[… {left_out:,} characters of {name} are left out here …]\n"
    return f"{text[: most_chars - tail]}{mark}{text[len(text) - tail :]}"


def _stamp(path: Path) -> Stamp | None:
    """Return a stamp that changes with a file's content and permissions; None if missing."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return NO_STAMP
    # Unlike mtime, ctime changes with permissions: a file may become readable.
    return found.st_ctime_ns, found.st_size


def _read(path: Path, most_chars: int, *, scanned: bool) -> Scan | Unusable | None:
    """Return a file's text; read only the start of a huge one."""
    try:
        with os.fdopen(_open_now(path), "rb") as file:
            # More than shown: a character has up to 4 bytes, and a cut text keeps an end.
            content = file.read(10 * most_chars)
            size = os.fstat(file.fileno()).st_size
    except OSError as exc:
        return _unreadable(path, exc)
    text = content.decode(errors="replace").replace("\r\n", "\n").strip()
    if size > len(content):
        text += f"\n[… {size - len(content):,} bytes more …]"
    text = cut(text, path.name, most_chars)
    if not text:
        return None
    return flagged(path.name, scan(text)) if scanned else Scan(text)


def _unreadable(path: Path, error: OSError) -> Unusable:
    """Log an unreadable file or folder, and return it as unusable."""
    reason = error.strerror or "is no file"
    log.warning("prompt_file_unreadable", file=path.name, error=reason)
    return Unusable(path.name, reason)


def _open_now(path: Path) -> int:
    # Opening a pipe blocks until a writer comes, maybe forever. Source: fifo(7).
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file")
    return handle


def _load(shelf: SkillShelf, name: str) -> Skill | Unusable:
    try:
        skill = shelf.load(name)
    except ToolError as exc:
        log.warning("skill_unusable", skill=name, reason=str(exc))
        return Unusable(name, str(exc))
    flagged(f"skill {name}", Scan(skill.text, skill.findings))
    return skill


TOUCHES_THE_MACHINE = frozenset({"terminal", "read_file", "write_file", "list_files"})
KNOWN_TEXTS = 256


@dataclass(frozen=True, slots=True)
class Prompts:
    """Writes prompts from the database and the operator's files.

    Attributes:
        files: The operator's files, as last read.
        timezone: Time zone of a conversation's start date.
        external: Returns the standing texts of memory providers without waiting.
    """

    files: OperatorFiles
    access: Access
    timezone: str = "UTC"
    external: Callable[[], Sequence[SourcedText]] = tuple

    def base(self, agent: Agent) -> PromptBase:
        """Return the start of an agent's requests in a conversation with people."""
        prefill = tuple(
            ChatMessage(role=each.role, content=each.content, synthetic=True, ephemeral=True)
            for each in agent.settings.prefill
        )
        base = _base(agent, partial(self._with_people, facts_of(agent)))
        return replace(base, prefill=prefill)

    def bases(self, agent: Agent) -> Callable[[str | None], PromptBase]:
        """Return a cached function from a conversation's chosen model to its `base`.

        None means the configured model; so does a model that is no longer configured.
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
        """Return the prompt of an owner's new direct chat, without notes and dates."""
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
        here = conversations.get(conn, session.conversation)
        scope = notebook.scope_of(conn, session.conversation)
        # USER.md is about the operator: only owners' direct chats see it.
        owned = here.user is not None and self.access.weakest(conn, [scope]) == "owner"
        registered = by_name().get(here.platform)
        facts = replace(
            of_root(conn, session, self._of_files(fixed), self.timezone),
            profile=self.files.current.profile if owned else None,
            external=tuple(_cleaned(told) for told in self.external()),
            notes=tuple(
                PinnedNote(_scanned(text, "memory").text, day)
                for text, day in notebook.kept(conn, scope)
            ),
            platform_hint=registered.prompt_hint if registered else "",
            shared=here.user is None,
        )
        return write_prompt(facts)


def child_base(agent: Agent) -> PromptBase:
    """Return the start of a delegated child's requests.

    It contains the operator's instructions but nothing about people: no memory, profile or skills.
    """
    fixed = facts_of(agent)
    return _base(agent, lambda conn, session: write_child_prompt(of_root(conn, session, fixed)))


def _base(agent: Agent, write: Callable[[Connection, Session], SystemPrompt]) -> PromptBase:
    instructions = agent.settings.instructions or ""
    return PromptBase(
        # Sorted keys, so that equal tools give equal bytes.
        tools=orjson.dumps(agent.tools.schemas, option=orjson.OPT_SORT_KEYS).decode(),
        inputs={
            "instructions": hashlib.sha256(instructions.encode()).hexdigest()[:16],
            # A change of any of these rewrites the prompt; see `sessions.settle_base`.
            "model": agent.models[0].name,
        },
        write=write,
    )


def facts_of(agent: Agent) -> PromptFacts:
    """Return the facts shared by all prompts of an agent."""
    names = tuple(tool.name for tool in agent.tools.schemas)
    environment = (
        f"Tools that touch files work in a directory of this conversation, on {platform.system()};"
        " nothing outside of it is yours."
    )
    return PromptFacts(
        model=agent.models[0].name,
        provider=agent.models[0].provider,
        tools=names,
        instructions=agent.settings.instructions,
        environment=environment if TOUCHES_THE_MACHINE.intersection(names) else "",
    )


def of_root(
    conn: Connection, session: Session, fixed: PromptFacts, timezone: str = "UTC"
) -> PromptFacts:
    """Add a root session's id and start date to an agent's facts."""
    started_at = sessions.started_at(conn, session.id)
    started = datetime.fromtimestamp(started_at, UTC).astimezone(ZoneInfo(timezone))
    return replace(fixed, session=str(session.id), started=started.date().isoformat())


def told_with_question(settings: AgentSettings, recalled: Sequence[SourcedText] = ()) -> str:
    """Return the context before a question, or ""; scans `recalled`."""
    operator = (settings.ephemeral or "").strip()
    own = [SourcedText("From the operator, who may instruct you", operator)] if operator else []
    return memory_context([*own, *map(_cleaned, recalled)])


def with_notes(text: str, notes: Sequence[InboxEntry]) -> str:
    """Prepend the notes since the last answer to a question.

    Args:
        notes: Messages to others in the group, edits after an answer, and corrections of the
            memory, in order.
    """
    headings = {
        "correction": "Corrected with /memory; what you were told before:",
        "overheard": "Said here since your last answer, not to you:",
        "edit": "Changed since; the message now reads:",
    }
    listed = {kind: _listed([note for note in notes if note.kind == kind]) for kind in headings}
    blocks = [f"[{headings[kind]}]\n{lines}" for kind, lines in listed.items() if lines]
    return "\n\n".join([*blocks, f"[To you:]\n{text}"]) if blocks else text


def _listed(notes: Sequence[InboxEntry]) -> str:
    """Format the notes as quoted lines, oldest first, within the limits.

    Quoted, since anyone may have written them: no line can imitate the frame.
    """
    lines: list[str] = []
    left = MAX_NOTES_CHARS
    for note in reversed(notes):
        text = note.text.strip() or "(no text any more)"
        text = text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"
        line = "\n".join(f"> {each}" for each in f"{note.sender_name}: {text}".splitlines())
        left -= len(line)
        if left < 0:
            lines.append("…")
            break
        lines.append(line)
    return "\n".join(reversed(lines))


def _cleaned(told: SourcedText) -> SourcedText:
    return SourcedText(told.source, _scanned(told.text, told.source).text)


@lru_cache(maxsize=KNOWN_TEXTS)
def _scanned(text: str, source: str) -> Scan:
    """Return the cached scan of a text; a known text is not reported again."""
    found = scan(text)
    return flagged(source, replace(found, text=storable(found.text)))
