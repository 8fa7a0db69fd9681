"""The parts of a turn: the settings, the agent built from them, and shared services.

A reload creates new `TurnParts` for later turns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from adapters.base import Adapter
from agent.models.base import ChatModel
from agent.plugins.registry import Plugins, TurnHooks
from agent.turn.request import Agent
from gateway.access.policy import Access, Owners
from gateway.agent_ports.budgets import Budgets
from gateway.agent_ports.files import Attachments
from gateway.agent_ports.questions import Inquiries
from gateway.agent_ports.search import Indexer
from gateway.agent_ports.tools import Toolkit, Workspaces
from gateway.context.memory import Recall
from gateway.context.prompts import Prompts
from gateway.context.summaries import Preparations
from gateway.context.window import ContextParts
from gateway.settings.tree import Settings
from gateway.signals import Stops, Wakeups
from gateway.storage.database import Database
from gateway.supervision.vitals import Models


@dataclass(frozen=True, slots=True)
class Mind:
    """The configured agent with its window and prompts.

    Attributes:
        models: All models, including those that only write summaries or read for the memory.
        readers: The models that read for the memory; a reload keeps them.
    """

    agent: Agent
    context: ContextParts
    prompts: Prompts
    models: tuple[ChatModel, ...]
    readers: tuple[ChatModel, ...] = ()

    @property
    def standing(self) -> Models:
        """The state of the models."""
        rests = self.agent.recovery.rests
        return Models(
            configured=frozenset(each.label for each in self.models),
            failing=dict(rests.failing),
            answered=frozenset(rests.answered),
            accepted=frozenset(rests.accepted),
            line=frozenset(each.label for each in self.agent.models),
        )


@dataclass(frozen=True, slots=True)
class Beside:
    """The background parts; `recall` is None if nothing needs notice of turns."""

    preparations: Preparations
    files: Attachments
    inquiries: Inquiries
    indexer: Indexer
    recall: Recall | None


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that outlive a reload."""

    database: Database
    owners: Owners
    wakeups: Wakeups
    stops: Stops
    budgets: Budgets
    adapters: Mapping[tuple[str, str], Adapter]
    plugins: Plugins
    beside: Beside

    @property
    def access(self) -> Access:
        """The roles of senders."""
        return self.owners.access


@dataclass(frozen=True, slots=True)
class TurnParts:
    """Everything that a turn uses."""

    settings: Settings
    mind: Mind
    shared: Shared

    def toolkit(self) -> Toolkit:
        """Return the builder of tool contexts."""
        settings, shared, plugins = self.settings, self.shared, self.shared.plugins
        has_hooks = plugins.loaded or plugins.missing_guards
        return Toolkit(
            shared.database,
            shared.access,
            *(shared.beside.files, shared.beside.inquiries, shared.beside.indexer),
            TurnHooks(plugins, self.mind.agent.tools.restricted) if has_hooks else None,
            (self.mind.prompts.files.shelf, Workspaces(settings.tools.workspace, settings.home)),
        )
