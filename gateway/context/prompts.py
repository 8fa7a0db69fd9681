"""Writes the system prompt of a conversation, from its facts and the operator's files.

It is written in the transaction that begins a turn, which reads no file and asks nobody. What is
cheap (tools, instructions, model) is compared for every turn; the rest is only read where
`sessions.settle_base` asks for a prompt. The operator's files are SOUL.md, USER.md, a context file
and the skills. They are read beside the path of a message: `refresh` looks in a thread, at most
every 2 s, and reads what has changed since; a turn then takes `current`, which costs nothing.
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
from agent.prompt.skills import BadSkill, Skill, SkillShelf
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
from agent.turn.state import Agent
from gateway.access.policy import Access
from gateway.storage.conversation import conversations, sessions
from gateway.storage.conversation.sessions import PromptBase, Session
from gateway.storage.people import notebook
from gateway.storage.queue.inbox import InboxEntry

log = structlog.get_logger()

Stamp = tuple[int, int]
NO_STAMP = (0, -1)
"""Of what stands there and cannot be looked at."""

IDENTITY = "SOUL.md"
PROFILE = "USER.md"
CONTEXT_FILES = (".parley.md", ".hermes.md", "AGENTS.md", "CLAUDE.md", ".cursorrules")
"""The first that the workspace has is used."""
SKILLS = "skills"
IDENTITY_CHARS = 8_000
PROFILE_CHARS = 4_000
CONTEXT_CHARS = 20_000
TAIL_SHARE = 0.2
"""Of what is shown of a file that is too long; the rest is its beginning."""
MAX_SKILLS = 500
REFRESH_S = 2.0
MAX_NOTE_CHARS = 2000
"""Longest text of one message that is told as context."""
MAX_NOTES_CHARS = 20_000
"""Longest context of one turn; what is oldest is left out."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder that counts as not there, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the files say.

    Attributes:
        identity: SOUL.md, the operator's own words; None where there is none.
        profile: USER.md; this and what follows without what the threat scan took out.
        skills: Those that can be used, by name.
        bad_skills: The others.
        findings: What the scan took out, by file.
        unreadable: What stands there and cannot be read, with why.
    """

    identity: str | None = None
    profile: str | None = None
    context_file: SourcedText | None = None
    skills: tuple[Skill, ...] = ()
    bad_skills: tuple[BadSkill, ...] = ()
    findings: Mapping[str, tuple[Threat, ...]] = field(default_factory=dict)
    unreadable: tuple["Unreadable", ...] = ()

    @property
    def skill_index(self) -> tuple[tuple[str, str], ...]:
        """The (name, description) of each skill."""
        return tuple((skill.name, skill.description) for skill in self.skills)


@dataclass(slots=True)
class OperatorFiles:
    """Reads the files.

    Attributes:
        workspace: Where the context file is looked for; None for `home`.
        current: What was read last.
    """

    home: Path
    workspace: Path | None = None
    current: Snapshot = field(default_factory=Snapshot)
    _texts: dict[Path, tuple[Stamp, Scan | Unreadable | None]] = field(default_factory=dict)
    _skills: dict[str, tuple[Stamp, Skill | BadSkill]] = field(default_factory=dict)
    _no_shelf: Unreadable | None = None
    _looked_at: float = -REFRESH_S

    @property
    def shelf(self) -> SkillShelf:
        """The skills, as tools read and write them."""
        return SkillShelf(self.home / SKILLS)

    async def refresh(self) -> Snapshot:
        """Return the files as they were within the last 2 s."""
        now = time.monotonic()
        if now - self._looked_at >= REFRESH_S:
            # Before the wait: turns that begin meanwhile do not look as well.
            self._looked_at = now
            await asyncio.to_thread(self.read)
        return self.current

    def read(self) -> Snapshot:
        """Look at the files now; blocks. What cannot be read is logged and counts as not there."""
        # Not scanned: SOUL.md is the operator's own order to the agent.
        identity = self._text(self.home / IDENTITY, IDENTITY_CHARS, scanned=False)
        profile = self._text(self.home / PROFILE, PROFILE_CHARS)
        name, context = self._context_file()
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
            bad_skills=tuple(each for each in found if isinstance(each, BadSkill)),
            findings=findings,
            unreadable=tuple(
                each for each in (*known, self._no_shelf) if isinstance(each, Unreadable)
            ),
        )
        return self.current

    def _context_file(self) -> tuple[str, Scan | None]:
        for name in CONTEXT_FILES:
            text = self._text((self.workspace or self.home) / name, CONTEXT_CHARS)
            if text is not None:
                return name, text
        return "", None

    def _text(self, path: Path, most_chars: int, *, scanned: bool = True) -> Scan | None:
        """Return a file's text, cut and scanned; None where there is none, or nothing in it."""
        stamp = _stamp(path)
        if stamp is None:
            self._texts.pop(path, None)
            return None
        known = self._texts.get(path)
        if known is None or known[0] != stamp:
            known = self._texts[path] = stamp, _read(path, most_chars, scanned=scanned)
        return known[1] if isinstance(known[1], Scan) else None

    def _found_skills(self) -> Iterator[Skill | BadSkill]:
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
            # Kept, so that it is logged once and not every two seconds.
            self._no_shelf = self._no_shelf or _unreadable(self.shelf.root, exc)
            return []
        self._no_shelf = None
        return names


