"""Where a running gateway's settings come from, and what its agent is made of beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.plugins.active import Plugins
from agent.settings import ReferencedSecret
from agent.tools.registry import NO_SERVERS, HeldTool, ServedTools
from agent.turn.state import Agent
from gateway.agent_ports.budgets import refuse_unpriced
from gateway.lifecycle.start_checks import Finding
from gateway.settings.loading import CONFIG_NAME, Loaded, secret_values
from gateway.settings.references import references_in
from gateway.settings.tree import KeyPath, Settings
from gateway.wiring import (
    NO_PLUGINS,
    Configured,
    build_agent,
    build_line,
    learn_windows,
    models_of,
    with_told_windows,
)

Known = Mapping[KeyPath, ReferencedSecret]
"""Secrets that were read already, by their places."""
Stamp = tuple[int, int, int]


def stamp_of(file: Path) -> Stamp | None:
    """Return what tells a file from what it was before; None where none can be seen."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


@dataclass(frozen=True, slots=True)
class Remade:
    """What follows from another state of the settings.

    Attributes:
        settings: They, with what providers say of the models that only write summaries.
        findings: Which keys the providers take; only of models that are new.
    """

    settings: Settings
    agent: Agent
    line: Sequence[Configured]
    findings: tuple[Finding, ...] = ()


@dataclass(slots=True)
class Source:
    """Where settings are read.

    Attributes:
        loaded: What was read last and is gone by, but for what waits for a restart.
        read: Reads all of it once more; raises SettingsError.
        stamp: Of the file, as it was read last.
    """

    loaded: Loaded
    read: Callable[[Known], Loaded]
    stamp: Stamp | None = None

    @property
    def file(self) -> Path:
        """The settings file, which need not be there."""
        return self.loaded.config_file or self.loaded.settings.home / CONFIG_NAME

    @property
    def known(self) -> Known:
        """The secrets that were read already."""
        return dict(references_in(self.loaded.settings))

    def read_again(self) -> Loaded:
        """Return the settings as they stand there now; secrets that are known are not read. Blocks.

        Raises:
            SettingsError: They cannot be gone by.
        """
        # Before it is read: what is written meanwhile is read once more.
        self.stamp = stamp_of(self.file)
        return self.read(self.known)


@dataclass(slots=True)
class AgentOrigin:
    """What the agent is made of beside the settings, and where those are read again.

    Attributes:
        source: None where settings stay as they are.
    """

    plugins: Plugins = NO_PLUGINS
    foreign: ServedTools = NO_SERVERS
    line: Sequence[Configured] = ()
    source: Source | None = None

    @property
    def held(self) -> Sequence[HeldTool]:
        """The servers' tools that need an owner's approval before they are offered."""
        return [each for state in self.foreign.states() for each in state.held]

    async def remade(
        self,
        source: Source,
        running: Settings,
        settings: Settings,
        before: Agent,
        foreign: ServedTools,
    ) -> Remade:
        """Return what follows from settings; models that did not change stay the same objects.

        Args:
            source: What was read before.
            settings: What it is to go by.
            foreign: The servers' tools offered from now on.

        Raises:
            SettingsError: They cannot be gone by; nothing was changed.
        """
        plain, line = source.loaded.settings, self.line
        findings: list[Finding] = []
        if any(getattr(plain, name) != getattr(settings, name) for name in _OF_THE_LINE):
            line = build_line(settings)
            refuse_unpriced(settings.budget, models_of(line))
            findings += await learn_windows(line)
        told = settings.model_copy(update={"auxiliary": running.auxiliary})
        if any(getattr(plain, name) != getattr(settings, name) for name in ("model", "auxiliary")):
            told, more = await with_told_windows(settings)
            findings += more
        agent = build_agent(settings, line, self.plugins, foreign)
        # What was a secret stays one: people may have seen it in an old message.
        agent.calls.redactor.learn(secret_values(running))
        recovery = replace(agent.recovery, rests=before.recovery.rests)
        return Remade(told, replace(agent, recovery=recovery), line, tuple(findings))


_OF_THE_LINE = ("model", "fallbacks", "prompt_caching")