def flagged(source: str, found: Scan) -> Scan:
    """Log what a scan took out of a text that enters a prompt; returns the scan."""
    for kind, count in found.counts.items():
        log.warning("prompt_text_flagged", source=source, kind=kind, count=count)
    return found


def cut(text: str, name: str, most_chars: int) -> str:
    """Return a text, or its beginning and end with a mark for what is left out."""
    if len(text) <= most_chars:
        return text
    tail = int(most_chars * TAIL_SHARE)
    left_out = len(text) - most_chars
    mark = f"\n[… {left_out:,} characters of {name} are left out here …]\n"
    return f"{text[: most_chars - tail]}{mark}{text[len(text) - tail :]}"


def _stamp(path: Path) -> Stamp | None:
    """Return what changes with a file's content and rights; None where there is nothing."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return NO_STAMP
    # The time of the last change of rights as well, which mtime does not have: a file may become
    # readable.
    return found.st_ctime_ns, found.st_size


def _read(path: Path, most_chars: int, *, scanned: bool) -> Scan | Unreadable | None:
    """Return a file's text; of one that is huge only a beginning is looked at."""
    try:
        with os.fdopen(_open_now(path), "rb") as file:
            # More than is shown: a character has up to 4 bytes, and what is cut keeps an end, too.
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


def _unreadable(path: Path, error: OSError) -> Unreadable:
    """Log what stands there and cannot be read; returns it."""
    reason = error.strerror or "is no file"
    log.warning("prompt_file_unreadable", file=path.name, error=reason)
    return Unreadable(path.name, reason)


def _open_now(path: Path) -> int:
    """Open a file, without waiting for whoever would write into a pipe."""
    # Opening a pipe for reading waits for a writer, which may never come. Source: fifo(7).
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no regular file")
    return handle


def _load(shelf: SkillShelf, name: str) -> Skill | BadSkill:
    try:
        skill = shelf.load(name)
    except ToolError as exc:
        log.warning("skill_unusable", skill=name, reason=str(exc))
        return BadSkill(name, str(exc))
    flagged(f"skill {name}", Scan(skill.text, skill.findings))
    return skill


TOUCHES_THE_MACHINE = frozenset({"terminal", "read_file", "write_file", "list_files"})
KNOWN_TEXTS = 256

ExternalTexts = Callable[[], Sequence[SourcedText]]


@dataclass(frozen=True, slots=True)
class Prompts:
    """What prompts are written from, beside the database.

    Attributes:
        files: The operator's; what was read last is used.
        timezone: Of the date on which a conversation began.
        external: Returns the standing texts of memory providers, at once.
    """

    files: OperatorFiles
    access: Access
    timezone: str = "UTC"
    external: ExternalTexts = tuple

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
        here = conversations.get(conn, session.conversation)
        scope = notebook.scope_of(conn, session.conversation)
        # USER.md is about the operator's own people: only direct chats of owners see it.
        owned = here.user is not None and self.access.weakest(conn, [scope]) == "owner"
        facts = replace(
            of_root(conn, session, self._of_files(fixed), self.timezone),
            profile=self.files.current.profile if owned else None,
            external=tuple(_cleaned(told) for told in self.external()),
            notes=tuple(
                PinnedNote(_scanned(text, "memory").text, day)
                for text, day in notebook.kept(conn, scope)
            ),
            platform_hint=_hint_of(here.platform),
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
        # With sorted keys, so that the same tools are the same bytes.
        tools=orjson.dumps(agent.tools.schemas, option=orjson.OPT_SORT_KEYS).decode(),
        inputs={
            "instructions": hashlib.sha256(instructions.encode()).hexdigest()[:16],
            # A change of any of these has the prompt written anew; see `sessions.settle_base`.
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
    """Add the facts of a root to an agent's facts: its id and the day on which it began."""
    started_at = sessions.started_at(conn, session.id)
    started = datetime.fromtimestamp(started_at, UTC).astimezone(ZoneInfo(timezone))
    return replace(fixed, session=str(session.id), started=started.date().isoformat())


def prefill_rows(settings: AgentSettings) -> tuple[ChatMessage, ...]:
    """Return the examples that every root begins with."""
    return tuple(
        ChatMessage(role=each.role, content=each.content, synthetic=True, ephemeral=True)
        for each in settings.prefill
    )


def told_with_question(settings: AgentSettings, recalled: Sequence[SourcedText] = ()) -> str:
    """Return the context that is put before a question; "" if there is none.

    Args:
        settings: With the operator's own words.
        recalled: What memory providers and plugins have to say; scanned here.
    """
    operator = (settings.ephemeral or "").strip()
    own = [SourcedText("From the operator, who may instruct you", operator)] if operator else []
    return memory_context([*own, *map(_cleaned, recalled)])


def with_notes(text: str, notes: Sequence[InboxEntry]) -> str:
    """Return a question behind what its people said meanwhile.

    Args:
        notes: What was said to others in the group, messages that were changed after they had
            been answered, and corrections of what is remembered; in order.
    """
    overheard = _listed([note for note in notes if note.kind == "overheard"])
    changed = _listed([note for note in notes if note.kind == "edit"])
    corrected = _listed([note for note in notes if note.kind == "correction"])
    blocks = []
    if corrected:
        blocks.append(f"[Corrected with /memory; what you were told before:]\n{corrected}")
    if overheard:
        blocks.append(f"[Said here since your last answer, not to you:]\n{overheard}")
    if changed:
        blocks.append(f"[Changed since; the message now reads:]\n{changed}")
    return "\n\n".join([*blocks, f"[To you:]\n{text}"]) if blocks else text


def _listed(notes: Sequence[InboxEntry]) -> str:
    """Return quoted lines for each note, oldest first, within the limits.

    Quoted, since anybody may have written them: none of them can be taken for the frame.
    """
    lines: list[str] = []
    left = MAX_NOTES_CHARS
    for note in reversed(notes):
        line = _quoted(f"{note.sender_name}: {_shortened(note.text)}")
        left -= len(line)
        if left < 0:
            lines.append("…")
            break
        lines.append(line)
    return "\n".join(reversed(lines))


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.splitlines())


def _shortened(text: str) -> str:
    text = text.strip() or "(no text any more)"
    return text if len(text) <= MAX_NOTE_CHARS else text[: MAX_NOTE_CHARS - 1] + "…"


def _cleaned(told: SourcedText) -> SourcedText:
    return SourcedText(told.source, _scanned(told.text, told.source).text)


@lru_cache(maxsize=KNOWN_TEXTS)
def _scanned(text: str, source: str) -> Scan:
    """Return the scan of a text, storable; the same one is scanned, and reported, once."""
    found = scan(text)
    return flagged(source, replace(found, text=storable(found.text)))


def _hint_of(platform_name: str) -> str:
    """Return how the platform shows answers; empty for one that is not registered any more."""
    registered = by_name().get(platform_name)
    return registered.prompt_hint if registered else ""


def _environment(tools: Sequence[str]) -> str:
    if not TOUCHES_THE_MACHINE.intersection(tools):
        return ""
    return (
        f"Tools that touch files work in a directory of this conversation, on {platform.system()};"
        " nothing outside of it is yours."
    )
